"""The only place that wires an engine's parts together.

What executes is imported when an engine is built, so that nothing heavy is loaded by reading this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engine.chat import ChatTemplate
from headrace.engine.core import EngineCore
from headrace.engine.detokenize import TokenTexts, stop_matcher
from headrace.engine.inputs import InputProcessor
from headrace.engine.metrics import EngineMetrics
from headrace.engine.processor import OutputProcessor
from headrace.engine.progress import CountedWeights, Progress
from headrace.engine.sampling_params import Bounds
from headrace.engine.tokenizer import Tokenizer
from headrace.schedule.scheduler import Scheduler
from headrace.words import envs
from headrace.words.cache_spec import held_in
from headrace.words.config import GIB, EngineConfig, Hardware, ModelConfig, Resolved, resolve
from headrace.words.errors import ConfigError, EngineError, RequestError
from headrace.words.log import get_logger
from headrace.words.params import SamplingParams
from headrace.words.plan import CacheLayout, Executor

if TYPE_CHECKING:
    from headrace.executor.local import Fault
    from headrace.layers.weights import WeightSource
    from headrace.load.parts import Weights
    from headrace.ops.base import Ops
    from headrace.ops.profile import Profiler

log = get_logger(__name__)
Clock = Callable[[], float]
SPIN_COUNT = "2000"
LENGTH_DECIDES = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies depend on the longest sequence."""
GENERATION_CONFIGS = ("auto", "vllm", "headrace")
GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's parts, ready to run. Whoever runs `core` owns the engine and calls `close`."""

    resolved: Resolved
    model: ModelConfig
    layout: CacheLayout
    tokenizer: Tokenizer
    template: ChatTemplate | None
    special_tokens: Mapping[str, str]
    """What chat templates call bos_token, eos_token, …"""
    sampling_defaults: Mapping[str, Any]
    """Fields of SamplingParams that the checkpoint's generation_config sets."""
    inputs: InputProcessor
    outputs: OutputProcessor
    core: EngineCore
    metrics: EngineMetrics
    profiler: Profiler | None = None
    """Times the model's ops, where they can be timed."""

    def default_sampling_params(self) -> SamplingParams:
        return SamplingParams(**self.sampling_defaults)

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """The model's chat template, or one from `source`; RequestError where there is none."""
        if source is not None:
            return ChatTemplate(source, self.tokenizer, self.special_tokens)
        if self.template is None:
            raise RequestError("chat_template", "this model has none; pass one, or use generate with a plain prompt")
        return self.template

    def close(self) -> None:
        """Twice is once."""
        self.core.close()


def assemble(
    resolved: Resolved,
    model: ModelConfig,
    layout: CacheLayout,
    executor: Executor,
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    sampling_defaults: Mapping[str, Any] | None = None,
    clock: Clock = time.monotonic,
    profiler: Profiler | None = None,
) -> Engine:
    """An engine around an executor. The scheduler comes last: it needs the block count that the worker measured."""
    texts = TokenTexts(tokenizer)
    eos_token_ids = resolved.scheduler.eos_token_ids
    bounds = Bounds(model.vocab_size, model.hidden_size, resolved.scheduler.max_model_len, eos_token_ids)
    inputs = InputProcessor(
        bounds, tokenizer, resolved.seed, resolved.queue_timeout_s, resolved.request_timeout_s, clock
    )
    scheduler = Scheduler(resolved.scheduler, layout, clock, make_matcher=partial(stop_matcher, texts))
    check_every = envs.whole_number("HEADRACE_CHECK_INVARIANTS", 0) or 0
    core = EngineCore(scheduler, executor, resolved.async_scheduling, clock, check_every)
    metrics = EngineMetrics(core)
    return Engine(
        resolved=resolved,
        model=model,
        layout=layout,
        tokenizer=tokenizer,
        template=None if chat_template is None else ChatTemplate(chat_template, tokenizer, special_tokens),
        special_tokens=dict(special_tokens or {}),
        sampling_defaults=dict(sampling_defaults or {}),
        inputs=inputs,
        outputs=OutputProcessor(texts, metrics.observe, clock),
        core=core,
        metrics=metrics,
        profiler=profiler,
    )


def build_engine(
    asked: EngineConfig, progress: Progress | None = None, ops: Ops | None = None, fault: Fault | None = None
) -> Engine:
    """Checkpoint → decisions → model → cache → worker → executor → scheduler. Raises ConfigError and ModelError.

    `progress` hears of download and load. `ops` replaces the backend that is decided; `fault` is called before each
    half of a step, and what it raises is as if the device had raised it.
    """
    from headrace.load.checkpoint import open_checkpoint
    from headrace.load.rounding import round_weights
    from headrace.worker.hardware import measure_hardware

    template = _read_template(asked.chat_template)
    hardware = measure_hardware()
    checkpoint = open_checkpoint(asked.model, revision=asked.revision, tokenizer=asked.tokenizer, progress=progress)
    try:
        tokenizer = checkpoint.tokenizer
        model = replace(checkpoint.config, eos_token_ids=ends_of(checkpoint.config, tokenizer))
        resolved = resolve(asked, model, hardware)
        ops = ops or _make_ops(resolved)
        resolved, layout = _plan(resolved, model, checkpoint.weights, hardware, ops)
        if resolved.backend == "reference" and asked.backend in (None, "auto"):
            log.warning("running on the slow reference ops: the native kernels were not built (no C++ compiler)")
        defaults = sampling_defaults(asked.generation_config, checkpoint.generation)
        read = checkpoint.weights if progress is None else CountedWeights(checkpoint.weights, progress)
        weights = round_weights(read, resolved.quantization, model.vocab_size)
        executor, profiler = _load(asked, resolved, layout, model, weights, ops, fault)
    except MemoryError as error:
        raise EngineError(
            f"there is not enough memory ({error}): {hardware.memory_available_bytes / GIB:.2f} GiB are available; "
            "lower max_num_seqs, max_num_batched_tokens, max_model_len or kv_cache_memory_bytes"
        ) from error
    finally:
        checkpoint.close()  # weights are packed by now; where a backend keeps views instead, these keep the file mapped
    log.info("decided: %s; %d cache blocks", resolved, layout.num_blocks - 1)
    return assemble(
        resolved,
        model,
        layout,
        executor,
        tokenizer,
        template or checkpoint.chat_template,
        special_texts(tokenizer),
        defaults,
        profiler=profiler,
    )


