"""`headrace serve`: the OpenAI-compatible server, with vLLM's flags."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

import typer

from headrace.cli.groups import grouped_engine_options
from headrace.cli.model import LogLevel, LogLevelOption, ModelOption
from headrace.cli.options import Options, engine_keywords, option, takes, with_default
from headrace.server.settings import LogFormat, Settings
from headrace.words import envs
from headrace.words.config import DEFAULT_MODEL, EngineConfig, engine_config
from headrace.words.errors import ConfigError

MAX_NUM_QUEUED_REQUESTS = 1_024
MAX_NUM_QUEUED_TOKENS = 1_000_000
ALIASES = {
    "max_num_queued_reqs": "max_num_queued_requests",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
}
"""vLLM's other names of ours; those of two letters have one dash."""
NOT_BUILT: dict[str, tuple[Any, Any, str]] = {
    "enable_auto_tool_choice": (bool, False, "tool calls"),
    "tool_call_parser": (str, None, "tool calls"),
    "reasoning_parser": (str, None, "reasoning parsers"),
    "allowed_media_domains": (list[str], None, "images"),
    "allowed_local_media_path": (str, None, "images"),
    "limit_mm_per_prompt": (str, None, "images"),
    "nnodes": (int, 1, "several hosts"),
    "node_rank": (int, 0, "several hosts"),
    "master_addr": (str, None, "several hosts"),
    "master_port": (int, None, "several hosts"),
    "enable_lora": (bool, False, "adapters"),
    "speculative_config": (str, None, "speculation"),
    "ssl_keyfile": (str, None, "TLS; put a proxy in front"),
    "ssl_certfile": (str, None, "TLS; put a proxy in front"),
}
"""vLLM's flags that are parsed: their kind, the value that asks for nothing, and what they would ask for."""
PANEL = "Server"
FLAGS: dict[str, tuple[Any, str, str]] = {
    "host": (str, "host", "address to listen at"),
    "port": (int, "port", "port to listen at; 0 takes a free one"),
    "served_model_name": (list[str], "model_names", "what clients call the model; may be given several times"),
    "api_key": (list[str], "api_keys", "key that clients must send; may be given several times"),
    "shutdown_timeout": (float, "shutdown_timeout_s", "seconds that open requests have after SIGTERM"),
    "step_timeout": (float, "wedge_timeout_s", "seconds after which a step counts as stuck"),
    "send_timeout": (float, "send_timeout_s", "seconds that a reader may leave its stream full"),
    "max_body_bytes": (int, "max_body_bytes", "largest body of a request"),
    "otlp_traces_endpoint": (
        str,
        "otlp_traces_endpoint",
        "where OpenTelemetry spans go, as http://localhost:4318/v1/traces; needs the extra otel",
    ),
    "max_connections": (int, "max_connections", "connections at once; default: what ulimit -n allows"),
}
"""Flags of the server: their kind, the field of Settings, and what the help says."""


def server_options() -> list[inspect.Parameter]:
    defaults = {f.name: f.default for f in dataclasses.fields(Settings)}
    return [
        option(name, kind, with_default(text, defaults[field]), PANEL) for name, (kind, field, text) in FLAGS.items()
    ]


def other_options() -> list[inspect.Parameter]:
    """Unlisted ones: vLLM's other names and what is not built."""
    aliases = [_alias(name) for name in ALIASES]
    return aliases + [option(name, kind, "", PANEL, hidden=True) for name, (kind, _, _) in NOT_BUILT.items()]


def _alias(name: str) -> inspect.Parameter:
    flag = f"-{name}" if len(name) == 2 else f"--{name.replace('_', '-')}"
    kind = Annotated[int | None, typer.Option(flag, hidden=True)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


@takes(server=server_options, engine=grouped_engine_options, others=other_options)
def serve(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model, as --model names it.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    seed: Annotated[int | None, typer.Option(help="Seed of the engine.", rich_help_panel=PANEL)] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Shape of a line of the log.", rich_help_panel=PANEL)] = "text",
    log_level: LogLevelOption = None,
    uvicorn_log_level: Annotated[LogLevel | None, typer.Option(hidden=True)] = None,
    *,
    server: Options,
    engine: Options,
    others: Options,
) -> int:
    """Serve a model: OpenAI's API, Anthropic's messages, health, metrics, and the life of every request.

    Without a key only this machine is served; HEADRACE_API_KEY may hold one. SIGTERM lets open requests end, a second
    one ends the server at once.
    """
    from headrace.server.logs import set_up
    from headrace.server.run import serve as run_server

    set_up(log_level or uvicorn_log_level or envs.log_level(), log_format)
    asked = engine_config_of(name or model, engine, others, seed)
    return run_server(asked, settings_of(server, asked.model))


def settings_of(given: Options, model: str) -> Settings:
    values: Options = {
        FLAGS[name][1]: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    for name, value in values.items():
        if isinstance(value, int | float) and not value >= 0:
            raise ConfigError(name, f"must be at least 0, got {value}")
    values.setdefault("model_names", (shown_name(model),))
    if key := envs.get("HEADRACE_API_KEY"):
        values["api_keys"] = (*values.get("api_keys", ()), key)
    return Settings(**values)


def engine_config_of(model: str, engine: Options, others: Options, seed: int | None) -> EngineConfig:
    """The engine's part of the command line, with the bounds that a server's queue has."""
    keywords = engine_keywords(model, {**engine, **_own(others)})
    if seed is not None:
        keywords["seed"] = seed
    if keywords.pop("trust_remote_code", False):
        raise ConfigError("trust_remote_code", "code of a checkpoint is never run; supported models need none")
    asked = engine_config(**keywords)
    return dataclasses.replace(
        asked,
        max_num_queued_requests=asked.max_num_queued_requests or MAX_NUM_QUEUED_REQUESTS,
        max_num_queued_tokens=asked.max_num_queued_tokens or MAX_NUM_QUEUED_TOKENS,
    )


def _own(others: Mapping[str, Any]) -> Options:
    """vLLM's flags by our names; one that asks for what is not built is a ConfigError."""
    found: Options = {}
    for name, value in others.items():
        if name in ALIASES:
            found[ALIASES[name]] = value
        elif value != NOT_BUILT[name][1]:
            raise ConfigError(name, f"{NOT_BUILT[name][2]} are not supported; leave it out")
    return found


def shown_name(model: str) -> str:
    """What clients call a model that was named by a path: the last part of it, not where it lies."""
    path = PurePath(model)
    return path.name if path.is_absolute() or model.startswith(".") else model
