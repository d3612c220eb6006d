"""Whatever a family's config.json can say moves its logits, is refused, or is known to be for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.models.cases import CASES, FULL, PROMPTS, SLIDING, TWO_ROPES, case
from tests.models.driver import Driver

from headrace.words.errors import ModelError

REFUSED = object()
"""A change after which the tensors no longer fit."""
INERT = {
    "of what trains": {
        *("initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout"),
        *("classifier_dropout", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    },
    "of the files": {"architectures", "model_type", "transformers_version", "dtype", "use_cache", "is_decoder"},
    "of other tasks": {
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        "summary_use_proj",
    },
    "of the tokenizer": {"bos_token_id", "eos_token_id", "pad_token_id"},
    "of accuracy only": {"reorder_and_upcast_attn"},
    "limits of the engine": {"max_position_embeddings", "original_max_position_embeddings"},
    "outvoted by lists": {
        *("_sliding_window_pattern", "sliding_window_pattern", "no_rope_layer_interval", "max_window_layers"),
    },
}
Changes = Mapping[str, tuple[str, Any]]
"""By entry: a case, and another value or REFUSED with that value."""


def sizes(name: str, **values: int) -> Changes:
    return {entry: (name, (REFUSED, value)) for entry, value in values.items()}


def common(name: str) -> Changes:
    """What Llama's config.json says too."""
    return {
        **sizes(name, vocab_size=100, hidden_size=60, intermediate_size=79, num_hidden_layers=2),
        **sizes(name, num_attention_heads=12, num_key_value_heads=3),
        "rms_norm_eps": (name, 1e-6),
        "rope_parameters": (name, {"rope_type": "default", "rope_theta": 50_000.0}),
        "hidden_act": (name, "relu"),
        "tie_word_embeddings": (name, True),
    }


