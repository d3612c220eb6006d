"""Qwen3's mixtures of experts (arXiv 2505.09388)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.mlp import MLP, SparseMLP
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer


class Qwen3Moe(Decoder):
    """Every `decoder_sparse_step`th layer is sparse, unless `mlp_only_layers` names it."""

    defaults = {"num_key_value_heads": 4, "max_position_embeddings": 32_768}

    def read(self, entries: Entries) -> None:
        self.window = entries.count_or_none("sliding_window", 4096) if entries.flag("use_sliding_window") else None
        self.num_experts = entries.count("num_experts", entries.count("num_local_experts", 128))
        self.num_chosen = entries.count("num_experts_per_tok", 8, most=self.num_experts)
        self.inner = entries.count("moe_intermediate_size", 768)
        self.renormalize = entries.flag("norm_topk_prob")
        self.step = entries.count("decoder_sparse_step", 1)
        self.dense = entries.indices("mlp_only_layers")

    def is_sparse(self, index: int) -> bool:
        return index not in self.dense and (index + 1) % self.step == 0

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.head_norm_attention(weights, window=self.window)
        mlp: MLP = self.sparse_mlp(weights.at("mlp.")) if self.is_sparse(index) else self.gated_mlp(weights)
        return self.pre_norm(weights, attention, mlp)

    def sparse_mlp(self, weights: Weights) -> SparseMLP:
        chosen = self.num_experts, self.num_chosen, self.renormalize
        return SparseMLP(self.ops, weights, self.config.hidden_size, self.inner, self.activation, *chosen)
