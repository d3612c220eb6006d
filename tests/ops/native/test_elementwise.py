"""Norms, gates, rotation and rows by index, against the reference ops."""

import numpy as np
import pytest
import torch
from tests.ops.native.machines import ISAS, assert_same_on_all, numbers, ops_of

from headrace.ops.bfloat16 import to_float32
from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.model_ops import to_torch

DTYPES = ["float32", "bfloat16"]
ROWS_BY_WIDTH = [(1, 1), (3, 17), (5, 64), (40, 577)]


def floats(x) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        return x.float().numpy()
    return to_float32(x) if x.dtype == np.uint16 else x


def assert_close(result, expected, dtype: str) -> None:
    tolerance = 2e-6 if dtype == "float32" else 2**-7
    np.testing.assert_allclose(floats(result), floats(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), ROWS_BY_WIDTH)
def test_rms_norm(dtype, rows, width):
    x, weight = numbers(dtype, rows, width, spread=3), numbers(dtype, width, seed=1)
    reference = ReferenceOps(dtype)
    expected = reference.rms_norm(to_torch(x), reference.weight(weight), 1e-5)
    result = assert_same_on_all(dtype, lambda ops: ops.rms_norm(x, ops.weight(weight), 1e-5))
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_each_head(dtype):
    x, weight = numbers(dtype, 6, 3, 40), numbers(dtype, 40, seed=1)
    reference = ReferenceOps(dtype)
    expected = reference.rms_norm(to_torch(x), reference.weight(weight), 1e-6)
    assert_close(assert_same_on_all(dtype, lambda ops: ops.rms_norm(x, ops.weight(weight), 1e-6)), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_glu(dtype, activation):
    x = numbers(dtype, 9, 2 * 83, spread=4)
    expected = ReferenceOps(dtype).glu(to_torch(x), activation)
    result = assert_same_on_all(dtype, lambda ops: ops.glu(x, activation))
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_and_scale_have_the_bits_of_the_reference(dtype):
    x, y = numbers(dtype, 7, 45), numbers(dtype, 7, 45, seed=1)
    reference = ReferenceOps(dtype)
    added = assert_same_on_all(dtype, lambda ops: ops.add(x, y))
    assert (floats(added) == floats(reference.add(to_torch(x), to_torch(y)))).all()
    scaled = assert_same_on_all(dtype, lambda ops: ops.scale(x, 0.3))
    assert (floats(scaled) == floats(reference.scale(to_torch(x), 0.3))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "turned"), [(64, 64), (40, 20), (6, 6)])
def test_rotate(dtype, dim, turned):
    x = numbers(dtype, 5, 3 * dim).reshape(5, 3, dim)
    angles = numbers("float32", 5, turned, seed=2)
    expected = ReferenceOps(dtype).rotate(to_torch(x), torch.from_numpy(angles))
    result = assert_same_on_all(dtype, lambda ops: ops.rotate(x, angles))
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_and_gather_copy_rows(dtype):
    table, token_ids = numbers(dtype, 75, 50), np.array([74, 0, 31, 32, 74], np.int32)
    found = assert_same_on_all(dtype, lambda ops: ops.embed(token_ids, ops.weight(table)))
    assert (found == floats(table)[token_ids]).all()
    rows = np.array([3, 3, 0], np.int32)
    assert (assert_same_on_all(dtype, lambda ops: ops.gather(found, rows)) == found[rows]).all()


def test_views_of_heads_are_read_where_they_lie():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    x = numbers("bfloat16", 4, 5 * 16)
    q, k = ops.split_heads(x, (3, 2), 16)
    angles = numbers("float32", 4, 16, seed=2)
    assert (ops.rotate(k, angles) == ops.rotate(np.ascontiguousarray(k), angles)).all()
    assert q.shape == (4, 3, 16)


def test_indices_outside_are_refused():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    with pytest.raises(ValueError, match="no such token id"):
        ops.embed(np.array([9], np.int32), ops.weight(numbers("bfloat16", 9, 8)))
    with pytest.raises(ValueError, match="no such row"):
        ops.gather(numbers("bfloat16", 2, 8), np.array([2], np.int32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_by_what_differs_from_one(dtype):
    x, weight = numbers(dtype, 5, 70, spread=3), numbers(dtype, 70, seed=1)
    reference = ReferenceOps(dtype)
    expected = reference.rms_norm(to_torch(x), reference.weight(weight), 1e-5, 1.0)
    result = assert_same_on_all(dtype, lambda ops: ops.rms_norm(x, ops.weight(weight), 1e-5, 1.0))
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), ROWS_BY_WIDTH[1:])
def test_layer_norm(dtype, rows, width):
    x, weight = numbers(dtype, rows, width, spread=3), numbers(dtype, width, seed=1)
    bias = numbers(dtype, width, seed=2)
    reference = ReferenceOps(dtype)
    expected = reference.layer_norm(to_torch(x), reference.weight(weight), reference.weight(bias), 1e-5)
    result = assert_same_on_all(dtype, lambda ops: ops.layer_norm(x, ops.weight(weight), ops.weight(bias), 1e-5))
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_a_plain_activation(dtype, activation):
    x = numbers(dtype, 9, 83, spread=4)
    expected = ReferenceOps(dtype).activate(to_torch(x), activation)
    assert_close(assert_same_on_all(dtype, lambda ops: ops.activate(x, activation)), expected, dtype)


def test_logits_are_scaled_and_then_capped():
    x, weight = numbers("float32", 4, 40, spread=9), numbers("float32", 33, 40, seed=1)
    reference = ReferenceOps("float32")
    expected = reference.logits(to_torch(x), reference.weight(weight), 0.5, 7.0)
    result = assert_same_on_all("float32", lambda ops: ops.logits(x, ops.weight(weight), 0.5, 7.0))
    np.testing.assert_allclose(result, expected.numpy(), atol=2e-5)
