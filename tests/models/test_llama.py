"""The Llama family against transformers on tiny random weights: whole, in chunks, token by token, on shuffled pages."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models import oracle
from tests.models.driver import Driver

from headrace.words.config import RopeConfig
from headrace.words.errors import ModelError

rng = random.Random(3)
PROMPTS = [[rng.randrange(101) for _ in range(n)] for n in (1, 4, 9, 23, 30)]
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "multi-head": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1},
    "gelu": {"hidden_act": "gelu"},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "yarn, untruncated": {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 1.1, "beta_slow": 0.3}},
    "yarn, amplitude": {"rope_parameters": {**YARN, "attention_factor": 1.7}},
    "yarn, mscale": {"rope_parameters": {**YARN, "factor": 40.0, "mscale": 2.0, "mscale_all_dim": 0.5}},
    "head_dim": {"head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 4},
    "everything at once": {
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 12,
        "num_key_value_heads": 3,
        "rope_parameters": LLAMA3,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.covers("M15", "M16", "6b", "6f", "I27")
def test_logits_equal_transformers_whole_in_chunks_and_token_by_token(name):
    model = oracle.make(**VARIANTS[name])
    config, arrays = oracle.config(**VARIANTS[name]), oracle.arrays(model)
    wanted = [oracle.logits(model, prompt) for prompt in PROMPTS]
    assert np.std(np.concatenate(wanted)) >= 1
    for chunk in (None, 7, 1):
        got = Driver(config, arrays).run(PROMPTS, chunk)
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


FEATURES = {
    "attention_bias": ("biases", lambda c: replace(c, attention_bias=False)),
    "mlp_bias": ("biases", lambda c: replace(c, mlp_bias=False)),
    "rms_norm_eps": ("plain", lambda c: replace(c, norm_eps=1e-6)),
    "rope_theta": ("plain", lambda c: replace(c, rope=replace(c.rope, theta=10_000.0))),
    "hidden_act": ("gelu", lambda c: replace(c, hidden_act="silu")),
    "linear factor": ("linear rope", lambda c: replace(c, rope=RopeConfig(500.0))),
    "llama3": ("llama3 rope", lambda c: replace(c, rope=RopeConfig(500.0))),
    "llama3 factor": ("llama3 rope", lambda c: changed(c, factor=2.0)),
    "llama3 low_freq_factor": ("llama3 rope", lambda c: changed(c, low_freq_factor=3.0)),
    "llama3 high_freq_factor": ("llama3 rope", lambda c: changed(c, high_freq_factor=32.0)),
    "llama3 original": ("llama3 rope", lambda c: changed(c, original_max_position_embeddings=64)),
    "yarn": ("yarn", lambda c: replace(c, rope=RopeConfig(500.0))),
    "yarn factor": ("yarn", lambda c: changed(c, factor=2.0)),
    "yarn original": ("yarn", lambda c: changed(c, original_max_position_embeddings=32)),
    "yarn truncate": ("yarn, untruncated", lambda c: changed(c, truncate=True)),
    "yarn beta_fast": ("yarn, untruncated", lambda c: changed(c, beta_fast=0.5)),
    "yarn beta_slow": ("yarn, untruncated", lambda c: changed(c, beta_slow=0.05)),
    "yarn attention_factor": ("yarn, amplitude", lambda c: changed(c, attention_factor=None)),
    "yarn mscale": ("yarn, mscale", lambda c: changed(c, mscale=None)),
    "yarn mscale_all_dim": ("yarn, mscale", lambda c: changed(c, mscale_all_dim=1.0)),
    "partial_factor": ("plain", lambda c: replace(c, rope=replace(c.rope, partial_factor=0.5))),
}


def changed(config, **numbers):
    return replace(config, rope=replace(config.rope, scaling={**config.rope.scaling, **numbers}))


@pytest.mark.parametrize("feature", FEATURES)
def test_each_configured_feature_matters(feature):
    variant, without = FEATURES[feature]
    arrays = oracle.arrays(oracle.make(**VARIANTS[variant]))
    config = oracle.config(**VARIANTS[variant])
    changed_arrays = dict(arrays)
    if feature.endswith("_bias"):
        part = "mlp" if feature == "mlp_bias" else "self_attn"
        changed_arrays = {n: a for n, a in arrays.items() if not (n.endswith("bias") and part in n)}
    with_it = Driver(config, arrays).run(PROMPTS)
    without_it = Driver(without(config), changed_arrays).run(PROMPTS)
    assert max(np.abs(a - b).max() for a, b in zip(with_it, without_it, strict=True)) > 1e-2


def test_tied_embeddings_and_grouped_keys_matter():
    tied = Driver(oracle.config(tie_word_embeddings=True), oracle.arrays(oracle.make(tie_word_embeddings=True)))
    untied = Driver(oracle.config(), oracle.arrays(oracle.make()))
    assert np.abs(tied.run(PROMPTS)[3] - untied.run(PROMPTS)[3]).max() > 1e-2
    with pytest.raises(ModelError, match="k_proj"):
        Driver(oracle.config(num_key_value_heads=6), oracle.arrays(oracle.make()))


@pytest.mark.parametrize("max_model_len", [32, 48, 96])
def test_dynamic_rope_is_fixed_at_load_from_max_model_len(max_model_len):
    """transformers grows the base with the longest sequence seen: at that length it must agree with ours."""
    rope = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    model = oracle.make(rope_parameters=rope)
    prompt = [rng.randrange(101) for _ in range(max_model_len)]
    wanted = oracle.logits(model, prompt)
    driver = Driver(oracle.config(rope_parameters=rope), oracle.arrays(model), max_model_len=max_model_len)
    np.testing.assert_allclose(driver.run([prompt], 17)[0], wanted, atol=1e-4, rtol=0)
    other = Driver(oracle.config(rope_parameters=rope), oracle.arrays(model), max_model_len=max_model_len * 2)
    assert np.abs(other.run([prompt])[0] - wanted).max() > 1e-2


def test_an_unknown_rope_type_and_activation_are_named():
    arrays = oracle.arrays(oracle.make())
    with pytest.raises(ModelError, match="rope type 'spiral'"):
        Driver(replace(oracle.config(), rope=RopeConfig(kind="spiral")), arrays)
    with pytest.raises(ModelError, match="'linear' lacks its number 'factor'"):
        Driver(replace(oracle.config(), rope=RopeConfig(kind="linear")), arrays)
    with pytest.raises(ModelError, match="hidden_act 'sine'"):
        Driver(replace(oracle.config(), hidden_act="sine"), arrays)
    with pytest.raises(ModelError, match="'LlamaForCausalML' is not built; did you mean 'LlamaForCausalLM'"):
        Driver(replace(oracle.config(), architecture="LlamaForCausalML"), arrays)


def test_missing_misshapen_and_foreign_tensors_are_named():
    arrays = oracle.arrays(oracle.make())
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=f"{name} is missing"):
        Driver(oracle.config(), {n: a for n, a in arrays.items() if n != name})
    with pytest.raises(ModelError, match=rf"{name} has the shape \[80, 47\] instead of \[80, 48\]"):
        Driver(oracle.config(), {**arrays, name: arrays[name][:, :47]})
    with pytest.raises(ModelError, match=r"no place for the tensor model.layers.0.self_attn.q_norm.weight"):
        Driver(oracle.config(), {**arrays, "model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)})


def test_decodes_of_different_lengths_in_one_step_keep_their_places():
    arrays = oracle.arrays(oracle.make())
    model, order = oracle.make(), [3, 0, 4, 1, 2]
    driver = Driver(oracle.config(), arrays)
    for i in order:
        driver.step({i: PROMPTS[i][:-1]} if len(PROMPTS[i]) > 1 else {i: PROMPTS[i]})
    got = driver.step({i: [7] for i in order})
    for i in order:
        known = PROMPTS[i][:-1] if len(PROMPTS[i]) > 1 else PROMPTS[i]
        np.testing.assert_allclose(got[i][0], oracle.logits(model, [*known, 7])[-1], atol=1e-4, rtol=0)


@pytest.mark.covers("6d", "I28")
def test_rows_of_an_earlier_larger_step_leave_no_trace():
    arrays = oracle.arrays(oracle.make())
    crowd, alone = Driver(oracle.config(), arrays), Driver(oracle.config(), arrays)
    crowd.run(PROMPTS)
    alone.run(PROMPTS[3:4])
    ours = crowd.step({3: [5]})[3]
    np.testing.assert_allclose(ours, alone.step({0: [5]})[0], atol=1e-5, rtol=0)


@pytest.mark.covers("I25", "D42")
def test_in_fixed_shapes_a_row_has_the_same_bits_in_any_company():
    import torch

    threads = torch.get_num_threads()
    try:
        for dtype in ("float32", "bfloat16"):
            arrays = oracle.arrays(oracle.make())
            options = {"fixed_rows": 16, "num_threads": 1, "dtype": dtype}
            whole = Driver(oracle.config(), arrays, **options).run(PROMPTS)
            for prompt, wanted in zip(PROMPTS, whole, strict=True):
                for chunk in (None, 5, 1):
                    alone = Driver(oracle.config(), arrays, **options).run([prompt], chunk)[0]
                    assert np.array_equal(alone, wanted), (dtype, len(prompt), chunk)
    finally:
        torch.set_num_threads(threads)