def ends_of(model: ModelConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end a sequence: the checkpoint's, and the tokenizer's as far as logits can have them, for another
    model's tokenizer may know more tokens than this one."""
    ends = (*model.eos_token_ids, *(i for i in tokenizer.eos_token_ids if 0 <= i < model.vocab_size))
    return tuple(dict.fromkeys(ends))


def _plan(
    resolved: Resolved, model: ModelConfig, weights: Weights, hardware: Hardware, ops: Ops
) -> tuple[Resolved, CacheLayout]:
    """What the memory allows, known before a weight is read; ModelError where the weights are not the model's."""
    from headrace.load.dry_build import dry_build
    from headrace.load.rounding import round_weights
    from headrace.worker.memory import activation_bytes, fit_model_len, plan_cache

    rounded = round_weights(weights, resolved.quantization, model.vocab_size)
    built = dry_build(model, rounded, ops.dtype, ops.keeps_blocks, weights.file)
    specs = held_in(built.cache_specs, resolved.kv_cache_dtype)
    layout = plan_cache(resolved, specs, built.weight_bytes, activation_bytes(model, resolved.scheduler), hardware)
    return fit_model_len(resolved, layout), layout


def _num_positions(asked: EngineConfig, model: ModelConfig, resolved: Resolved) -> int:
    """For how many positions a model is built: those that the cache holds, but those that were asked for where they
    decide what its numbers are, for these do not depend on the machine's memory."""
    if model.rope.kind in LENGTH_DECIDES:
        return asked.max_model_len or model.max_position_embeddings
    return resolved.scheduler.max_model_len


def _load(
    asked: EngineConfig,
    resolved: Resolved,
    layout: CacheLayout,
    model: ModelConfig,
    weights: WeightSource,
    ops: Ops,
    fault: Fault | None,
) -> tuple[Executor, Profiler | None]:
    """The model with its caches behind an executor, and what times its ops."""
    from headrace.comm import SoloComm
    from headrace.executor.local import LocalExecutor, no_fault
    from headrace.models.registry import family
    from headrace.worker.memory import make_caches
    from headrace.worker.rows import Rows
    from headrace.worker.runner import Runner

    num_positions = _num_positions(asked, model, resolved)
    built = family(model.architecture).build(model, weights, ops, SoloComm(), num_positions)
    specs = held_in(built.cache_specs(), resolved.kv_cache_dtype)
    limits = resolved.scheduler
    rows = Rows(
        limits.max_num_seqs, limits.max_model_len, layout.block_size, limits.eos_token_ids, limits.num_drafts
    )
    caches = make_caches(ops, specs, layout)
    max_num_draws = limits.max_num_seqs * (1 + limits.num_drafts)
    model_in_steps = ops.compile(built, caches, limits.most_step_tokens, max_num_draws)
    runner = Runner(model_in_steps, ops, rows, caches, limits.most_step_tokens)
    return LocalExecutor(runner, fault or no_fault), model_in_steps.profiler


def _make_ops(resolved: Resolved) -> Ops:
    """The backend, which alone of all modules loads what it computes with."""
    if resolved.backend == "cpu":
        from headrace.ops.cpu import CpuOps

        return CpuOps(resolved.dtype, resolved.num_threads)
    return _make_reference(resolved)


def _make_reference(resolved: Resolved) -> Ops:
    """torch's pool reads how long its threads spin when it is loaded: briefly, for on a busy machine threads that spin
    for a core take it from the one they wait for (a tenth of the speed and less)."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    try:
        from headrace.ops.reference import ReferenceOps
    except ModuleNotFoundError as missing:
        raise EngineError(
            "the reference ops need torch, and there are no native kernels: install a C++ compiler and then headrace "
            "again, or headrace[torch]"
        ) from missing
    return ReferenceOps(resolved.dtype, resolved.num_threads)


def _read_template(option: str | None) -> str | None:
    """The text of a chat template: the option itself if it looks like one, else the file that it names."""
    if option is None or "{" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        name = Path(option).name
        raise ConfigError("chat_template", f"{name!r} is neither a template nor a readable file") from error


def special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """Special tokens by the names that chat templates use, as far as the tokenizer knows them."""
    ids = {"bos_token": tokenizer.bos_token_id, "eos_token": next(iter(tokenizer.eos_token_ids), None)}
    return {name: tokenizer.token_bytes(i).decode("utf-8", "replace") for name, i in ids.items() if i is not None}


def sampling_defaults(option: str, generation: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams that a checkpoint's generation_config sets; none with `vllm` or `headrace`."""
    if option not in GENERATION_CONFIGS:
        raise ConfigError("generation_config", f"must be one of {', '.join(GENERATION_CONFIGS)}, got {option!r}")
    if option != "auto":
        return {}
    return {
        field: generation[name] for name, field in GENERATION_FIELDS.items() if generation.get(name) is not None
    }
