"""How much memory there is, how much a step takes, and how many cache blocks the rest is good for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.ops.base import KVCache, Ops
from headrace.words.cache_spec import CacheSpec, PagedKV, bytes_per_token
from headrace.words.config import CPU_CACHE_CAP_BYTES, GIB, Hardware, ModelConfig, Resolved, SchedulerConfig
from headrace.words.errors import ConfigError, EngineError, UnsupportedError
from headrace.words.log import get_logger
from headrace.words.plan import CacheLayout
from headrace.worker.scores import TILE

log = get_logger(__name__)
FLOAT_BYTES = 4
NULL_BLOCKS = 1


def block_bytes(specs: Sequence[CacheSpec | None], block_size: int) -> int:
    """Bytes of one block in all paged caches together."""
    return block_size * bytes_per_token(tuple(specs))


def activation_bytes(model: ModelConfig, scheduler: SchedulerConfig) -> int:
    """Peak of a step beside weights and cache, from shapes: the widest layer over a full token budget, the scores of
    one chunk against a context as long, and the logits of every row and its drafts, copied once for raw
    log-probabilities."""
    num_tokens = scheduler.most_step_tokens
    num_keys = min(scheduler.max_model_len, num_tokens)
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    width = 3 * model.hidden_size + max(2 * heads, 3 * model.intermediate_size, _experts_width(model))
    scores = 2 * model.num_heads * num_keys * min(num_tokens, num_keys)
    logits = 2 * max(scheduler.max_num_seqs * (1 + scheduler.num_drafts), TILE) * model.vocab_size
    return FLOAT_BYTES * (num_tokens * width + scores + logits)


def _experts_width(model: ModelConfig) -> int:
    """What a token takes in a sparse layer: its input and its output by each of its experts, and what lies between."""
    inner = model.raw.get("moe_intermediate_size") or model.intermediate_size
    return (model.raw.get("num_experts_per_tok") or 0) * (2 * model.hidden_size + 3 * inner)


def plan_cache(
    resolved: Resolved,
    specs: Sequence[CacheSpec | None],
    weight_bytes: int,
    peak_bytes: int,
    hardware: Hardware,
) -> CacheLayout:
    """Blocks for the cache, the null block among them; `peak_bytes` is what a step takes beside weights and cache.

    Without `kv_cache_memory_bytes`: as much as all rows at full length can use, at most 4 GiB, at most what the memory
    share leaves. Raises ConfigError or EngineError when not even one usable block fits.
    """
    size = resolved.block_size
    per_block = block_bytes(specs, size)
    _check_asked_bytes(resolved, per_block, hardware)
    if resolved.num_blocks is not None:
        return CacheLayout(resolved.num_blocks + NULL_BLOCKS, size, per_block)
    useful = resolved.scheduler.max_num_seqs * -(-resolved.scheduler.max_model_len // size) + NULL_BLOCKS
    if per_block == 0:
        return CacheLayout(useful, size, per_block)
    least = (1 + NULL_BLOCKS) * per_block
    if (given := resolved.kv_cache_memory_bytes) is not None:
        if given < least:
            raise ConfigError(
                "kv_cache_memory_bytes",
                f"the smallest cache takes {least} bytes ({_gib(least)}), got {given} ({_gib(given)}); raise it",
            )
        return CacheLayout(given // per_block, size, per_block)
    present = min(hardware.memory_limit_bytes, hardware.memory_available_bytes)
    free = int(resolved.memory_share * present) - weight_bytes - peak_bytes
    if free < least:
        raise EngineError(
            f"the smallest cache takes {_gib(least)}; of {_gib(present)} of memory, gpu_memory_utilization "
            f"{resolved.memory_share} leaves {_gib(max(free, 0))} beside {_gib(weight_bytes)} of weights and "
            f"{_gib(peak_bytes)} for a step; raise gpu_memory_utilization, lower max_num_batched_tokens or "
            "max_num_seqs, or set kv_cache_memory_bytes"
        )
    return CacheLayout(min(useful, max(CPU_CACHE_CAP_BYTES, least) // per_block, free // per_block), size, per_block)


def _check_asked_bytes(resolved: Resolved, per_block: int, hardware: Hardware) -> None:
    """ConfigError for a cache that was asked for and is larger than all memory."""
    limit = hardware.memory_limit_bytes
    for name, num_bytes in (
        ("num_gpu_blocks_override", (resolved.num_blocks or 0) * per_block),
        ("kv_cache_memory_bytes", resolved.kv_cache_memory_bytes or 0),
    ):
        if num_bytes > limit:
            raise ConfigError(
                name,
                f"asks for a cache of {_gib(num_bytes)} in blocks of {resolved.block_size} tokens, and there are "
                f"{_gib(limit)} of memory; lower it",
            )


def fit_model_len(resolved: Resolved, layout: CacheLayout) -> Resolved:
    """max_model_len as the cache can hold it for one sequence: shrunk with a warning if nobody asked for a length,
    a ConfigError with both numbers if somebody did."""
    wanted, capacity = resolved.scheduler.max_model_len, layout.capacity_tokens
    if wanted <= capacity:
        return resolved
    if resolved.max_model_len_is_explicit:
        raise ConfigError(
            "max_model_len",
            f"the cache holds {capacity} tokens ({layout.num_blocks - NULL_BLOCKS} blocks of {layout.block_size}), "
            f"got {wanted}; lower it, or raise kv_cache_memory_bytes",
        )
    log.warning("max_model_len shrinks from %d to %d tokens: the cache holds no more", wanted, capacity)
    return replace(resolved, scheduler=replace(resolved.scheduler, max_model_len=capacity))


def make_caches(ops: Ops, specs: Iterable[CacheSpec | None], layout: CacheLayout) -> list[KVCache | None]:
    """One zeroed cache per layer that declares one."""
    specs = list(specs)
    paged = [_paged(spec) for spec in specs if spec is not None]
    made = iter(ops.kv_caches(layout.num_blocks, layout.block_size, paged))
    return [None if spec is None else next(made) for spec in specs]


def _paged(spec: CacheSpec) -> PagedKV:
    if not isinstance(spec, PagedKV):
        raise UnsupportedError(f"a layer that remembers a {type(spec).__name__} cannot run yet")
    return spec


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
