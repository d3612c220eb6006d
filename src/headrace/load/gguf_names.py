"""How GGUF keeps each family: names of its tensors and Hugging Face's, and how their values differ.

The names are those of the format's own list; what a converter does to values is undone here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError, brief

Array = NDArray[Any]
Shape = tuple[int, ...]
PART = re.compile(r"blk\.(\d+)\.(\w+?)(?:\.(\d+))?\.(weight|bias)")
MAX_EXPERTS = 4096
ONE_OF = "{}"
"""Stands for an expert's number in Hugging Face's name of what GGUF stacks."""


class Turn(NamedTuple):
    """From GGUF's values to Hugging Face's; `shape` says what becomes of the shape."""

    values: Callable[[Array, ModelConfig], Array]
    shape: Callable[[Shape], Shape] = lambda shape: shape
    moves_rows: bool = False
    """Whether it does nothing but put rows in another order."""


def half_split(weight: Array, heads: int) -> Array:
    """Llama's GGUF rows of q and k have rotary pairs side by side; models rotate dimension i with i + dim / 2."""
    if weight.shape[0] % (2 * heads):
        raise ModelError("checkpoint", f"q or k has {weight.shape[0]} rows for {heads} heads of an even size")
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def by_head(rows: Array, heads: int) -> Array:
    """All of q, then k, then v → head by head, each head's q, k and v together."""
    if rows.shape[0] % (3 * heads):
        raise ModelError("checkpoint", f"q, k and v have {rows.shape[0]} rows for {heads} heads")
    parts = rows.reshape(3, heads, -1, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(rows.shape)


PAIRS_OF_Q = Turn(lambda weight, config: half_split(weight, config.num_heads), moves_rows=True)
PAIRS_OF_K = Turn(lambda weight, config: half_split(weight, config.num_kv_heads), moves_rows=True)
LESS_ONE = Turn(lambda weight, config: weight - np.float32(1))
TRANSPOSED = Turn(lambda weight, config: weight.T, lambda shape: shape[::-1])
HEAD_BY_HEAD = Turn(lambda weight, config: by_head(weight, config.num_heads), moves_rows=True)
PAIRED = {"attn_q": PAIRS_OF_Q, "attn_k": PAIRS_OF_K}

ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
FEED_FORWARD = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PLAIN = {**ATTENTION, **FEED_FORWARD, **PRE_NORMS}
MIXTRAL = {
    **ATTENTION,
    **PRE_NORMS,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
QWEN_MOE = {
    **PLAIN,
    **HEAD_NORMS,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI3 = {
    **PRE_NORMS,
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
OLMO2 = {
    **ATTENTION,
    **FEED_FORWARD,
    **HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GPT2 = {
    "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
GPT_NEOX = {
    **PRE_NORMS,
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GPT2_OUTER = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
NEOX_OUTER = {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"}
GRANITE_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
WINDOW = {"attention.sliding_window": "sliding_window"}
"""A window of 0 is none."""


@dataclass(frozen=True)
class Layout:
    """One family: `parts` and `outer` are GGUF's names and Hugging Face's, `turns` by GGUF's names what values need,
    `entries` metadata of the family's own with config.json's words, `fixed` what is so without being said."""

    architecture: str
    parts: Mapping[str, str]
    outer: Mapping[str, str] = field(default_factory=lambda: MODEL)
    layers: str = "model.layers"
    turns: Mapping[str, Turn] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_paired(self) -> bool:
        """Whether q and k have rotary pairs side by side."""
        return "attn_q" in self.turns

    def names(self, name: str, shape: Shape, file: str) -> Iterator[tuple[str, int | None]]:
        """Hugging Face's name of a tensor, or one for each expert that is stacked in it, with its number."""
        outer, _, kind = name.rpartition(".")
        if outer in self.outer and kind in ("weight", "bias"):
            yield f"{self.outer[outer]}.{kind}", None
            return
        found = PART.fullmatch(name)
        layer, part, expert, kind = found.groups() if found else (None, "", None, "")
        ours = self.parts.get(part if expert is None else f"{part}_exps")
        if ours is None or (expert is not None and ONE_OF not in ours):
            raise ModelError(file, f"the tensor {brief(name)} is no part of a {self.architecture}")
        full = f"{self.layers}.{layer}.{ours}.{kind}"
        if ONE_OF not in full:
            yield full, None
        elif expert is not None:
            yield full.replace(ONE_OF, expert), None
        elif shape[0] > MAX_EXPERTS:
            raise ModelError(file, f"the tensor {brief(name)} is of {shape[0]} experts, at most {MAX_EXPERTS} are read")
        else:
            yield from ((full.replace(ONE_OF, str(i)), i) for i in range(shape[0]))

    def turn(self, name: str) -> Turn | None:
        found = PART.fullmatch(name)
        return self.turns.get(found[2] if found else name.rpartition(".")[0])


def gemma(architecture: str, norms: Mapping[str, str], **entries: str) -> Layout:
    turns = dict.fromkeys((*norms, "output_norm"), LESS_ONE)
    parts = {**ATTENTION, **FEED_FORWARD, **norms}
    return Layout(architecture, parts, turns=turns, entries={**CAPS, **WINDOW, **entries})


LAYOUTS = {
    "llama": Layout("LlamaForCausalLM", PLAIN, turns=PAIRED),
    "mistral": Layout("MistralForCausalLM", PLAIN, turns=PAIRED, entries=WINDOW),
    "mixtral": Layout(
        "MixtralForCausalLM",
        MIXTRAL,
        turns=PAIRED,
        entries={**WINDOW, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
    "qwen2": Layout("Qwen2ForCausalLM", PLAIN),
    "qwen3": Layout("Qwen3ForCausalLM", {**PLAIN, **HEAD_NORMS}),
    "qwen3moe": Layout(
        "Qwen3MoeForCausalLM",
        QWEN_MOE,
        entries={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        fixed={"norm_topk_prob": True},
    ),
    "gemma2": gemma("Gemma2ForCausalLM", GEMMA_NORMS),
    "gemma3": gemma("Gemma3ForCausalLM", {**GEMMA_NORMS, **HEAD_NORMS}),
    "phi3": Layout("Phi3ForCausalLM", PHI3, entries=WINDOW),
    "granite": Layout("GraniteForCausalLM", PLAIN, turns=PAIRED, entries=GRANITE_FACTORS),
    "olmo2": Layout("Olmo2ForCausalLM", OLMO2),
    "smollm3": Layout("SmolLM3ForCausalLM", PLAIN, turns=PAIRED),
    "gpt2": Layout(
        "GPT2LMHeadModel",
        GPT2,
        GPT2_OUTER,
        "transformer.h",
        dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), TRANSPOSED),
    ),
    "gptneox": Layout(
        "GPTNeoXForCausalLM",
        GPT_NEOX,
        NEOX_OUTER,
        "gpt_neox.layers",
        {"attn_qkv": HEAD_BY_HEAD},
        {"use_parallel_residual": "use_parallel_residual"},
    ),
}
"""By `general.architecture`; mistral and mixtral are llamas there, with a window and with experts."""
INNER = ("mistral", "mixtral")
"""No file calls itself so."""
