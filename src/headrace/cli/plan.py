"""What a model would take of this machine's memory, decided as an engine decides it, without reading a weight."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.load.checkpoint import Checkpoint
from headrace.words.cache_spec import held_in
from headrace.words.config import EngineConfig, Resolved, resolve
from headrace.words.errors import ConfigError, EngineError


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, tokens, and why it cannot be where it cannot."""

    backend: str
    dtype: str
    kv_cache_dtype: str
    num_threads: int
    max_model_len: int
    max_num_seqs: int
    weight_bytes: int
    step_bytes: int
    cache_bytes: int
    cache_tokens: int
    available_bytes: int
    problem: str | None = None

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.step_bytes + self.cache_bytes


def plan_memory(asked: EngineConfig, checkpoint: Checkpoint) -> MemoryPlan:
    """ConfigError for options that contradict the model, ModelError for weights that do not fit it."""
    from headrace.load.dry_build import dry_build
    from headrace.load.rounding import round_weights
    from headrace.worker.hardware import measure_hardware
    from headrace.worker.memory import activation_bytes, fit_model_len, plan_cache

    model, hardware = checkpoint.config, measure_hardware()
    resolved = resolve(asked, model, hardware)
    weights = round_weights(checkpoint.weights, resolved.quantization, model.vocab_size)
    built = dry_build(model, weights, resolved.dtype, keeps_blocks(resolved), checkpoint.weights.file)
    specs = held_in(built.cache_specs, resolved.kv_cache_dtype)
    step_bytes = activation_bytes(model, resolved.scheduler)
    cache_bytes = cache_tokens = 0
    problem = None
    try:
        layout = plan_cache(resolved, specs, built.weight_bytes, step_bytes, hardware)
        resolved = fit_model_len(resolved, layout)
        cache_bytes = layout.num_bytes
        cache_tokens = layout.capacity_tokens
    except (ConfigError, EngineError) as error:
        problem = str(error)
    return MemoryPlan(
        backend=resolved.backend,
        dtype=resolved.dtype,
        kv_cache_dtype=resolved.kv_cache_dtype,
        num_threads=resolved.num_threads,
        max_model_len=resolved.scheduler.max_model_len,
        max_num_seqs=resolved.scheduler.max_num_seqs,
        weight_bytes=built.weight_bytes,
        step_bytes=step_bytes,
        cache_bytes=cache_bytes,
        cache_tokens=cache_tokens,
        available_bytes=min(hardware.memory_limit_bytes, hardware.memory_available_bytes),
        problem=problem,
    )


def keeps_blocks(resolved: Resolved) -> bool:
    if resolved.backend != "cpu":
        return False
    from headrace.ops.cpu import model_ops

    return model_ops.keeps_blocks(resolved.dtype)
