"""Gemma 3, text: norms on the heads of q and k in place of soft caps, and two rotary tables (arXiv 2503.19786)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.norm import UnitRMSNorm
from headrace.layers.rope_entries import rope_config
from headrace.layers.weights import Weights
from headrace.layers.windows import FULL, SLIDING, layer_types
from headrace.models.gemma2 import Gemma2
from headrace.ops.base import Floats
from headrace.words.config import RopeConfig


class Gemma3(Gemma2):
    """Five layers of six see a window and turn by a base of their own."""

    defaults = {**Gemma2.defaults, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0}
    soft_caps = (None, None)

    @classmethod
    def rope(cls, entries: Entries, head_dim: int) -> RopeConfig:
        told = entries.object("rope_parameters")
        return rope_config(entries.changed(rope_parameters=told.get(FULL)) if is_by_type(told) else entries, head_dim)

    @classmethod
    def local_rope(cls, entries: Entries, head_dim: int) -> RopeConfig:
        """That of layers with a window: as told for them, else plain with a base of its own."""
        told = entries.object("rope_parameters")
        base = entries.number("rope_local_base_freq", 10_000.0)
        numbers = {"rope_parameters": told.get(SLIDING) if is_by_type(told) else None, "rope_theta": base}
        return rope_config(Entries(numbers, entries.file), head_dim)

    def read(self, entries: Entries) -> None:
        super().read(entries)
        # Configurations have the entry, but the model was made without.
        self.attention_cap = None
        self.local = self.local_rope(entries, self.config.head_dim)

    def layer_types(self, entries: Entries) -> tuple[str, ...]:
        pattern = entries.count("sliding_window_pattern", 6)
        return layer_types(entries, self.config.num_layers, lambda i: (i + 1) % pattern != 0)

    def attention(self, weights: Weights, **changes: Any) -> Attention:
        return self.head_norm_attention(weights, UnitRMSNorm, **changes)

    def rotary_tables(self) -> Mapping[str, Floats]:
        return {FULL: self.rotary_table(self.config.rope), SLIDING: self.rotary_table(self.local)}

    def kind(self, index: int) -> str:
        return self.types[index]


def is_by_type(rope_parameters: Mapping[str, Any]) -> bool:
    """Whether they are given for each type of layer."""
    return FULL in rope_parameters or SLIDING in rope_parameters
