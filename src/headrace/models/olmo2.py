"""OLMo 2: Llama with norms behind its parts instead of before, and over the whole of q and k (arXiv 2501.00656)."""

from __future__ import annotations

from headrace.comm import Comm
from headrace.layers.attention import Attention, AttentionShape
from headrace.layers.linear import Linear, RowLinear
from headrace.layers.norm import RMSNorm
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer, NormedLayer
from headrace.ops.base import KVCache, Ops, Step, Tensor


class WideNormAttention(Attention):
    """q and k are normalized over all of their heads together, so each is a product of its own."""

    def __init__(self, ops: Ops, comm: Comm, weights: Weights, shape: AttentionShape, eps: float) -> None:
        query, key, value = (
            Linear.read(ops, weights, [name], [size], shape.hidden, shape.qkv_bias)
            for name, size in zip(("q_proj", "k_proj", "v_proj"), shape.sizes, strict=True)
        )
        out = RowLinear.read(ops, comm, weights, "o_proj", shape.hidden, shape.sizes[0], shape.out_bias)
        super().__init__(ops, shape, query, out)
        self.key, self.value = key, value
        self.q_norm = RMSNorm(ops, weights, "q_norm", shape.sizes[0], eps)
        self.k_norm = RMSNorm(ops, weights, "k_norm", shape.sizes[1], eps)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, split = self.shape, self._ops.split_heads
        (q,) = split(self.q_norm(self.qkv(x)), (shape.num_heads,), shape.head_dim)
        (k,) = split(self.k_norm(self.key(x)), (shape.num_kv_heads,), shape.head_dim)
        (v,) = split(self.value(x), (shape.num_kv_heads,), shape.head_dim)
        return q, k, v


class PostNormLayer(NormedLayer):
    """The residual is never normalized; what is added to it is."""

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        x = self._ops.add(x, self.attention_norm(self.attention(x, cache, step, angles)))
        return self._ops.add(x, self.mlp_norm(self.mlp(x)))


class Olmo2(Decoder):
    """Grouped-query attention and a gated feed-forward layer, each before a norm."""

    defaults = {"rms_norm_eps": 1e-5}

    def layer(self, index: int, weights: Weights) -> Layer:
        within, eps = weights.at("self_attn."), self.config.norm_eps
        attention = WideNormAttention(self.ops, self.comm, within, self.shape(), eps)
        norms = [self.make_norm(weights, f"post_{part}_layernorm") for part in ("attention", "feedforward")]
        return PostNormLayer(self.ops, attention, self.gated_mlp(weights), *norms)
