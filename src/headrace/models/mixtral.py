"""Mixtral: Mistral with a mixture of experts in every layer (arXiv 2401.04088)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.mlp import SparseMLP
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer


class Mixtral(Decoder):
    """The weights of a token's experts always sum to one."""

    defaults = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    }

    def read(self, entries: Entries) -> None:
        self.window = entries.count_or_none("sliding_window", None)
        self.num_experts = entries.count("num_local_experts", 8)
        self.num_chosen = entries.count("num_experts_per_tok", 2, most=self.num_experts)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.attention(weights, qkv_bias=False, out_bias=False, window=self.window)
        return self.pre_norm(weights, attention, self.sparse_mlp(weights.at("block_sparse_moe.")))

    def sparse_mlp(self, weights: Weights) -> SparseMLP:
        hidden, inner, names = self.config.hidden_size, self.config.intermediate_size, ("w1", "w3", "w2")
        chosen = self.num_experts, self.num_chosen
        return SparseMLP(self.ops, weights, hidden, inner, self.activation, *chosen, renormalize=True, names=names)
