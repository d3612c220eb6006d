"""Numbers of a rotary embedding: whatever a file says, a table is made of it or the file is refused by name."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.load import folder as f

from headrace.layers.rotary import rotary_table
from headrace.load.config import model_config
from headrace.words.errors import ModelError

LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
REFUSED = {
    "a factor that is text": ({"type": "linear", "factor": "x"}, "factor must be a positive number, got 'x'"),
    "a factor of 0": ({"type": "linear", "factor": 0}, "factor must be a positive number, got 0"),
    "a factor that is true": ({"type": "linear", "factor": True}, "factor must be a positive number, got True"),
    "a factor that is no number": ({"type": "dynamic", "factor": math.nan}, "factor must be a positive number"),
    "a length beyond floats": (
        {"type": "yarn", "factor": 4, "original_max_position_embeddings": 10**400},
        "original_max_position_embeddings must be a positive number",
    ),
    "a bound that is text": ({"type": "yarn", "factor": 4, "beta_fast": "x"}, "beta_fast must be a positive number"),
    "a bound that is a list": ({**LLAMA3, "low_freq_factor": [1]}, "low_freq_factor must be a positive number"),
    "bounds that meet": ({**LLAMA3, "low_freq_factor": 4.0}, "high_freq_factor must be above low_freq_factor"),
    "an mscale that is text": ({"type": "yarn", "factor": 4, "mscale": "x"}, "mscale must be a positive number"),
    "factors that are text": (
        {"type": "longrope", "short_factor": "x"},
        "short_factor must be a list of positive numbers",
    ),
    "a factor of 0 among others": (
        {"type": "longrope", "long_factor": [1.0, 0]},
        "long_factor must be a list of positive numbers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scaling_numbers_that_are_none_are_refused(case):
    scaling, words = REFUSED[case]
    assert words in refusal(rope_scaling=scaling)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 10**400}, "rope_theta must be a positive number"),
        ({"rope_theta": 1.0}, "rope_theta must be above 1"),
        ({"partial_rotary_factor": 7.0}, "partial_rotary_factor must be at most 1"),
        ({"head_dim": 3}, "rotates 3 dimensions of a head; only an even number can be rotated"),
        ({"partial_rotary_factor": 0.1}, "rotates 0 dimensions of a head"),
        ({"hidden_size": 1}, "lacks head_dim"),
        ({"hidden_act": {"a": 1}}, "hidden_act must be a name"),
    ],
)
def test_a_head_that_cannot_be_rotated_is_refused(change, words):
    assert words in refusal(**change)


def refusal(**change) -> str:
    with pytest.raises(ModelError) as caught:
        model_config({**f.CONFIG, **change})
    message = str(caught.value)
    assert message.startswith("config.json: ") and "\n" not in message and len(message) < 250
    return message


def test_what_is_null_is_as_good_as_absent():
    scaling = {"type": "yarn", "factor": 4.0, "beta_fast": None, "attention_factor": None, "mscale_all_dim": 0}
    assert model_config({**f.CONFIG, "rope_scaling": scaling}).rope.scaling == {"factor": 4.0, "mscale_all_dim": 0}


def test_any_numbers_make_a_finite_table_or_a_refusal():
    """A seeded walk over kinds and values; JSON is what a file can say."""
    draw = np.random.default_rng(5)
    values = [None, 0, 1, 2, 4.0, 0.5, -1, 1e9, 1e300, math.nan, math.inf, "x", [1.0], [2.0] * 8, {}, True, 10**400]
    names = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", *list(LLAMA3)[2:])
    names += ("long_factor", "short_factor")
    factors = {"long_factor": [1.5] * 8, "short_factor": [1.0] * 8}
    outcomes = {"table": 0, "refused": 0}
    for _ in range(1500):
        scaling = {**LLAMA3, **factors, "type": str(draw.choice(["linear", "dynamic", "yarn", "llama3", "longrope"]))}
        for name in draw.choice(names, draw.integers(1, 3)):
            scaling[str(name)] = values[draw.integers(len(values))]
        outcomes[outcome(json.loads(json.dumps({**f.CONFIG, "head_dim": 16, "rope_scaling": scaling})))] += 1
    assert min(outcomes.values()) > 200


def outcome(raw) -> str:
    try:
        config = model_config(raw)
        table = rotary_table(config.rope, config.head_dim, config.max_position_embeddings, 8)
    except ModelError:
        return "refused"
    assert np.isfinite(table).all(), raw["rope_scaling"]
    return "table"


def test_ends_that_logits_cannot_have_are_left_out():
    ends = {"eos_token_id": [-1, 257, 258, 10**30], "bos_token_id": -1}
    config = model_config({**f.CONFIG, **ends})
    assert config.eos_token_ids == (257,) and config.bos_token_id is None
