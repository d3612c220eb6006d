"""The reference sampling ops against their slow twin, on odd sizes, ties and edges."""

import numpy as np
import pytest
import torch
from tests.ops import slow_sampling
from tests.ops.slow_sampling import sampling_inputs

from headrace.ops.base import Penalties
from headrace.ops.reference.sampling import ReferenceSampling
from headrace.ops.truncation import top_places

OPS = ReferenceSampling()
INF = float("inf")


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> "torch.Tensor":
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.standard_normal((rows, vocab)) * spread).astype(np.float32))


CUTS = {
    "nothing": {},
    "temperature": {"temperature": 0.8},
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


@pytest.mark.covers("E5")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("vocab", "spread"), [(7, 3.0), (1_003, 1.0), (5_000, 0.05), (49_152, 3.0)])
def test_sample_equals_its_slow_twin(cut, vocab, spread):
    logits = random_logits(5, vocab, seed=vocab, spread=spread)
    inputs = sampling_inputs(5, **CUTS[cut])
    before = logits.clone()
    assert OPS.sample(logits, inputs).tolist() == slow_sampling.sample(logits.numpy(), inputs)
    assert torch.equal(logits, before)


@pytest.mark.covers("E5")
@pytest.mark.parametrize("cut", [c for c in CUTS if c != "a few greedy"])
def test_truncate_leaves_exactly_what_sample_draws_from(cut):
    logits = random_logits(5, 1_003, spread=1.0)
    inputs = sampling_inputs(5, **CUTS[cut])
    left = OPS.truncate(logits, inputs).numpy()
    for i, row in enumerate(logits.numpy()):
        assert (np.isfinite(left[i]) == slow_sampling.kept(row, inputs, i)).all()
    again = OPS.sample(torch.from_numpy(left), sampling_inputs(5))
    assert again.tolist() == OPS.sample(logits, inputs).tolist()


def test_top_k_keeps_ties_and_top_p_takes_them_by_lowest_id():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, -5.0]])
    by_k = OPS.truncate(logits, sampling_inputs(1, top_k=2)).numpy()[0]
    assert np.flatnonzero(np.isfinite(by_k)).tolist() == [1, 2, 3, 4]
    by_p = OPS.truncate(logits, sampling_inputs(1, top_p=0.6)).numpy()[0]
    assert np.flatnonzero(np.isfinite(by_p)).tolist() == [1, 2]


def test_top_p_counts_the_mass_that_top_k_left():
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    alone = OPS.truncate(logits, sampling_inputs(1, top_p=0.5)).numpy()[0]
    after_k = OPS.truncate(logits, sampling_inputs(1, top_p=0.5, top_k=2)).numpy()[0]
    assert np.isfinite(alone).tolist() == [True, True, False, False]
    assert np.isfinite(after_k).tolist() == [True, False, False, False]


@pytest.mark.covers("M33")
def test_temperature_0_is_argmax_with_ties_to_the_lowest_id():
    logits = torch.zeros(3, 49_152)
    logits[0, [40_000, 100, 30_000]] = 2.0
    logits[1, [5, 7]] = 1.0
    assert OPS.sample(logits, sampling_inputs(3, temperature=0.0)).tolist() == [100, 5, 0]


@pytest.mark.covers("M33")
def test_frequencies_at_temperature_1_are_the_probabilities():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    logits = torch.from_numpy(np.tile(np.log(p).astype(np.float32), (20_000, 1)))
    counts = np.bincount(OPS.sample(logits, sampling_inputs(20_000)), minlength=4)
    assert ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum() < 11.34  # χ² with 3 degrees of freedom at 1 %


@pytest.mark.parametrize("k", [1, 2, 20, 64, 300, 1_003])
@pytest.mark.parametrize("vocab", [1, 17, 1_003])
def test_top_places_equal_a_full_sort(k, vocab):
    values = np.random.default_rng(k).integers(-6, 6, vocab).astype(np.float32)
    kth = np.sort(values)[-min(k, vocab)]
    assert top_places(values, k).tolist() == np.flatnonzero(values >= kth).tolist()


def test_finite_rows_finds_nan_and_infinity():
    logits = torch.zeros(5, 9)
    logits[1, 8], logits[2, 0], logits[3, 4] = float("nan"), INF, -INF
    logits[4] = -INF
    assert OPS.finite_rows(logits).tolist() == [True, False, False, True, False]


def test_keep_tokens_touches_only_the_rows_it_names():
    logits = torch.arange(12.0).reshape(3, 4)
    OPS.keep_tokens(logits, np.array([0, 2, 2], np.int32), np.array([1, 0, 3], np.int32))
    assert logits.tolist() == [[-INF, 1, -INF, -INF], [4, 5, 6, 7], [8, -INF, -INF, 11]]