UNUSED_BY_GEMMA3 = "attn_logit_softcapping"
GEMMA2: Changes = {
    **{entry: change for entry, change in common("gemma2").items() if entry != "hidden_act"},
    **sizes("gemma2", head_dim=8),
    "hidden_activation": ("gemma2", "relu"),
    "tie_word_embeddings": ("gemma2", (REFUSED, False)),
    "attention_bias": ("gemma2", False),
    "query_pre_attn_scalar": ("gemma2", 16),
    "sliding_window": ("gemma2", 4),
    "layer_types": ("gemma2", [FULL, SLIDING, FULL]),
    "attn_logit_softcapping": ("gemma2", None),
    "final_logit_softcapping": ("gemma2", None),
    "use_bidirectional_attention": ("gemma2", (REFUSED, True)),
}
FEATURES: dict[str, Changes] = {
    "MistralForCausalLM": {**common("mistral"), **sizes("mistral", head_dim=12), "sliding_window": ("mistral", None)},
    "Qwen2ForCausalLM": {
        **common("qwen2"),
        "use_sliding_window": ("qwen2", False),
        "sliding_window": ("qwen2", 4),
        "layer_types": ("qwen2", [SLIDING, FULL, FULL]),
    },
    "Qwen3ForCausalLM": {
        **common("qwen3"),
        **sizes("qwen3", head_dim=8),
        "attention_bias": ("qwen3 with biases", False),
        "use_sliding_window": ("qwen3", False),
        "sliding_window": ("qwen3", 4),
        "layer_types": ("qwen3", [SLIDING, FULL, FULL]),
    },
    "Qwen3MoeForCausalLM": {
        **common("qwen3 moe"),
        **sizes("qwen3 moe", num_local_experts=6, moe_intermediate_size=15, decoder_sparse_step=2),
        **sizes("qwen3 moe, every other layer", head_dim=8),
        "mlp_only_layers": ("qwen3 moe", (REFUSED, [0])),
        "attention_bias": ("qwen3 moe, every other layer", False),
        "num_experts_per_tok": ("qwen3 moe", 1),
        "norm_topk_prob": ("qwen3 moe", False),
        "use_sliding_window": ("qwen3 moe", False),
        "sliding_window": ("qwen3 moe", 4),
    },
    "MixtralForCausalLM": {
        **common("mixtral"),
        **sizes("mixtral", head_dim=12, num_local_experts=6),
        "num_experts_per_tok": ("mixtral", 3),
        "sliding_window": ("mixtral", None),
    },
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": {
        **{entry: ("gemma3", value) for entry, (_, value) in GEMMA2.items() if entry != UNUSED_BY_GEMMA3},
        "rope_parameters": ("gemma3", {**TWO_ROPES, FULL: {"rope_type": "default", "rope_theta": 500.0}}),
        "attention_bias": ("gemma3 by its pattern", False),
        "final_logit_softcapping": ("gemma3 by its pattern", None),
    },
    "Phi3ForCausalLM": {
        **common("phi3"),
        "rope_parameters": ("phi3", {"rope_theta": 500.0, "partial_rotary_factor": 1.0}),
        "sliding_window": ("phi3", None),
    },
    "Olmo2ForCausalLM": {**common("olmo2"), "attention_bias": ("olmo2", False)},
    "GraniteForCausalLM": {
        **common("granite"),
        "attention_bias": ("granite", False),
        "mlp_bias": ("granite", False),
        "embedding_multiplier": ("granite", 1.0),
        "attention_multiplier": ("granite", 1.0),
        "residual_multiplier": ("granite", 1.0),
        "logits_scaling": ("granite", 1.0),
    },
    "SmolLM3ForCausalLM": {
        **common("smollm3"),
        "tie_word_embeddings": ("smollm3", (REFUSED, False)),
        "attention_bias": ("smollm3", False),
        "mlp_bias": ("smollm3 by its interval", False),
        "no_rope_layers": ("smollm3", [1, 1, 1]),
        "use_sliding_window": ("smollm3", False),
        "sliding_window": ("smollm3", 4),
        "layer_types": ("smollm3", [SLIDING, FULL, FULL]),
    },
    "GPT2LMHeadModel": {
        **sizes("gpt2", vocab_size=100, n_embd=60, n_inner=79, n_layer=2, n_positions=65),
        "n_head": ("gpt2", 3),
        "layer_norm_epsilon": ("gpt2", 1e-6),
        "activation_function": ("gpt2", "relu"),
        "tie_word_embeddings": ("gpt2 scaled by layer", True),
        "scale_attn_weights": ("gpt2 unscaled", True),
        "scale_attn_by_inverse_layer_idx": ("gpt2 scaled by layer", False),
        "add_cross_attention": ("gpt2", (REFUSED, True)),
    },
    "GPTNeoXForCausalLM": {
        **sizes("pythia", vocab_size=100, hidden_size=60, intermediate_size=79, num_hidden_layers=2),
        "num_attention_heads": ("pythia", 3),
        "layer_norm_eps": ("pythia", 1e-6),
        "hidden_act": ("pythia", "relu"),
        "tie_word_embeddings": ("pythia", True),
        "attention_bias": ("pythia", False),
        "use_parallel_residual": ("pythia", False),
        "rope_parameters": ("pythia", {"rope_theta": 500.0, "partial_rotary_factor": 1.0}),
    },
}
KNOWN = frozenset().union(*INERT.values())
ALL = [(architecture, entry) for architecture, changes in FEATURES.items() for entry in changes]


@pytest.mark.parametrize(("architecture", "entry"), ALL)
def test_each_entry_moves_logits_or_no_longer_fits(architecture, entry):
    name, change = FEATURES[architecture][entry]
    made = case(name)
    if isinstance(change, tuple) and change[0] is REFUSED:
        with pytest.raises(ModelError):
            Driver(made.config(**{entry: change[1]}), made.arrays)
        return
    arrays = {n: a for n, a in made.arrays.items() if not is_left_out(n, entry, change)}
    without = Driver(made.config(**{entry: change}), arrays).run(PROMPTS)
    with_it = Driver(made.config(), made.arrays).run(PROMPTS)
    assert max(np.abs(a - b).max() for a, b in zip(with_it, without, strict=True)) > 1e-2


def is_left_out(tensor: str, entry: str, value: Any) -> bool:
    """Biases that a configuration denies."""
    part = {"attention_bias": ("self_attn", ".attention."), "mlp_bias": (".mlp.",)}.get(entry, ())
    return value is False and tensor.endswith("bias") and any(p in tensor for p in part)


@pytest.mark.parametrize("name", CASES)
def test_no_entry_that_transformers_writes_is_passed_over(name):
    passed_over = set(case(name).raw) - set(FEATURES[CASES[name][0]]) - KNOWN
    assert passed_over == ({UNUSED_BY_GEMMA3} if "gemma3" in name else set())
