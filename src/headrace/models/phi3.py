"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another, and longrope (arXiv 2404.14219)."""

from __future__ import annotations

from typing import ClassVar

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.linear import Linear, RowLinear
from headrace.layers.mlp import GatedMLP
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer


class Phi3(Decoder):
    """A window of null is none."""

    defaults = {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }

    code: ClassVar[tuple[str, ...]] = ("Phi3Config", "Phi3ForCausalLM")

    def read(self, entries: Entries) -> None:
        self.window = entries.count_or_none("sliding_window", None)

    def layer(self, index: int, weights: Weights) -> Layer:
        return self.pre_norm(
            weights, self.fused_attention(weights.at("self_attn.")), self.fused_mlp(weights.at("mlp."))
        )

    def fused_attention(self, weights: Weights) -> Attention:
        shape = self.shape(qkv_bias=False, out_bias=False, window=self.window)
        qkv = Linear.read(self.ops, weights, ["qkv_proj"], [sum(shape.sizes)], shape.hidden, False)
        out = RowLinear.read(self.ops, self.comm, weights, "o_proj", shape.hidden, shape.sizes[0], False)
        return Attention(self.ops, shape, qkv, out)

    def fused_mlp(self, weights: Weights) -> GatedMLP:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        gate_up = Linear.read(self.ops, weights, ["gate_up_proj"], [2 * inner], hidden, False)
        down = RowLinear.read(self.ops, self.comm, weights, "down_proj", hidden, inner, False)
        return GatedMLP(self.ops, self.activation, gate_up, down)
