"""The Llama family: Llama 2 and 3, SmolLM2 and whatever else calls itself LlamaForCausalLM (arXiv 2302.13971)."""

from __future__ import annotations

from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer


class Llama(Decoder):
    """Grouped-query attention and a gated feed-forward layer, each behind a norm."""

    def layer(self, index: int, weights: Weights) -> Layer:
        return self.pre_norm(weights, self.attention(weights), self.gated_mlp(weights))
