"""Gemma 2, text: soft caps, windows in every other layer, a norm before and behind each part (arXiv 2408.00118)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.mlp import GatedMLP
from headrace.layers.norm import Norm, UnitRMSNorm
from headrace.layers.weights import Weights
from headrace.layers.windows import layer_types, windows
from headrace.models.decoder import Decoder, Layer
from headrace.ops.base import KVCache, Ops, Step, StepInputs, Tensor
from headrace.ops.bfloat16 import to_bfloat16, to_float32
from headrace.words.errors import ModelError


class GemmaLayer:
    """What attention and the feed-forward layer give is normalized once more before it is added."""

    def __init__(self, ops: Ops, attention: Attention, mlp: GatedMLP, norms: list[Norm]) -> None:
        self._ops = ops
        self.attention = attention
        self.mlp = mlp
        self.before_attention, self.behind_attention, self.before_mlp, self.behind_mlp = norms

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        found = self.attention(self.before_attention(x), cache, step, angles)
        x = self._ops.add(x, self.behind_attention(found))
        return self._ops.add(x, self.behind_mlp(self.mlp(self.before_mlp(x))))


NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class Gemma2(Decoder):
    """Norm weights are stored less one, and embeddings are scaled by the root of the width."""

    norm_kind = UnitRMSNorm
    names: ClassVar[Mapping[str, str]] = {"hidden_act": "hidden_activation"}
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    soft_caps: ClassVar[tuple[float | None, float | None]] = (50.0, 30.0)
    """Of attention's scores and of logits, where config.json is silent."""

    def read(self, entries: Entries) -> None:
        if entries.flag("use_bidirectional_attention"):
            raise ModelError(entries.file, "attends to later tokens too (use_bidirectional_attention), not built")
        self.attention_cap = entries.number_or_none("attn_logit_softcapping", self.soft_caps[0])
        self.logit_cap = entries.number_or_none("final_logit_softcapping", self.soft_caps[1])
        self.scale = entries.number("query_pre_attn_scalar", 256) ** -0.5
        self.types = self.layer_types(entries)
        self.windows = windows(self.types, entries.count_or_none("sliding_window", 4096))
        self.embedding_scale = rounded(self.config.hidden_size**0.5, self.ops.dtype)

    def layer_types(self, entries: Entries) -> tuple[str, ...]:
        return layer_types(entries, self.config.num_layers, lambda i: i % 2 == 0)

    def layer(self, index: int, weights: Weights) -> Layer:
        attention = self.attention(weights, scale=self.scale, window=self.windows[index], soft_cap=self.attention_cap)
        norms = [self.make_norm(weights, name) for name in NORMS]
        return GemmaLayer(self.ops, attention, self.gated_mlp(weights), norms)

    def embed(self, inputs: StepInputs) -> Tensor:
        return self.ops.scale(super().embed(inputs), self.embedding_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ops.logits(hidden, self.head, soft_cap=self.logit_cap)


def rounded(value: float, dtype: str) -> float:
    """As the models were trained: a factor in the precision of what it multiplies."""
    exact = np.array([value], np.float32)
    return float((to_float32(to_bfloat16(exact)) if dtype == "bfloat16" else exact)[0])
