"""Gemma 3, text: norms on the heads of q and k in place of soft caps, and two rotary tables (arXiv 2503.19786)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.layers.attention import Attention, HeadNormAttention
from headrace.layers.entries import Entries
from headrace.layers.norm import UnitRMSNorm
from headrace.layers.rope_entries import rope_config
from headrace.layers.weights import Weights
from headrace.layers.windows import FULL, SLIDING, layer_types
from headrace.models.gemma2 import Gemma2
from headrace.ops.base import Floats


class Gemma3(Gemma2):
    """Five layers of six see a window and turn by a base of their own."""

    defaults = {**Gemma2.defaults, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0}
    soft_caps = (None, None)

    @classmethod
    def entries(cls, raw: Mapping[str, Any], file: str) -> Entries:
        """Where rotary numbers are given for each type of layer, those of full attention are the model's."""
        found = super().entries(raw, file)
        told = found.object("rope_parameters")
        return found.changed(rope_parameters=told.get(FULL)) if {FULL, SLIDING} & set(told) else found

    def read(self, entries: Entries) -> None:
        super().read(entries)
        # Configurations have the entry, but the model was made without.
        self.attention_cap = None
        raw = Entries(self.config.raw, self.config.file)
        told = raw.object("rope_parameters").get(SLIDING)
        base = raw.number("rope_local_base_freq", 10_000.0)
        local = Entries({"rope_parameters": told or {}, "rope_theta": base}, self.config.file)
        self.local_rope = rope_config(local, self.config.head_dim)

    def layer_types(self, entries: Entries) -> tuple[str, ...]:
        pattern = entries.count("sliding_window_pattern", 6)
        return layer_types(entries, self.config.num_layers, lambda i: (i + 1) % pattern != 0)

    def attention(self, weights: Weights, **changes: Any) -> Attention:
        within, eps = weights.at("self_attn."), self.config.norm_eps
        return HeadNormAttention.read_normed(self.ops, self.comm, within, self.shape(**changes), eps, UnitRMSNorm)

    def rotary_tables(self) -> Mapping[str, Floats]:
        return {FULL: self.rotary_table(self.config.rope), SLIDING: self.rotary_table(self.local_rope)}

    def kind(self, index: int) -> str:
        return self.types[index]
