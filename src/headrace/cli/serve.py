"""`headrace serve`: the OpenAI-compatible server, with vLLM's flags."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Annotated, Any, Literal

import typer

from headrace.cli.model import LogLevelOption, ModelOption
from headrace.cli.options import Options, engine_keywords, engine_options, option, takes
from headrace.words import envs
from headrace.words.config import DEFAULT_MODEL, EngineConfig, engine_config
from headrace.words.errors import ConfigError

MAX_NUM_QUEUED_REQUESTS = 1_024
MAX_NUM_QUEUED_TOKENS = 1_000_000
ALIASES = {"max_num_queued_reqs": "max_num_queued_requests"}
"""vLLM's names of ours."""
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


def server_options() -> list[inspect.Parameter]:
    """Unlisted ones: vLLM's other names and what is not built."""
    aliases = [option(name, int, "", PANEL, hidden=True) for name in ALIASES]
    return aliases + [option(name, kind, "", PANEL, hidden=True) for name, (kind, _, _) in NOT_BUILT.items()]


@takes(engine=engine_options, others=server_options)
def serve(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model, as --model names it.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen at.", rich_help_panel=PANEL)] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", rich_help_panel=PANEL)] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model; may be given again.", rich_help_panel=PANEL)
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Key that clients must send; may be given again, or as HEADRACE_API_KEY.", rich_help_panel=PANEL
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the engine.", rich_help_panel=PANEL)] = None,
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests have after SIGTERM.", min=0, rich_help_panel=PANEL)
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option(help="Seconds after which a step counts as stuck.", min=0.1, rich_help_panel=PANEL)
    ] = 300.0,
    send_timeout: Annotated[
        float, typer.Option(help="Seconds that a reader may leave its stream full.", min=0.1, rich_help_panel=PANEL)
    ] = 60.0,
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.", min=1, rich_help_panel=PANEL)] = 32
    << 20,
    max_connections: Annotated[
        int | None,
        typer.Option(help="Connections at once; default: what ulimit -n allows.", min=1, rich_help_panel=PANEL),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Shape of a line of the log.", rich_help_panel=PANEL)
    ] = "text",
    log_level: LogLevelOption = None,
    uvicorn_log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, typer.Option(hidden=True)] = None,
    *,
    engine: Options,
    others: Options,
) -> int:
    """Serve a model: OpenAI's API, Anthropic's messages, health, metrics, and the life of every request.

    Without a key only this machine is served. SIGTERM lets open requests end; a second one ends the server at once.
    """
    from headrace.server.logs import set_up
    from headrace.server.run import serve as run_server
    from headrace.server.settings import Settings

    set_up(log_level or uvicorn_log_level or envs.get("HEADRACE_LOG_LEVEL") or "warning", log_format)
    asked = engine_config_of(name or model, engine, others, seed)
    key = envs.get("HEADRACE_API_KEY")
    settings = Settings(
        host=host,
        port=port,
        model_names=tuple(served_model_name or [shown_name(asked.model)]),
        api_keys=tuple([*(api_key or []), *([key] if key else [])]),
        shutdown_timeout_s=shutdown_timeout,
        wedge_timeout_s=step_timeout,
        send_timeout_s=send_timeout,
        max_body_bytes=max_body_bytes,
        max_connections=max_connections,
    )
    return run_server(asked, settings)


def engine_config_of(model: str, engine: Options, others: Options, seed: int | None) -> EngineConfig:
    """The engine's part of the command line, with the bounds that a server's queue has."""
    keywords = engine_keywords(model, {**engine, **_own(others)})
    if seed is not None:
        keywords["seed"] = seed
    if keywords.pop("trust_remote_code", False):
        raise ConfigError("trust_remote_code", "code of a checkpoint is never run; supported models need none")
    asked = engine_config(**keywords)
    return replace(
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
