"""Attention over a paged cache that is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.comm import Comm
from headrace.layers.linear import Linear, RowLinear
from headrace.layers.norm import RMSNorm
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

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Widths of q, k and v."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim


class Attention:
    """q, k and v by whole heads, rotated by position, attended, projected: [T, hidden] → [T, hidden]"""

    def __init__(self, ops: Ops, shape: AttentionShape, qkv: Linear, out: RowLinear) -> None:
        self._ops = ops
        self.shape = shape
        self.qkv = qkv
        self.out = out
        self._scale = shape.scale if shape.scale is not None else shape.head_dim**-0.5

    @classmethod
    def read(cls, ops: Ops, comm: Comm, weights: Weights, shape: AttentionShape) -> Attention:
        return cls(ops, shape, *read_projections(ops, comm, weights, shape))

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        """Without angles nothing is rotated."""
        q, k, v = self.heads(x)
        if angles is not None:
            q, k = self._ops.rotate(q, angles), self._ops.rotate(k, angles)
        shape = self.shape
        return self.out(self._ops.attend(q, k, v, cache, step, self._scale, shape.window, shape.soft_cap))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, hidden] → q [T, heads, dim], k and v [T, kv_heads, dim]"""
        shape = self.shape
        sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        q, k, v = self._ops.split_heads(self.qkv(x), sizes, shape.head_dim)
        return q, k, v

    def cache_spec(self) -> PagedKV:
        return PagedKV(self.shape.num_kv_heads, self.shape.head_dim, self._ops.dtype, self.shape.window)


class HeadNormAttention(Attention):
    """Each head of q and k is normalized before it is rotated (arXiv 2302.05442)."""

    def __init__(
        self, ops: Ops, shape: AttentionShape, qkv: Linear, out: RowLinear, q_norm: RMSNorm, k_norm: RMSNorm
    ) -> None:
        super().__init__(ops, shape, qkv, out)
        self.q_norm = q_norm
        self.k_norm = k_norm

    @classmethod
    def read_normed(
        cls, ops: Ops, comm: Comm, weights: Weights, shape: AttentionShape, eps: float, norm: type[RMSNorm] = RMSNorm
    ) -> HeadNormAttention:
        qkv, out = read_projections(ops, comm, weights, shape)
        q_norm, k_norm = (norm(ops, weights, f"{x}_norm", shape.head_dim, eps) for x in ("q", "k"))
        return cls(ops, shape, qkv, out, q_norm, k_norm)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return self.q_norm(q), self.k_norm(k), v


def read_projections(ops: Ops, comm: Comm, weights: Weights, shape: AttentionShape) -> tuple[Linear, RowLinear]:
    names = ["q_proj", "k_proj", "v_proj"]
    qkv = Linear.read(ops, weights, names, shape.sizes, shape.hidden, shape.qkv_bias)
    return qkv, RowLinear.read(ops, comm, weights, "o_proj", shape.hidden, shape.sizes[0], shape.out_bias)
