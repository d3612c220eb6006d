"""GPT-NeoX and Pythia: attention and feed-forward layer side by side, layer norms, a share of each head rotated
(arXiv 2204.06745)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.linear import Linear, RowLinear
from headrace.layers.mlp import PlainMLP
from headrace.layers.norm import LayerNorm
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer, Places, PreNormLayer
from headrace.ops.base import KVCache, Step, Tensor


class ParallelLayer(PreNormLayer):
    """Both parts read the same residual."""

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        attended = self.attention(self.attention_norm(x), cache, step, angles)
        return self._ops.add(self._ops.add(self.mlp(self.mlp_norm(x)), attended), x)


class GPTNeoX(Decoder):
    """Plain multi-head attention and a plain feed-forward layer, beside each other unless told otherwise."""

    names: ClassVar[Mapping[str, str]] = {
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    }
    defaults = {
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "partial_rotary_factor": 0.25,
        "attention_bias": True,
    }
    norm_kind = LayerNorm
    places = Places("gpt_neox.", "embed_in.weight", "layers", "final_layer_norm", "embed_out.weight")
    ignored = (".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")

    def read(self, entries: Entries) -> None:
        self.is_parallel = entries.flag("use_parallel_residual", True)

    def layer(self, index: int, weights: Weights) -> Layer:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        up = Linear.read(self.ops, weights, ["mlp.dense_h_to_4h"], [inner], hidden, True)
        down = RowLinear.read(self.ops, self.comm, weights, "mlp.dense_4h_to_h", hidden, inner, True)
        mlp = PlainMLP(self.ops, self.activation, up, down)
        norms = [self.make_norm(weights, name) for name in ("input_layernorm", "post_attention_layernorm")]
        kind = ParallelLayer if self.is_parallel else PreNormLayer
        return kind(self.ops, self.fused_attention(weights.at("attention.")), mlp, *norms)

    def fused_attention(self, weights: Weights) -> Attention:
        shape, heads = self.shape(), self.config.num_heads
        hidden, has_bias = shape.hidden, shape.qkv_bias
        matrix = weights.get("query_key_value.weight", 3 * hidden, hidden)
        bias = weights.get("query_key_value.bias", 3 * hidden) if has_bias else None
        qkv = Linear(self.ops, by_part(matrix, heads), None if bias is None else by_part(bias, heads))
        out = RowLinear.read(self.ops, self.comm, weights, "dense", hidden, hidden, has_bias)
        return Attention(self.ops, shape, qkv, out)


def by_part(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows that are stored head by head, each head's q, k and v together → all of q, then k, then v."""
    parts = rows.reshape(heads, 3, -1, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(rows.shape)
