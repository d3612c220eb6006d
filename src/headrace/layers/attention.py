"""Attention over a paged cache that is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.comm import Comm
from headrace.layers.linear import Linear, RowLinear
from headrace.layers.weights import Weights
from headrace.ops.base import KVCache, Ops, Step, Tensor
from headrace.words.cache_spec import PagedKV


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What an attention layer is like. `scale` None is 1 / sqrt(head_dim)."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    scale: float | None = None
    window: int | None = None
    soft_cap: float | None = None


class Attention:
    """q, k and v by whole heads, rotated by position, attended, projected: [T, hidden] → [T, hidden]"""

    def __init__(self, ops: Ops, comm: Comm, weights: Weights, shape: AttentionShape) -> None:
        self._ops = ops
        self.shape = shape
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        sizes = [heads * shape.head_dim for heads in self._heads]
        self.qkv = Linear(ops, weights, ["q_proj", "k_proj", "v_proj"], sizes, shape.hidden, shape.qkv_bias)
        self.out = RowLinear(ops, comm, weights, "o_proj", shape.hidden, sizes[0], shape.out_bias)
        self._scale = shape.scale if shape.scale is not None else shape.head_dim**-0.5

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor) -> Tensor:
        q, k, v = self._ops.split_heads(self.qkv(x), self._heads, self.shape.head_dim)
        q, k = self._ops.rotate(q, angles), self._ops.rotate(k, angles)
        shape = self.shape
        return self.out(self._ops.attend(q, k, v, cache, step, self._scale, shape.window, shape.soft_cap))

    def cache_spec(self) -> PagedKV:
        return PagedKV(self.shape.num_kv_heads, self.shape.head_dim, self._ops.dtype, self.shape.window)