def test_mask_tokens_and_add_bias_touch_single_entries():
    logits = torch.zeros(2, 3)
    OPS.mask_tokens(logits, np.array([0, 1, 1], np.int32), np.array([2, 0, 0], np.int32))
    OPS.add_bias(
        logits, np.array([0, 1, 1], np.int32), np.array([1, 0, 2], np.int32), np.array([0.5, 9, -1], np.float32)
    )
    assert logits.tolist() == [[0, 0.5, -INF], [-INF, 0, -1]]


@pytest.mark.parametrize("vocab", [31, 32, 33, 70])
def test_mask_bits_reads_token_32w_plus_i_in_bit_i_of_word_w(vocab):
    allowed = np.random.default_rng(vocab).random((2, vocab)) < 0.5
    bits = np.zeros((2, -(-vocab // 32)), np.uint32)
    for row, token in zip(*np.nonzero(allowed), strict=True):
        bits[row, token // 32] |= np.uint32(1 << token % 32)
    logits = torch.ones(3, vocab)
    OPS.mask_bits(logits, np.array([2, 0], np.int32), bits)
    assert torch.isfinite(logits).tolist() == [allowed[1].tolist(), [True] * vocab, allowed[0].tolist()]


def test_penalties_follow_their_definitions():
    logits = torch.tensor([[2.0, -2.0, 4.0, 1.0], [2.0, -2.0, 4.0, 1.0]])
    off, on = np.float32([1, 0, 0]), np.float32([2, 0.25, 0.5])
    penalties = Penalties(*np.stack([off, on], axis=1))
    rows, ids = np.array([0, 1, 1, 1], np.int32), np.array([0, 0, 1, 2], np.int32)
    OPS.penalize(logits, rows, ids, np.array([3, 0, 2, 1], np.int32), penalties)
    assert logits.tolist() == [[2, -2, 4, 1], [1, -4 - 2 * 0.25 - 0.5, 2 - 0.25 - 0.5, 1]]


@pytest.mark.covers("E7")
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_logprobs_equal_a_float64_log_softmax(num_top):
    logits = random_logits(6, 1_003, seed=4)
    ids = np.array([0, 1_002, 5, 6, 7, int(logits[5].argmax())], np.int32)
    found = OPS.logprobs(logits, ids, num_top)
    true = logits.double().log_softmax(-1).numpy()
    assert np.abs(found.token_logprobs - true[np.arange(6), ids]).max() < 2e-6
    assert found.ranks.tolist() == [1 + int((t > t[i]).sum()) for t, i in zip(true, ids, strict=True)]
    order = np.argsort(-true, axis=1, kind="stable")[:, :num_top]
    assert (found.top_ids == order).all()
    assert np.allclose(found.top_logprobs, np.take_along_axis(true, order, 1), atol=2e-6)
    smaller = [np.exp(t)[t < t[i]].sum() for t, i in zip(true, ids, strict=True)]
    assert np.abs(found.sum_smaller_probs - smaller).max() < 2e-6


def test_sum_smaller_probs_is_the_mass_below_the_token():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1))
    found = OPS.logprobs(logits, np.array([1, 0, 2], np.int32), 0)
    assert np.allclose(found.sum_smaller_probs, [0.2, 0.5, 0.0], atol=1e-6)


def test_ranks_and_alternatives_order_ties_by_lowest_id():
    logits = torch.zeros(2, 40)
    found = OPS.logprobs(logits, np.array([0, 7], np.int32), 3)
    assert found.ranks.tolist() == [1, 8]
    assert found.top_ids.tolist() == [[0, 1, 2]] * 2
    assert np.allclose(found.token_logprobs, -np.log(40), atol=1e-6)


def test_a_forbidden_token_has_no_probability():
    logits = torch.tensor([[0.0, -INF, 0.0]])
    found = OPS.logprobs(logits, np.array([1], np.int32), 3)
    assert found.token_logprobs.tolist() == [-INF]
    assert found.top_ids.tolist() == [[0, 2, 1]]


def test_a_row_does_not_depend_on_its_company():
    logits = random_logits(9, 5_000, seed=8)
    values = {"temperature": 0.9, "top_p": [0.9, 1, 0.5] * 3, "top_k": [0, 0, 30] * 3}
    inputs = sampling_inputs(9, **values)
    together = OPS.sample(logits, inputs)
    scored = OPS.logprobs(logits, together, 5)
    for i in (0, 4, 8):
        alone = logits[i : i + 1].clone()
        own = type(inputs)(*(column[i : i + 1] for column in inputs))
        assert OPS.sample(alone, own)[0] == together[i]
        for one, all_rows in zip(OPS.logprobs(alone, together[i : i + 1], 5), scored, strict=True):
            assert one.tobytes() == all_rows[i : i + 1].tobytes()
