"""Every family against transformers on tiny random weights: whole, in chunks, token by token, on shuffled pages."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models import families
from tests.models.cases import CASES, PROMPTS, case
from tests.models.driver import Driver

from headrace.models.registry import FAMILIES
from headrace.words.errors import ModelError


@pytest.mark.parametrize("name", CASES)
@pytest.mark.covers("M15", "M16", "6b", "6f", "I27")
def test_logits_equal_transformers_whole_in_chunks_and_token_by_token(name):
    model = case(name)
    wanted = [families.logits(model.model, prompt) for prompt in PROMPTS]
    assert np.std(np.concatenate(wanted)) >= 1
    for chunk in (None, 7, 1):
        got = Driver(model.config(), model.arrays).run(PROMPTS, chunk)
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


SPARSE = [name for name in CASES if "moe" in name or "mixtral" in name]


@pytest.mark.parametrize("name", [name for name in CASES if name not in SPARSE])
def test_bf16_is_as_near_to_fp32_as_transformers_is(name):
    import torch

    made, prompt = case(name), PROMPTS[4]
    exact = families.logits(made.model, prompt)
    half = type(made.model)(made.model.config).to(torch.bfloat16).eval()
    half.load_state_dict(made.model.state_dict())
    theirs = np.abs(families.logits(half, prompt) - exact).mean()
    ours = np.abs(Driver(made.config(), made.arrays, dtype="bfloat16").run([prompt], 7)[0] - exact).mean()
    assert 0 < ours < 1.3 * theirs


@pytest.mark.parametrize("name", SPARSE)
def test_bf16_keeps_most_of_what_experts_say(name):
    """A router's near ties fall either way, in transformers at other places than here."""
    made, prompt = case(name), PROMPTS[4]
    exact = families.logits(made.model, prompt)
    got = Driver(made.config(), made.arrays, dtype="bfloat16").run([prompt], 7)[0]
    assert 0 < np.median(np.abs(got - exact)) < 0.03 * np.std(exact)


def test_every_family_has_a_case():
    assert {architecture for architecture, _ in CASES.values()} | {"LlamaForCausalLM"} == set(FAMILIES)


WINDOWS = {
    "mistral": [5, 5, 5],
    "mistral without a window": [None, None, None],
    "qwen2": [None, 5, 5],
    "qwen2 tied, its window unused": [None, None, None],
    "qwen3 moe": [5, 5, 5],
    "gemma2": [5, None, 5],
    "gemma3": [5, None, 5],
    "gemma3 by its pattern": [5, 5, None],
    "smollm3": [None, 5, None],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_caches_are_told_the_windows_of_their_layers(name):
    model = Driver(case(name).config(), case(name).arrays).model
    assert [spec.window for spec in model.cache_specs()] == WINDOWS[name]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_counted_once_and_all_of_them_are_read(name):
    made = case(name)
    assert Driver(made.config(), made.arrays).model.weight_bytes == 4 * sum(a.size for a in made.arrays.values())
    with pytest.raises(ModelError, match="no place for the tensor model.odd"):
        Driver(made.config(), {**made.arrays, "model.odd": np.ones(3, np.float32)})
    last = sorted(made.arrays)[-1]
    with pytest.raises(ModelError, match=f"{last} is missing"):
        Driver(made.config(), {name: array for name, array in made.arrays.items() if name != last})


def test_gpt2s_oldest_checkpoints_have_no_prefix():
    made = case("gpt2")
    old = {name.removeprefix("transformer."): array for name, array in made.arrays.items()}
    new, other = (Driver(made.config(), arrays).run(PROMPTS)[3] for arrays in (made.arrays, old))
    assert np.array_equal(new, other)


MASKS = {
    "gpt2": ["attn.bias", "attn.masked_bias"],
    "pythia": ["attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"],
    "mistral": ["self_attn.rotary_emb.inv_freq"],
}
PLACES = {"gpt2": "transformer.h.{}.", "pythia": "gpt_neox.layers.{}.", "mistral": "model.layers.{}."}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_frequencies_that_old_checkpoints_hold_are_not_read(name):
    made = case(name)
    masks = [(PLACES[name] + mask).format(i) for mask in MASKS[name] for i in range(3)]
    arrays = {**made.arrays, **dict.fromkeys(masks, np.ones((1, 1, 64, 64), np.float32))}
    new, old = (Driver(made.config(), each).run(PROMPTS)[3] for each in (made.arrays, arrays))
    assert np.array_equal(new, old)


def test_what_is_not_rotated_may_have_heads_of_one_dimension():
    made = families.make("GPT2LMHeadModel", n_embd=6)
    wanted = families.logits(made.model, PROMPTS[3])
    np.testing.assert_allclose(Driver(made.config(), made.arrays).run([PROMPTS[3]], 7)[0], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("max_model_len", "length"), [(20, 19), (64, 30)])
def test_longrope_is_fixed_at_load_from_max_model_len(max_model_len, length):
    """transformers takes the long factors for a text beyond the original length: then it must agree with ours."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0, 1.3, 1.6, 2.0],
        "long_factor": [1.5, 2.5, 4.0, 8.0],
        "original_max_position_embeddings": 20,
    }
    made = families.make("Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=20)
    prompt = PROMPTS[4][:length]
    wanted = families.logits(made.model, prompt)
    for chunk in (None, 7, 1):
        got = Driver(made.config(), made.arrays, max_model_len=max_model_len).run([prompt], chunk)[0]
        np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)
    other = Driver(made.config(), made.arrays, max_model_len=84 - max_model_len)
    assert np.abs(other.run([prompt[:19]])[0] - wanted[:19]).max() > 1e-2
