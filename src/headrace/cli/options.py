"""Options that commands share: the engine's are the fields of EngineConfig, the sampling ones of SamplingParams."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from headrace.words.config import ACCEPTED, BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, EngineConfig
from headrace.words.params import SamplingParams

ENGINE_HELP = {
    "tokenizer": "folder or name of another tokenizer",
    "revision": "revision on the Hugging Face hub",
    "dtype": "float32 or bfloat16; float16 runs as float32; default: the checkpoint's",
    "quantization": "int8 or int4: round the matrices at load; default: as they are stored",
    "backend": "who computes: cpu (native kernels) or reference (torch); default: the fastest there is",
    "max_model_len": "longest sequence in tokens; default: the model's, or what the cache can hold",
    "max_num_seqs": f"sequences that run at once; default: {MAX_NUM_SEQS}",
    "max_num_batched_tokens": f"tokens in one step; default: {MAX_NUM_BATCHED_TOKENS}, or --max-num-seqs if more",
    "block_size": f"tokens in a cache block; default: {BLOCK_SIZE}",
    "gpu_memory_utilization": "share of the memory to use (0–1)",
    "kv_cache_dtype": "keys and values in the cache; int8 takes half the memory of bfloat16; auto: as dtype",
    "kv_cache_memory_bytes": "bytes of the cache; default: what the memory allows",
    "num_gpu_blocks_override": "cache blocks, whatever the memory",
    "enable_prefix_caching": "reuse what prompts have in common",
    "seed": "seed of the engine, from which unseeded requests get theirs",
    "generation_config": "auto: sampling defaults of the checkpoint; headrace: none",
    "chat_template": "a template, or a file that holds one",
    "scheduling_policy": "who comes first",
    "prefill_policy": "when prompts are computed",
    "attempt_max_steps": "attempt policy: steps a prompt may wait",
    "attempt_max_wait_s": "attempt policy: seconds a prompt may wait",
    "attempt_target_tokens": "attempt policy: waiting tokens that are enough",
    "preemption_policy": "what happens to a sequence that loses its blocks",
    "victim_policy": "who loses them",
    "max_preemptions": "times a sequence may lose them; default: any number",
    "async_scheduling": "overlap the host's work with the device's; on a CPU, where a step returns when it is "
    "computed, that hides nothing",
    "queue_timeout_s": "seconds a request may wait; default: any time",
    "request_timeout_s": "seconds a request may take; default: any time",
    "max_num_queued_requests": "requests that may wait; default: any number, 1024 in a server",
    "max_num_queued_tokens": "tokens that may wait; default: any number, 1000000 in a server",
    "num_threads": "threads of a step, no more than there are cores; default: one per core",
    "role": "part in a group of engines",
}
SAMPLING_HELP = {
    "n": "continuations of each prompt",
    "max_tokens": "longest continuation in tokens",
    "min_tokens": "shortest continuation in tokens",
    "temperature": "0 takes the most likely token",
    "top_p": "keep the most likely tokens up to this mass",
    "top_k": "keep that many of the most likely tokens; 0: all",
    "min_p": "keep tokens at least this likely, relative to the most likely",
    "presence_penalty": "against tokens that were said",
    "frequency_penalty": "against tokens that were said often",
    "repetition_penalty": "against tokens of prompt and answer, above 1",
    "seed": "the same seed gives the same tokens",
    "stop": "end at this text; may be given several times",
    "stop_token_ids": "end at this token id; may be given several times",
    "include_stop_str_in_output": "keep the text that ended the answer",
    "ignore_eos": "go on past the end-of-sequence token",
    "skip_special_tokens": "leave special tokens out of the text",
    "logprobs": "log-probabilities of that many alternatives (with --json)",
}
LISTS = {"stop": list[str], "stop_token_ids": list[int]}
FLAGS = ("trust_remote_code", "enforce_eager", "disable_log_stats", "enable_chunked_prefill", "skip_tokenizer_init")
HOMES = {"model", "seed"}
"""Engine fields that commands spell themselves."""

Options = dict[str, Any]
Command = Callable[..., int]


def option(name: str, kind: Any, text: str, panel: str, **more: Any) -> inspect.Parameter:
    """A keyword of a command; None when it is not given."""
    flag = f"--{name.replace('_', '-')}"
    spelled = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    info = typer.Option(spelled, help=text, rich_help_panel=panel, show_default=False, **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def engine_options() -> list[inspect.Parameter]:
    """One option for each field of EngineConfig, and vLLM's that ask for nothing, which the help does not list."""
    hints = typing.get_type_hints(EngineConfig)
    ours = [
        option(f.name, _plain(hints[f.name]), with_default(ENGINE_HELP[f.name], f.default), "Engine")
        for f in dataclasses.fields(EngineConfig)
        if f.name not in HOMES
    ]
    ours.append(option("engine_seed", int, ENGINE_HELP["seed"], "Engine"))
    return ours + [option(name, bool if name in FLAGS else str, "", "Engine", hidden=True) for name in ACCEPTED]


def with_default(text: str, value: Any) -> str:
    """A help text and what holds without the option, where that is a value that can be given."""
    if "default:" in text or not isinstance(value, bool | int | float | str):
        return text
    shown = ("off", "on")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
    return f"{text}; default: {shown}"


def sampling_options() -> list[inspect.Parameter]:
    hints = typing.get_type_hints(SamplingParams)
    return [
        option(name, LISTS.get(name) or _plain(hints[name]), text, "Sampling") for name, text in SAMPLING_HELP.items()
    ]


def _plain(hint: Any) -> Any:
    """`int | None` → int; a Literal stays one, so that its values are the choices."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return hint if typing.get_origin(hint) is Literal or not kinds else kinds[0]


def takes(**groups: Callable[[], list[inspect.Parameter]]) -> Callable[[Command], Command]:
    """Gives a command each group's options, and collects those that were given into one dict of the group's name."""

    def decorate(command: Command) -> Command:
        made = {name: make() for name, make in groups.items()}

        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> int:
            for group, parameters in made.items():
                values = {p.name: given.pop(p.name, None) for p in parameters}
                given[group] = {name: value for name, value in values.items() if value not in (None, [])}
            return command(*args, **given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in groups]
        parameters = [*own, *(p for group in made.values() for p in group)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        return call

    return decorate


def engine_keywords(model: str, given: Mapping[str, Any]) -> Options:
    """Keywords of `engine_config`: numbers among vLLM's unlisted options are read as numbers."""
    keywords: Options = {"model": model, **given}
    if "engine_seed" in keywords:
        keywords["seed"] = keywords.pop("engine_seed")
    for name, neutral in ACCEPTED.items():
        value = keywords.get(name)
        if isinstance(value, str) and isinstance(neutral, int) and re.fullmatch("-?[0-9]{1,18}", value):
            keywords[name] = int(value)
    return keywords
