"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and on request windows in the upper layers (arXiv 2407.10671)."""

from __future__ import annotations

from headrace.layers.entries import Entries
from headrace.layers.weights import Weights
from headrace.layers.windows import layer_types, windows
from headrace.models.decoder import Decoder, Layer


def qwen_windows(entries: Entries, num_layers: int) -> tuple[int | None, ...]:
    """`sliding_window` counts only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    uses = entries.flag("use_sliding_window")
    size = entries.count_or_none("sliding_window", 4096) if uses else None
    first = entries.whole("max_window_layers", 28)
    return windows(layer_types(entries, num_layers, lambda i: i >= first), size)


class Qwen2(Decoder):
    """Biases on q, k and v are not asked for in config.json: they are always there."""

    defaults = {"max_position_embeddings": 32_768}

    def read(self, entries: Entries) -> None:
        self.windows = qwen_windows(entries, self.config.num_layers)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.attention(weights, qkv_bias=True, out_bias=False, window=self.windows[index])
        return self.pre_norm(weights, attention, self.gated_mlp(weights))
