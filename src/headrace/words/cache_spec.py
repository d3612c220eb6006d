"""What a layer must remember between steps. Models declare these; the cache manager and the worker provide them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every token, in blocks: per block 2 × [block_size, num_heads, head_dim] of `dtype`, where
    kernels keep `head_dim` as a multiple of DIM_STEP. In int8 each vector [head_dim] has a scale of its own beside it,
    fp32."""

    num_heads: int
    head_dim: int
    dtype: str
    window: int | None = None
    """Attend only to the last `window` tokens; None means all."""

    def bytes_per_token(self) -> int:
        num_dims = -(-self.head_dim // DIM_STEP) * DIM_STEP
        return 2 * self.num_heads * (num_dims * ITEM_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0))


@dataclass(frozen=True, slots=True)
class PagedLatent:
    """One latent vector per token, in blocks: [block_size, dim] of `dtype` (multi-head latent attention)."""

    dim: int
    dtype: str

    def bytes_per_token(self) -> int:
        return self.dim * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class RowState:
    """State of fixed size per sequence, held in a state slot (linear attention, convolution tails)."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str


CacheSpec = PagedKV | PagedLatent | RowState
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
SCALE_BYTES = {"int8": 4}
DIM_STEP = 32
"""Counted for every backend, so that the same memory is the same number of blocks on all."""


def held_in(specs: Iterable[CacheSpec | None], dtype: str) -> tuple[CacheSpec | None, ...]:
    """The same caches with keys and values in `dtype`."""
    return tuple(replace(spec, dtype=dtype) if isinstance(spec, PagedKV) else spec for spec in specs)


def bytes_per_token(specs: tuple[CacheSpec | None, ...]) -> int:
    """Bytes that one token takes in all paged caches of a model."""
    return sum(spec.bytes_per_token() for spec in specs if isinstance(spec, PagedKV | PagedLatent))
