"""GPT-2: learned positions, layer norms, biases, and matrices stored the other way round (Radford and others, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from headrace.layers.attention import Attention
from headrace.layers.entries import Entries
from headrace.layers.linear import Linear, Matrix, RowLinear
from headrace.layers.mlp import PlainMLP
from headrace.layers.norm import LayerNorm
from headrace.layers.weights import Weights
from headrace.models.decoder import Decoder, Layer, Places, PreNormLayer
from headrace.ops.base import Floats, StepInputs, Tensor
from headrace.words.config import RopeConfig
from headrace.words.errors import ModelError


class GPT2(Decoder):
    """Plain multi-head attention and a plain feed-forward layer, each behind a norm."""

    names: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    defaults = {
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
        "tie_word_embeddings": True,
    }
    norm_kind = LayerNorm
    places = Places("transformer.", "wte.weight", "h", "ln_f", "lm_head.weight")
    ignored = (".attn.bias", ".attn.masked_bias")

    @classmethod
    def entries(cls, raw: Mapping[str, Any], file: str) -> Entries:
        """An inner width of null is four times the outer."""
        found = super().entries(raw, file)
        return replace(found, defaults={**cls.defaults, "intermediate_size": 4 * found.count("hidden_size")})

    @classmethod
    def rope(cls, entries: Entries, head_dim: int) -> RopeConfig:
        """Nothing is rotated, so that a head may have any number of dimensions."""
        return RopeConfig()

    def read(self, entries: Entries) -> None:
        self.is_scaled = entries.flag("scale_attn_weights", True)
        self.is_scaled_by_layer = entries.flag("scale_attn_by_inverse_layer_idx")
        if entries.flag("add_cross_attention"):
            raise ModelError(entries.file, "attends to another model's text (add_cross_attention), which is not built")

    def body(self, weights: Weights) -> str:
        """The oldest checkpoints have no prefix."""
        return "" if weights.has("wte.weight") else self.places.body

    def read_beside(self, body: Weights) -> None:
        shape = (self.config.max_position_embeddings, self.config.hidden_size)
        self.positions = self.ops.weight(body.get("wpe.weight", *shape))

    def layer(self, index: int, weights: Weights) -> Layer:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        shape = self.shape(scale=self.scale(index))
        qkv = Linear(self.ops, *turned(weights, "attn.c_attn", 3 * hidden, hidden))
        out = RowLinear(self.ops, self.comm, *turned(weights, "attn.c_proj", hidden, hidden))
        up = Linear(self.ops, *turned(weights, "mlp.c_fc", inner, hidden))
        down = RowLinear(self.ops, self.comm, *turned(weights, "mlp.c_proj", hidden, inner))
        mlp = PlainMLP(self.ops, self.activation, up, down)
        norms = [self.make_norm(weights, name) for name in ("ln_1", "ln_2")]
        return PreNormLayer(self.ops, Attention(self.ops, shape, qkv, out), mlp, *norms)

    def scale(self, index: int) -> float:
        scale = self.config.head_dim**-0.5 if self.is_scaled else 1.0
        return scale / (index + 1) if self.is_scaled_by_layer else scale

    def rotary_tables(self) -> Mapping[str, Floats]:
        return {}

    def embed(self, inputs: StepInputs) -> Tensor:
        return self.ops.add(super().embed(inputs), self.ops.embed(inputs.positions, self.positions))


def turned(weights: Weights, name: str, num_outputs: int, num_inputs: int) -> tuple[Matrix, NDArray[Any]]:
    """Weight [out, in] of what is stored as [in, out], and bias."""
    matrix = weights.matrix([f"{name}.weight"], [num_outputs], num_inputs, is_turned=True)
    return matrix, weights.get(f"{name}.bias", num_outputs)
