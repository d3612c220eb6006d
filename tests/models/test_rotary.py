"""Rotary tables against transformers' own, with the numbers of published models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.layers.rotary import KINDS, rotary_table
from headrace.words.config import RopeConfig
from headrace.words.errors import ModelError

LENGTH, DIM = 6_000, 128
LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8_192,
}
LONG = {
    "short_factor": [1.0 + 0.01 * i for i in range(DIM // 2)],
    "long_factor": [1.1 * 1.05**i for i in range(DIM // 2)],
    "original_max_position_embeddings": 4_096,
}
PUBLISHED: dict[str, tuple[str, float, int, dict[str, Any]]] = {
    "Llama 2": ("default", 10_000.0, 4_096, {}),
    "SmolLM2": ("default", 100_000.0, 8_192, {}),
    "positions scaled": ("linear", 10_000.0, 8_192, {"factor": 4.0}),
    "Llama 3.1": ("llama3", 500_000.0, 131_072, LLAMA31),
    "Llama 3.2": ("llama3", 500_000.0, 131_072, {**LLAMA31, "factor": 32.0}),
    "Qwen2 at length": ("yarn", 1e6, 131_072, {"factor": 4.0, "original_max_position_embeddings": 32_768}),
    "yarn, whole": (
        "yarn",
        10_000.0,
        65_536,
        {
            "factor": 40.0,
            "original_max_position_embeddings": 4_096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "truncate": False,
        },
    ),
    "yarn, amplitude given": (
        "yarn",
        10_000.0,
        16_384,
        {"factor": 4.0, "original_max_position_embeddings": 4_096, "attention_factor": 1.3},
    ),
    "Phi-3 at length": ("longrope", 10_000.0, 131_072, LONG),
    "longrope, its factor given": ("longrope", 10_000.0, 131_072, {**LONG, "factor": 8.0}),
    "longrope, amplitude given": ("longrope", 10_000.0, 131_072, {**LONG, "attention_factor": 1.3}),
    "longrope of one length": ("longrope", 10_000.0, 4_096, LONG),
}


def theirs(kind: str, theta: float, trained: int, numbers: dict[str, Any], length: int) -> np.ndarray:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": kind, "rope_theta": theta, **numbers}
    config = LlamaConfig(
        hidden_size=DIM, num_attention_heads=1, head_dim=DIM, max_position_embeddings=trained, rope_parameters=rope
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    return torch.cat((cos[0, :, : DIM // 2], sin[0, :, : DIM // 2]), dim=-1).numpy()


@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_equal_transformers(name):
    kind, theta, trained, numbers = PUBLISHED[name]
    table = rotary_table(RopeConfig(theta, kind, numbers), DIM, trained, LENGTH)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, theirs(kind, theta, trained, numbers, LENGTH), atol=1e-3, rtol=0)


@pytest.mark.parametrize("length", [3_000, 4_096, 6_000])
def test_dynamic_frequencies_are_those_of_the_longest_sequence(length):
    """A sequence as long as the model was made for, or shorter, has the plain ones."""
    rope = RopeConfig(10_000.0, "dynamic", {"factor": 2.0})
    table = rotary_table(rope, DIM, 4_096, length)
    np.testing.assert_allclose(table, theirs("dynamic", 10_000.0, 4_096, {"factor": 2.0}, length), atol=1e-3, rtol=0)
    plain = rotary_table(RopeConfig(10_000.0), DIM, 4_096, length)
    assert np.allclose(table, plain, atol=1e-3) == (length <= 4_096)


@pytest.mark.parametrize("length", [4_096, 4_097])
def test_long_factors_are_those_of_a_model_that_may_go_beyond_its_first_length(length):
    table = rotary_table(RopeConfig(10_000.0, "longrope", LONG), DIM, 131_072, length)
    wanted = theirs("longrope", 10_000.0, 131_072, LONG, length)
    np.testing.assert_allclose(table, wanted, atol=1e-3, rtol=0)
    other = rotary_table(RopeConfig(10_000.0, "longrope", LONG), DIM, 131_072, 8_193 - length)[: len(table)]
    assert np.abs(other - table[: len(other)]).max() > 0.1


@pytest.mark.covers("6f")
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_every_position_up_to_max_model_len(kind):
    numbers = {**LLAMA31, "factor": 2.0, "original_max_position_embeddings": 64, "long_factor": [2.0] * 8}
    table = rotary_table(RopeConfig(10_000.0, kind, numbers), 16, 128, 300)
    assert table.shape == (300, 16) and np.isfinite(table).all()
    assert len({row.tobytes() for row in table}) == 300


def test_a_share_of_the_dimensions_is_rotated_as_a_head_of_that_size():
    rope = RopeConfig(10_000.0, partial_factor=0.25)
    assert np.array_equal(rotary_table(rope, 80, 128, 50), rotary_table(RopeConfig(10_000.0), 20, 128, 50))


def test_divisors_stand_for_the_numbers_they_were_made_from():
    """GGUF tells one divisor per dimension instead of llama3's four numbers."""
    numbers = {**LLAMA31, "original_max_position_embeddings": 64}
    plain = rotary_table(RopeConfig(10_000.0), 32, 128, 2)
    slowed = rotary_table(RopeConfig(10_000.0, "llama3", numbers), 32, 128, 2)
    divisors = np.arcsin(plain[1, 16:].astype(np.float64)) / np.arcsin(slowed[1, 16:].astype(np.float64))
    told = rotary_table(RopeConfig(10_000.0, "llama3", {"divisors": divisors.tolist()}), 32, 128, 2)
    np.testing.assert_allclose(told, slowed, atol=1e-6)


def test_unknown_kinds_and_missing_numbers_are_named():
    known = "default, linear, dynamic, llama3, yarn, longrope"
    with pytest.raises(ModelError, match=f"'spiral' is unknown; known are {known}"):
        rotary_table(RopeConfig(kind="spiral"), 16, 128, 128)
    for kind, number in [("linear", "factor"), ("dynamic", "factor"), ("yarn", "factor"), ("llama3", "factor")]:
        with pytest.raises(ModelError, match=f"'{kind}' lacks its number '{number}'"):
            rotary_table(RopeConfig(kind=kind), 16, 128, 128)
    for length, name in [(64, "short_factor"), (65, "long_factor")]:
        rope = RopeConfig(kind="longrope", scaling={"original_max_position_embeddings": 64, "factor": 2.0})
        with pytest.raises(ModelError, match=f"'longrope' lacks its number '{name}'"):
            rotary_table(rope, 16, 128, length)


def test_what_is_wrong_with_numbers_is_said_with_the_file_that_holds_them():
    rope = RopeConfig(kind="longrope", scaling={"short_factor": [1.0] * 7})
    with pytest.raises(ModelError, match=r"^a\.gguf: rope type 'longrope' has 7 values in short_factor for 16 rotated"):
        rotary_table(rope, 16, 128, 128, "a.gguf")
    rope = RopeConfig(kind="longrope", scaling={"long_factor": [1.0] * 8, "original_max_position_embeddings": 1})
    with pytest.raises(ModelError, match=r"^a\.gguf: .* needs an original_max_position_embeddings above 1, got 1"):
        rotary_table(rope, 16, 128, 128, "a.gguf")
