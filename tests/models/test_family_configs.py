"""config.json as families have written it over the years, and what they mean where it is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models import families
from tests.models.cases import FULL, PROMPTS, SLIDING, TWO_ROPES, case
from tests.models.driver import Driver
from tests.models.families import ABSENT, CONFIGS

from headrace.load.config import model_config
from headrace.models.registry import FAMILIES
from headrace.words.errors import ModelError

NEEDED = {
    "vocab_size": 101,
    "hidden_size": 512,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
}
GPT2_NEEDED = {"vocab_size": 101, "n_embd": 512, "n_layer": 3, "n_head": 32}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_silent_config_means_what_transformers_takes_it_for(architecture):
    import transformers

    needed = GPT2_NEEDED if architecture == "GPT2LMHeadModel" else NEEDED
    name = CONFIGS.get(architecture) or architecture.replace("ForCausalLM", "Config")
    theirs = getattr(transformers, name)(**needed).to_dict()
    silent = model_config({**needed, "architectures": [architecture]})
    told = model_config({**theirs, "architectures": [architecture]})
    of_no_family = {name: getattr(silent, name) for name in ("raw", "rope", "eos_token_ids", "bos_token_id")}
    assert silent == replace(told, **of_no_family)
    for name in ("kind", "theta", "partial_factor"):
        assert getattr(silent.rope, name) == getattr(told.rope, name)


OLDER: dict[str, tuple[str, dict[str, Any]]] = {
    "windows by the first layer that has one": ("qwen2", {"layer_types": ABSENT}),
    "windows of qwen3 by the first layer": ("qwen3", {"layer_types": ABSENT}),
    "the base outside": ("mistral", {"rope_parameters": ABSENT, "rope_theta": 500.0, "rope_scaling": None}),
    "experts by their first name": ("qwen3 moe", {"num_local_experts": ABSENT, "num_experts": 5}),
    "every other layer slides": ("gemma2", {"layer_types": ABSENT, "hidden_act": "silu"}),
    "two bases": (
        "gemma3",
        {
            "rope_parameters": ABSENT,
            "rope_theta": 500.0,
            "rope_local_base_freq": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
    ),
    "a pattern of windows": ("gemma3 by its pattern", {"layer_types": ABSENT, "sliding_window_pattern": 3}),
    "a share outside": (
        "phi3",
        {"rope_parameters": ABSENT, "rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_scaling": None},
    ),
    "layers without positions by interval": (
        "smollm3 by its interval",
        {"no_rope_layers": ABSENT, "layer_types": ABSENT, "no_rope_layer_interval": 2},
    ),
    "rotary words of its own": ("pythia", {"rope_parameters": ABSENT, "rotary_emb_base": 500, "rotary_pct": 0.5}),
    "no heads for keys": ("olmo2", {"head_dim": None}),
}


@pytest.mark.parametrize("how", OLDER)
def test_older_words_mean_the_same(how):
    name, changes = OLDER[how]
    made = case(name)
    ours, same = (Driver(made.config(**change), made.arrays).run(PROMPTS) for change in (changes, {}))
    assert all(np.array_equal(a, b) for a, b in zip(ours, same, strict=True))


MOVING = {
    "max_window_layers": ("qwen2", {"layer_types": ABSENT, "max_window_layers": 0}),
    "max_window_layers of qwen3": ("qwen3", {"layer_types": ABSENT, "max_window_layers": 3}),
    "sliding_window_pattern": ("gemma3 by its pattern", {"layer_types": ABSENT, "sliding_window_pattern": 2}),
    "no_rope_layer_interval": (
        "smollm3 by its interval",
        {"no_rope_layers": ABSENT, "layer_types": ABSENT, "no_rope_layer_interval": 3},
    ),
    "the sliding layers' rope": ("gemma3", {"rope_parameters": {**TWO_ROPES, SLIDING: TWO_ROPES[FULL]}}),
    "the full layers' rope": ("gemma3", {"rope_parameters": {**TWO_ROPES, FULL: TWO_ROPES[SLIDING]}}),
    "rotary_pct": ("pythia", {"rope_parameters": ABSENT, "rotary_emb_base": 500, "rotary_pct": 0.25}),
}


@pytest.mark.parametrize("entry", MOVING)
def test_what_lists_outvote_counts_without_them(entry):
    name, changes = MOVING[entry]
    made = case(name)
    ours, other = (Driver(made.config(**change), made.arrays).run(PROMPTS) for change in (changes, {}))
    assert max(np.abs(a - b).max() for a, b in zip(ours, other, strict=True)) > 1e-2


def test_null_key_heads_are_as_many_as_query_heads_though_silence_is_eight():
    made = families.make("MistralForCausalLM", num_key_value_heads=6, sliding_window=None)
    assert made.config(num_key_value_heads=None).num_kv_heads == 6
    with pytest.raises(ModelError, match="num_key_value_heads must be a divisor of num_attention_heads"):
        made.config(num_key_value_heads=ABSENT)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "GPT-2's own names": ("gpt2", {"n_head": "x"}, "n_head must be a positive whole number, got 'x'"),
    "GPT-2's own names for what lacks": ("gpt2", {"n_embd": ABSENT}, "lacks n_embd"),
    "GPT-2's own eps": ("gpt2", {"layer_norm_epsilon": -1}, "layer_norm_epsilon must be a positive number, got -1"),
    "an unknown type of layer": (
        "gemma2",
        {"layer_types": [FULL, "spiral", FULL]},
        "layer_types must be a list of 3, each full_attention or sliding_attention",
    ),
    "types of too few layers": ("qwen2", {"layer_types": [FULL]}, "layer_types must be a list of 3"),
    "layers that are rotated by half": ("smollm3", {"no_rope_layers": [1, 0.5, 1]}, "no_rope_layers must be a list"),
    "a cap of text": ("gemma2", {"final_logit_softcapping": "x"}, "final_logit_softcapping must be a positive number"),
    "a window of 0": ("mistral", {"sliding_window": 0}, "sliding_window must be a positive whole number, got 0"),
    "experts beyond their number": ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok must be at most 5"),
    "text both ways": ("gemma3", {"use_bidirectional_attention": True}, "attends to later tokens too"),
    "another model's text": ("gpt2", {"add_cross_attention": True}, "attends to another model's text"),
    "ropes by type of layer": ("qwen2", {"rope_parameters": TWO_ROPES}, "has rope parameters for each type of layer"),
    "a local rope of another kind": (
        "gemma3",
        {"rope_parameters": {**TWO_ROPES, SLIDING: {"rope_type": "odd"}}},
        "rope type 'odd' is unknown",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_the_words_of_the_file(what):
    name, changes, words = REFUSED[what]
    with pytest.raises(ModelError) as caught:
        Driver(case(name).config(**changes), case(name).arrays)
    message = str(caught.value)
    assert message.startswith(f"config.json: {words}") and "\n" not in message


def test_errors_name_the_file_that_the_configuration_is_from():
    made = case("phi3")
    raw = {**made.raw, "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}, "hidden_act": "silu"}
    for changes, words in [({}, "rope type 'longrope' has 1 values"), ({"hidden_act": "odd"}, "hidden_act 'odd'")]:
        with pytest.raises(ModelError, match=rf"^a\.gguf: {words}"):
            Driver(model_config({**raw, **changes}, "a.gguf"), made.arrays)
    with pytest.raises(ModelError, match=r"^a\.gguf: the architecture 'Phi4' is not built"):
        model_config({"architectures": ["Phi4"]}, "a.gguf")
