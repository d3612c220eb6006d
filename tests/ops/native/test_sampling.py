"""Native sampling has the bits of the reference, whatever is cut."""

import numpy as np
import pytest
import torch
from tests.ops.native.machines import ISAS, assert_same_on_all, ops_of
from tests.ops.slow_sampling import sampling_inputs

from headrace.ops.reference.sampling import ReferenceSampling

REFERENCE = ReferenceSampling()
CUTS = {
    "nothing": {},
    "cold": {"temperature": 1e-6},
    "hot": {"temperature": 50.0},
    "top_k": {"top_k": 50},
    "top_1": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 10**6},
    "top_p": {"top_p": 0.95},
    "a tiny top_p": {"top_p": 1e-9},
    "top_p near 1": {"top_p": 0.99999},
    "min_p": {"min_p": 0.05},
    "min_p 1": {"min_p": 1.0},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "a few greedy": {"temperature": [0.0, 1.0, 0.0, 0.7, 1.5], "top_p": 0.9},
}


def logits_of(rows: int, vocab: int, spread: float, seed: int = 0) -> np.ndarray:
    values = (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)
    values[:, :: max(1, vocab // 5)] = np.float32(2 * spread)
    values[-1, vocab // 2 :] = -np.inf
    return values


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("vocab", "spread"), [(7, 3.0), (1_003, 1.0), (5_000, 0.05), (20_011, 3.0)])
def test_tokens_are_those_of_the_reference(cut, vocab, spread):
    logits, inputs = logits_of(5, vocab, spread), sampling_inputs(5, **CUTS[cut])
    expected = REFERENCE.sample(torch.from_numpy(logits), inputs)
    before = logits.copy()
    assert assert_same_on_all("float32", lambda ops: ops.sample(logits, inputs)).tolist() == expected.tolist()
    assert logits.tobytes() == before.tobytes()


@pytest.mark.parametrize("num_top", [0, 1, 5, 1_003])
@pytest.mark.parametrize(("vocab", "spread"), [(7, 3.0), (1_003, 1.0), (20_011, 3.0)])
def test_logprobs_have_the_bits_of_the_reference(num_top, vocab, spread):
    logits, token_ids = logits_of(4, vocab, spread, seed=1), np.array([0, 6, 3, 1], np.int32)
    expected = REFERENCE.logprobs(torch.from_numpy(logits), token_ids, num_top)
    for isa in ISAS:
        found = ops_of(isa, 2, "float32").logprobs(logits, token_ids, num_top)
        for name, values, wanted in zip(expected._fields, found, expected, strict=True):
            assert values.tobytes() == wanted.tobytes(), (isa, name)


def test_many_seeds_draw_as_the_reference_draws():
    logits = np.repeat(logits_of(1, 301, 1.0), 400, axis=0)
    inputs = sampling_inputs(400, temperature=0.9)
    expected = REFERENCE.sample(torch.from_numpy(logits), inputs)
    assert len(set(expected.tolist())) > 50
    assert ops_of(ISAS[-1], 2, "float32").sample(logits, inputs).tolist() == expected.tolist()
