"""Granite 3: Llama with factors on embeddings, scores, residuals and logits, as in arXiv 2203.03466."""

from __future__ import annotations

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.mlp import MLP
from headrace.layers.norm import Norm
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer, PreNormLayer
from headrace.ops.base import KVCache, Ops, Step, StepInputs, Tensor


class GraniteLayer(PreNormLayer):
    """What is added to the residual is scaled."""

    def __init__(
        self, ops: Ops, attention: Attention, mlp: MLP, residual_scale: float, attention_norm: Norm, mlp_norm: Norm
    ) -> None:
        super().__init__(ops, attention, mlp, attention_norm, mlp_norm)
        self.residual_scale = residual_scale

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        found = self.attention(self.attention_norm(x), cache, step, angles)
        x = self._ops.add(x, self._ops.scale(found, self.residual_scale))
        return self._ops.add(x, self._ops.scale(self.mlp(self.mlp_norm(x)), self.residual_scale))


class Granite(Decoder):
    """Four factors of its own, 1 where config.json is silent."""

    def read(self, entries: Entries) -> None:
        self.embedding_scale = entries.number("embedding_multiplier", 1.0)
        self.attention_scale = entries.number("attention_multiplier", 1.0)
        self.residual_scale = entries.number("residual_multiplier", 1.0)
        self.logit_scale = 1.0 / entries.number("logits_scaling", 1.0)

    def layer(self, index: int, weights: Weights) -> Layer:
        norms = [self.make_norm(weights, name) for name in ("input_layernorm", "post_attention_layernorm")]
        attention = self.attention(weights, scale=self.attention_scale)
        return GraniteLayer(self.ops, attention, self.gated_mlp(weights), self.residual_scale, *norms)

    def embed(self, inputs: StepInputs) -> Tensor:
        return self.ops.scale(super().embed(inputs), self.embedding_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ops.logits(hidden, self.head, scale=self.logit_scale)
