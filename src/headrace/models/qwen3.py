"""Qwen3: Qwen2 with norms on the heads of q and k instead of biases (arXiv 2505.09388)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer
from headrace.models.qwen2 import qwen_windows


class Qwen3(Decoder):
    """Heads have a size of their own, whatever the width."""

    defaults = {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32_768}

    def read(self, entries: Entries) -> None:
        self.windows = qwen_windows(entries, self.config.num_layers)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.head_norm_attention(weights, window=self.windows[index])
        return self.pre_norm(weights, attention, self.gated_mlp(weights))
