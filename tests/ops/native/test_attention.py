"""Paged attention: close to the reference, and the same bits alone, in company, in chunks, in any pages."""

import numpy as np
import pytest
from tests.ops.native.machines import ISAS, assert_same_on_all, numbers, ops_of
from tests.ops.native.sequences import NUM_BLOCKS, Sequences, assert_same_however_cut

from headrace.ops.bfloat16 import to_float32
from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.model_ops import to_torch

DTYPES = ["float32", "bfloat16"]
FORMS = {"plain": {}, "window": {"window": 37}, "soft cap": {"soft_cap": 5.0}, "both": {"window": 600, "soft_cap": 9.0}}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_size", [4, 16, 32, 48])
def test_prompts_are_close_to_the_reference_and_the_same_on_all(dtype, form, block_size):
    sequences = Sequences(dtype, [70, 1, 33], block_size=block_size)
    result = assert_same_on_all(dtype, lambda ops: sequences.whole(ops, **FORMS[form]))
    reference = ReferenceOps("float32")
    spans = [(i, 0, length) for i, length in enumerate(sequences.lengths)]
    as_float = (lambda x: to_torch(to_float32(x))) if dtype == "bfloat16" else to_torch
    cache = reference.kv_cache(NUM_BLOCKS + 1, block_size, sequences.heads[1], sequences.dim)
    expected = sequences.attend(reference, cache, spans, as_float, **FORMS[form]).numpy()
    values = to_float32(result) if dtype == "bfloat16" else result
    tolerance = 3e-6 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "dim"), [((9, 3), 64), ((4, 4), 32), ((40, 1), 16), ((2, 1), 80)])
def test_head_shapes(heads, dim):
    sequences = Sequences("bfloat16", [45, 20], heads, dim)
    result = to_float32(assert_same_on_all("bfloat16", sequences.whole))
    reference = ReferenceOps("float32")
    cache = reference.kv_cache(NUM_BLOCKS + 1, 16, heads[1], dim)
    expected = sequences.attend(reference, cache, [(0, 0, 45), (1, 0, 20)], lambda x: to_torch(to_float32(x)))
    np.testing.assert_allclose(result, expected.numpy(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", ["plain", "window"])
def test_alone_batched_chunked_and_one_by_one_are_the_same_bits(dtype, isa, form):
    lengths = [75, 40] if isa == "portable" else [1_100, 40, 530]
    assert_same_however_cut(Sequences(dtype, lengths), ops_of(isa, 2, dtype), **FORMS[form])


@pytest.mark.parametrize("cache_dtype", [None, "int8"])
@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"])
def test_rows_that_share_pages_have_the_bits_that_they_have_alone(isa, block_size, cache_dtype):
    shared = 1_040 // block_size
    lengths = [1_100, 1_041, 1_090, 530, 1_200, 40, *[1_060 + i for i in range(11)], 700]
    sequences = Sequences("bfloat16", lengths, block_size=block_size, cache_dtype=cache_dtype, shared=shared)
    ops = ops_of(isa, 2, "bfloat16")
    cache = sequences.cache(ops)
    for i, length in enumerate(lengths):
        sequences.attend(ops, cache, [(i, 0, length - 1)])
    spans = [(i, length - 1, length) for i, length in enumerate(lengths)]
    for step in (spans, spans[::-1], [*spans[:3], (3, 500, 530), *spans[4:]]):
        together = sequences.attend(ops, cache, step)
        alone = [sequences.attend(ops, cache, [span]) for span in step]
        assert together.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("end", [17, 20])
def test_a_page_may_be_read_in_the_step_that_fills_it(dtype, isa, end):
    """Sequence 1 goes on behind a page whose last key sequence 0 computes in the same step, after it in the plan."""
    results = []
    for is_together in (True, False):
        ops = ops_of(isa, 1, dtype)
        sequences = Sequences(dtype, [40, 40], block_size=16, shared=1)
        cache = sequences.cache(ops)
        sequences.attend(ops, cache, [(0, 0, 15)])
        if is_together:
            results.append(sequences.attend(ops, cache, [(1, 16, end), (0, 15, 16)])[:-1])
        else:
            sequences.attend(ops, cache, [(0, 15, 16)])
            results.append(sequences.attend(ops, cache, [(1, 16, end)]))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_size_and_place_of_pages_do_not_change_bits(dtype, isa):
    results = [
        Sequences(dtype, [90, 61], block_size=size).whole(ops_of(isa, 1, dtype)).tobytes() for size in (8, 16, 32, 64)
    ]
    assert len(set(results)) == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_stale_nan_in_pages_changes_nothing(isa, block_size):
    sequences, ops = Sequences("bfloat16", [50, 3, 17], block_size=block_size), ops_of(isa, 2, "bfloat16")
    poisoned = sequences.cache(ops)
    poisoned.fill(0xFF)
    spans = [(i, 0, length) for i, length in enumerate(sequences.lengths)]
    assert sequences.attend(ops, poisoned, spans).tobytes() == sequences.whole(ops).tobytes()


def test_a_slot_of_minus_one_writes_nothing():
    sequences, ops = Sequences("bfloat16", [20]), ops_of(ISAS[-1], 1, "bfloat16")
    cache = sequences.cache(ops)
    first = sequences.attend(ops, cache, [(0, 0, 20)])
    inputs, qkv = sequences.step([(0, 0, 20)])
    other = numbers("bfloat16", *qkv.shape, seed=99)
    other[:, : 6 * 24] = qkv[:, : 6 * 24]
    q, k, v = ops.split_heads(other, (6, 2, 2), 24)
    inputs = inputs._replace(slots=np.full(20, -1, np.int64))
    assert ops.attend(q, k, v, cache, ops.begin(inputs), 24**-0.5).tobytes() == first.tobytes()


def test_blocks_that_do_not_exist_are_refused():
    sequences, ops = Sequences("bfloat16", [20]), ops_of(ISAS[-1], 1, "bfloat16")
    small = ops.kv_cache(2, 16, 2, 24)
    with pytest.raises(ValueError, match="no such"):
        sequences.attend(ops, small, [(0, 0, 20)])
