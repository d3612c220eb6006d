"""The Llama family: Llama 2 and 3, SmolLM2 and whatever else calls itself LlamaForCausalLM (arXiv 2302.13971)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.comm import Comm
from headrace.layers.attention import Attention, AttentionShape
from headrace.layers.linear import RMSNorm
from headrace.layers.mlp import GatedMLP
from headrace.layers.rotary import rotary_table
from headrace.layers.weights import Weights, WeightSource
from headrace.ops.base import KVCache, Ops, Step, StepInputs, Tensor
from headrace.words.cache_spec import CacheSpec
from headrace.words.config import ModelConfig


class LlamaLayer:
    """Attention and a gated MLP, each behind a norm and beside a residual."""

    def __init__(self, ops: Ops, comm: Comm, config: ModelConfig, weights: Weights) -> None:
        self._ops = ops
        hidden, eps = config.hidden_size, config.norm_eps
        shape = AttentionShape(
            hidden,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
        )
        self.attention = Attention(ops, comm, weights.at("self_attn."), shape)
        self.mlp = GatedMLP(
            ops, comm, weights.at("mlp."), hidden, config.intermediate_size, config.hidden_act, config.mlp_bias
        )
        self.attention_norm = RMSNorm(ops, weights, "input_layernorm", hidden, eps)
        self.mlp_norm = RMSNorm(ops, weights, "post_attention_layernorm", hidden, eps)

    def __call__(self, x: Tensor, cache: KVCache, step: Step, angles: Tensor) -> Tensor:
        x = self._ops.add(x, self.attention(self.attention_norm(x), cache, step, angles))
        return self._ops.add(x, self.mlp(self.mlp_norm(x)))


class Llama:
    """See `headrace.models.base.Model`."""

    def __init__(self, ops: Ops, comm: Comm, config: ModelConfig, weights: Weights, max_model_len: int) -> None:
        self._ops = ops
        body = weights.at("model.")
        table = body.get("embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.embedding = ops.weight(table)
        self.layers = [LlamaLayer(ops, comm, config, body.at(f"layers.{i}.")) for i in range(config.num_layers)]
        self.norm = RMSNorm(ops, body, "norm", config.hidden_size, config.norm_eps)
        if config.tie_word_embeddings:
            self.head = self.embedding
        else:
            self.head = ops.weight(weights.get("lm_head.weight", config.vocab_size, config.hidden_size))
        self.angles = rotary_table(config.rope, config.head_dim, config.max_position_embeddings, max_model_len)
        ignored = ("rotary_emb.inv_freq", "lm_head.weight") if config.tie_word_embeddings else ("rotary_emb.inv_freq",)
        weights.check_all_read(ignored)
        self.weight_bytes = weights.num_bytes(ops.dtype)

    @classmethod
    def build(cls, config: ModelConfig, weights: WeightSource, ops: Ops, comm: Comm, max_model_len: int) -> Llama:
        return cls(ops, comm, config, Weights(weights), max_model_len)

    def cache_specs(self) -> tuple[CacheSpec | None, ...]:
        return tuple(layer.attention.cache_spec() for layer in self.layers)

    def forward(self, inputs: StepInputs, caches: Sequence[KVCache]) -> Tensor:
        step = self._ops.begin(inputs)
        angles = self._ops.angles(self.angles, step)
        x = self._ops.embed(inputs.token_ids, self.embedding)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, step, angles)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._ops.logits(hidden, self.head)
