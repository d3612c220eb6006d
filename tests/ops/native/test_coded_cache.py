"""Keys and values in int8: close to the reference, and the same bits alone, in company, in chunks, in any pages."""

import numpy as np
import pytest
from tests.ops.native.machines import ISAS, assert_same_on_all, ops_of
from tests.ops.native.sequences import NUM_BLOCKS, Sequences, assert_same_however_cut

from headrace.ops.bfloat16 import to_bfloat16, to_float32
from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.model_ops import to_torch
from headrace.words.cache_spec import PagedKV

DTYPES = ["float32", "bfloat16"]
NEAR = {"float32": 3e-6, "bfloat16": 2e-2}
FORMS = {"plain": {}, "window": {"window": 37}, "both": {"window": 600, "soft_cap": 9.0}}


def coded(dtype: str, lengths, *shape, **more) -> Sequences:
    return Sequences(dtype, lengths, *shape, **more, cache_dtype="int8")


def everything(sequences: Sequences) -> list[tuple[int, int, int]]:
    return [(i, 0, length) for i, length in enumerate(sequences.lengths)]


def wide(x: np.ndarray) -> np.ndarray:
    return to_float32(x) if x.dtype == np.uint16 else x


def by_reference(sequences: Sequences, **form) -> np.ndarray:
    """The same codes and scales, attended to in fp32."""
    ops = ReferenceOps("float32")
    spans = everything(sequences)
    return sequences.attend(ops, sequences.cache(ops), spans, lambda x: to_torch(wide(x)), **form).numpy()


def assert_near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    np.testing.assert_allclose(wide(got), wanted, rtol=NEAR[dtype], atol=NEAR[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_prompts_are_close_to_the_reference_and_the_same_on_all(dtype, form, block_size):
    sequences = coded(dtype, [70, 1, 33], block_size=block_size)
    result = assert_same_on_all(dtype, lambda ops: sequences.whole(ops, **FORMS[form]))
    assert_near(result, by_reference(sequences, **FORMS[form]), dtype)


@pytest.mark.parametrize(("heads", "dim"), [((9, 3), 64), ((4, 4), 32), ((40, 1), 16), ((2, 1), 80)])
def test_head_shapes(heads, dim):
    sequences = coded("bfloat16", [45, 20], heads, dim)
    assert_near(assert_same_on_all("bfloat16", sequences.whole), by_reference(sequences), "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", ["plain", "window"])
def test_alone_batched_chunked_and_one_by_one_are_the_same_bits(dtype, isa, form):
    lengths = [75, 40] if isa == "portable" else [1_100, 40, 530]
    assert_same_however_cut(coded(dtype, lengths), ops_of(isa, 2, dtype), **FORMS[form])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_size_and_place_of_pages_do_not_change_bits(dtype, isa):
    results = [
        coded(dtype, [90, 61], block_size=size).whole(ops_of(isa, 1, dtype)).tobytes() for size in (8, 16, 32, 64)
    ]
    assert len(set(results)) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_stale_nan_in_pages_changes_nothing(dtype, isa, block_size):
    sequences, ops = coded(dtype, [50, 3, 17], block_size=block_size), ops_of(isa, 2, dtype)
    poisoned = sequences.cache(ops)
    poisoned.fill(0xFF)
    assert sequences.attend(ops, poisoned, everything(sequences)).tobytes() == sequences.whole(ops).tobytes()


VECTORS = {
    "ties": [127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -126.5],
    "negative peak": [-3, 1, 2, 0.1, 0.01, -0.3, 2.99, -2.99],
    "zeros": [0, -0.0, 0, 0, 0, 0, 0, 0],
    "small": [1e-30, -3e-31, 2e-32, 0, 1e-38, 1e-40, -1e-40, 9e-31],
    "at the least": [2.0**-100, 2.0**-101, 0, 0, 0, 0, 0, -(2.0**-102)],
    "below the least": [2.0**-101, -(2.0**-102), 1e-40, 0, 0, 0, 0, 0],
    "large": [3e38, -3e38, 1e38, 1, 0, -2e37, 5e36, 1e30],
    "nan": [1, 2, float("nan"), 3, 4, 5, 6, 7],
    "infinite": [1, 2, 3, 4, float("-inf"), 5, 6, 7],
}


def test_a_value_is_read_back_as_the_reference_holds_it():
    """A token that is alone has all the weight."""
    sequences = coded("float32", [1] * len(VECTORS), (1, 1), 8, block_size=2)
    for qkv, vector in zip(sequences.qkv, VECTORS.values(), strict=True):
        qkv[0, 16:] = vector
    result, expected = assert_same_on_all("float32", sequences.whole), by_reference(sequences)
    np.testing.assert_array_equal(result, expected)
    found = dict(zip(VECTORS, result, strict=True))
    assert np.isnan(found["nan"]).all() and np.isnan(found["infinite"]).all()
    assert found["ties"].tolist() == [127, 0, 2, 2, 0, -2, 126, -126]
    assert not found["below the least"].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_in_every_row_that_sees_it_and_in_no_other(dtype, isa, part, bad):
    sequences, ops = coded(dtype, [50, 20]), ops_of(isa, 2, dtype)
    before = sequences.whole(ops, window=20)
    column = (sequences.heads[0] + (2 if part == "value" else 0)) * sequences.dim + 5
    sequences.qkv[0][21, column] = to_bfloat16(np.float32([bad]))[0] if dtype == "bfloat16" else bad
    after = sequences.whole(ops, window=20)
    sees = np.zeros(70, bool)
    sees[21:41] = True
    heads = wide(after).reshape(70, 6, 24)
    assert np.isnan(heads[sees, :3]).all()
    assert after[~sees].tobytes() == before[~sees].tobytes()
    assert heads[:, 3:].tobytes() == wide(before).reshape(70, 6, 24)[:, 3:].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_that_is_zeroed_reads_as_zero(dtype):
    sequences, ops = coded(dtype, [20]), ops_of(ISAS[-1], 1, dtype)
    cache = sequences.cache(ops)
    cache.fill(0xFF)
    ops.zero_blocks(cache, sequences.tables[0].tolist())
    inputs, qkv = sequences.step([(0, 0, 20)])
    q, k, v = ops.split_heads(qkv, (6, 2, 2), 24)
    inputs = inputs._replace(slots=np.full(20, -1, np.int64))
    assert not wide(ops.attend(q, k, v, cache, ops.begin(inputs), 1.0)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_takes_the_bytes_that_its_spec_tells(dtype):
    ops = ops_of(ISAS[-1], 1, dtype)
    for held in (dtype, "int8"):
        for dim in (64, 24, 80):
            assert ops.kv_cache(6, 16, 3, dim, held).nbytes == 6 * 16 * PagedKV(3, dim, held).bytes_per_token()


def test_int8_costs_about_a_hundredth():
    sequences = Sequences("bfloat16", [700], (9, 3), 64, block_size=32)
    ops = ops_of(ISAS[-1], 2, "bfloat16")
    exact = wide(sequences.whole(ops))
    sequences.cache_dtype = "int8"
    error = np.linalg.norm(wide(sequences.whole(ops)) - exact) / np.linalg.norm(exact)
    assert 1e-3 < error < 1.5e-2, error


def test_a_cache_of_another_dtype_is_refused():
    with pytest.raises(AssertionError, match="bfloat16 does not attend to float32"):
        ops_of(ISAS[-1], 1, "bfloat16").kv_cache(NUM_BLOCKS, 16, 2, 24, "float32")
