"""Configurations of every family, small and with each feature in use."""

from __future__ import annotations

import functools
import random
from typing import Any

from tests.models import families
from tests.models.families import Saved

rng = random.Random(3)
PROMPTS = [[rng.randrange(101) for _ in range(n)] for n in (1, 4, 9, 23, 30)]
SLIDING, FULL = "sliding_attention", "full_attention"
TWO_ROPES = {
    FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    SLIDING: {"rope_type": "default", "rope_theta": 50.0},
}
GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 9}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("MistralForCausalLM", {"sliding_window": 5}),
    "mistral without a window": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2 tied, its window unused": ("Qwen2ForCausalLM", {"sliding_window": 5, "tie_word_embeddings": True}),
    "qwen3": (
        "Qwen3ForCausalLM",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3 with biases": ("Qwen3ForCausalLM", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "qwen3 moe, every other layer": (
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 12,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "head_dim": 16,
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 5, "sliding_window": 5}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, "attention_bias": True},
    ),
    "gemma2 without caps": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**GEMMA, "rope_parameters": TWO_ROPES, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "gemma3 by its pattern": (
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "rope_parameters": TWO_ROPES,
            "sliding_window_pattern": 3,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "attention_bias": True,
        },
    ),
    "phi3": (
        "Phi3ForCausalLM",
        {
            "sliding_window": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {"attention_bias": True}),
    "granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.5,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5, "attention_bias": True},
    ),
    "smollm3 by its interval": ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 2, "mlp_bias": True}),
    "gpt2": ("GPT2LMHeadModel", {"n_inner": 80}),
    "gpt2 scaled by layer": (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt2 unscaled": ("GPT2LMHeadModel", {"scale_attn_weights": False}),
    "pythia": ("GPTNeoXForCausalLM", {}),
    "pythia in sequence, without biases": (
        "GPTNeoXForCausalLM",
        {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True},
    ),
}


@functools.cache
def case(name: str) -> Saved:
    architecture, changes = CASES[name]
    return families.make(architecture, **changes)
