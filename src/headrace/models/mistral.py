"""Mistral: Llama with a window over the last tokens (arXiv 2310.06825)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer


class Mistral(Decoder):
    """A window of null is none."""

    defaults = {"num_key_value_heads": 8, "max_position_embeddings": 131_072}

    def read(self, entries: Entries) -> None:
        self.window = entries.count_or_none("sliding_window", 4096)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.attention(weights, qkv_bias=False, out_bias=False, window=self.window)
        return self.pre_norm(weights, attention, self.gated_mlp(weights))
