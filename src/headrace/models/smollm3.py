"""SmolLM3: Llama in which every fourth layer knows no positions (arXiv 2501.18795)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.weights import Weights
from headrace.layers.windows import FULL, layer_types, windows
from headrace.models.decoder import Decoder, Layer

UNROTATED = "no_rope"


class SmolLM3(Decoder):
    """`no_rope_layers` says 1 for a layer that is rotated, 0 for one that is not."""

    defaults = {
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    }

    def read(self, entries: Entries) -> None:
        num_layers, every = self.config.num_layers, entries.count("no_rope_layer_interval", 4)
        told = entries.list_of("no_rope_layers", (0, 1), num_layers)
        self.rotates = told or tuple(int((i + 1) % every != 0) for i in range(num_layers))
        uses = entries.flag("use_sliding_window")
        size = entries.count_or_none("sliding_window", None) if uses else None
        self.windows = windows(layer_types(entries, num_layers, lambda i: not self.rotates[i]), size)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.attention(weights, window=self.windows[index])
        return self.pre_norm(weights, attention, self.gated_mlp(weights))

    def kind(self, index: int) -> str:
        return FULL if self.rotates[index] else UNROTATED
