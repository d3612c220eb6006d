"""What all families here share: embedding, layers, norm and head over paged caches. A family says what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from headrace.comm import Comm
from headrace.layers.attention import Attention, AttentionShape, HeadNormAttention
from headrace.layers.entries import Entries
from headrace.layers.mlp import MLP, GatedMLP, activation
from headrace.layers.norm import Norm, RMSNorm
from headrace.layers.rope_entries import rope_config
from headrace.layers.rotary import rotary_table
from headrace.layers.weights import Weights, WeightSource
from headrace.layers.windows import FULL
from headrace.ops.base import Activation, Floats, KVCache, Ops, Step, StepInputs, Tensor
from headrace.words.cache_spec import CacheSpec
from headrace.words.config import ModelConfig, RopeConfig


class Layer(Protocol):
    attention: Attention

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor: ...


class NormedLayer:
    """Attention and a feed-forward layer, each with a norm; a subclass says in which order."""

    def __init__(self, ops: Ops, attention: Attention, mlp: MLP, attention_norm: Norm, mlp_norm: Norm) -> None:
        self._ops = ops
        self.attention = attention
        self.mlp = mlp
        self.attention_norm = attention_norm
        self.mlp_norm = mlp_norm


class PreNormLayer(NormedLayer):
    """Each is behind its norm and beside a residual."""

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor | None) -> Tensor:
        x = self._ops.add(x, self.attention(self.attention_norm(x), cache, step, angles))
        return self._ops.add(x, self.mlp(self.mlp_norm(x)))


class Places(NamedTuple):
    """Where a checkpoint keeps what every decoder has."""

    body: str = "model."
    embedding: str = "embed_tokens.weight"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head.weight"


class Decoder:
    """See `headrace.models.base.Model`. A family defines `layer`, and overrides what else is its own."""

    names: ClassVar[Mapping[str, str]] = {}
    """The family's own names for what Llama's config.json says, by Llama's names."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """What the family means where a config.json is silent, by Llama's names."""
    code: ClassVar[tuple[str, ...]] = ()
    """See `headrace.models.base.Model`."""
    norm_kind: ClassVar[type[Norm]] = RMSNorm
    places: ClassVar[Places] = Places()
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)
    """Ends of the names of tensors that hold nothing to be read."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, comm: Comm, max_model_len: int) -> None:
        self.ops = ops
        self.comm = comm
        self.config = config
        self.max_model_len = max_model_len
        self.activation: Activation = activation(config.hidden_act, config.file)
        self.read(self.entries(config.raw, config.file))
        places, body = self.places, weights.at(self.body(weights))
        self.embedding = ops.weight(body.matrix([places.embedding], [config.vocab_size], config.hidden_size))
        self.read_beside(body)
        self.layers = [self.layer(i, body.at(f"{places.layers}.{i}.")) for i in range(config.num_layers)]
        self.norm = self.make_norm(body, places.norm)
        self.head = self.embedding
        if not config.tie_word_embeddings:
            self.head = ops.weight(weights.matrix([places.head], [config.vocab_size], config.hidden_size))
        self.tables = self.rotary_tables()
        weights.check_all_read((*self.ignored, places.head) if config.tie_word_embeddings else self.ignored)
        self.weight_bytes = weights.num_bytes(ops.dtype)

    @classmethod
    def build(cls, config: ModelConfig, weights: WeightSource, ops: Ops, comm: Comm, max_model_len: int) -> Self:
        return cls(config, Weights(weights, keeps_blocks=ops.keeps_blocks), ops, comm, max_model_len)

    @classmethod
    def entries(cls, raw: Mapping[str, Any], file: str) -> Entries:
        return Entries(raw, file, cls.names, cls.defaults)

    @classmethod
    def rope(cls, entries: Entries, head_dim: int) -> RopeConfig:
        return rope_config(entries, head_dim)

    def read(self, entries: Entries) -> None:
        """Keeps what this family alone finds in config.json."""

    def body(self, weights: Weights) -> str:
        return self.places.body

    def read_beside(self, body: Weights) -> None:
        """Reads what this family has beside its layers."""

    def layer(self, index: int, weights: Weights) -> Layer:
        raise NotImplementedError

    def make_norm(self, weights: Weights, name: str) -> Norm:
        return self.norm_kind(self.ops, weights, name, self.config.hidden_size, self.config.norm_eps)

    def shape(self, **changes: Any) -> AttentionShape:
        """Of an attention layer, as the configuration has it but for `changes`."""
        config = self.config
        told = {"qkv_bias": config.attention_bias, "out_bias": config.attention_bias, **changes}
        return AttentionShape(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim, **told)

    def attention(self, weights: Weights, **changes: Any) -> Attention:
        return Attention.read(self.ops, self.comm, weights.at("self_attn."), self.shape(**changes))

    def head_norm_attention(
        self, weights: Weights, norm: type[RMSNorm] = RMSNorm, **changes: Any
    ) -> HeadNormAttention:
        within, eps = weights.at("self_attn."), self.config.norm_eps
        return HeadNormAttention.read_normed(self.ops, self.comm, within, self.shape(**changes), eps, norm)

    def gated_mlp(self, weights: Weights) -> GatedMLP:
        hidden, inner, has_bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        return GatedMLP.read(self.ops, self.comm, weights.at("mlp."), hidden, inner, self.activation, has_bias)

    def pre_norm(self, weights: Weights, attention: Attention, mlp: MLP) -> PreNormLayer:
        norms = [self.make_norm(weights, name) for name in ("input_layernorm", "post_attention_layernorm")]
        return PreNormLayer(self.ops, attention, mlp, *norms)

    def rotary_tables(self) -> Mapping[str, Floats]:
        """By a kind of layer; those without a table are not rotated."""
        return {FULL: self.rotary_table(self.config.rope)}

    def rotary_table(self, rope: RopeConfig) -> Floats:
        config = self.config
        return rotary_table(rope, config.head_dim, config.max_position_embeddings, self.max_model_len, config.file)

    def kind(self, index: int) -> str:
        """By which table a layer is rotated."""
        return FULL

    def cache_specs(self) -> tuple[CacheSpec | None, ...]:
        return tuple(layer.attention.cache_spec() for layer in self.layers)

    def embed(self, inputs: StepInputs) -> Tensor:
        return self.ops.embed(inputs.token_ids, self.embedding)

    def forward(self, inputs: StepInputs, caches: Sequence[KVCache]) -> Tensor:
        step = self.ops.begin(inputs)
        angles = {kind: self.ops.angles(table, step) for kind, table in self.tables.items()}
        x = self.embed(inputs)
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(x, cache, step, angles.get(self.kind(i)))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ops.logits(hidden, self.head)
