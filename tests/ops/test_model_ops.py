"""The reference ops beside attention, each against a statement of its own in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headrace.ops.base import StepInputs
from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.model_ops import to_torch

NEAR = {"float32": 2e-6, "bfloat16": 8e-3}
DTYPES = list(NEAR)
SIZES = [(1, 1, 1), (1, 7, 3), (5, 17, 33), (16, 64, 31), (37, 130, 65)]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_held(values: np.ndarray, dtype: str) -> tuple[torch.Tensor, np.ndarray]:
    """The tensor an op gets, and what it holds exactly, in double."""
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    return tensor, tensor.double().numpy()


def assert_near(got: torch.Tensor, wanted: np.ndarray, dtype: str) -> None:
    assert got.dtype == getattr(torch, dtype)
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got.double().numpy(), wanted, atol=NEAR[dtype] * scale, rtol=NEAR[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "num_inputs", "num_outputs"), SIZES)
@pytest.mark.parametrize("fixed_rows", [None, 16])
def test_linear(rows, num_inputs, num_outputs, fixed_rows, dtype):
    ops = ReferenceOps(dtype, fixed_rows=fixed_rows)
    (x, exact), weight = as_held(numbers(rows, num_inputs), dtype), numbers(num_outputs, num_inputs, seed=1)
    matrix = as_held(weight, dtype)[1]
    assert_near(ops.linear(x, ops.weight(weight)), exact @ matrix.T, dtype)
    bias = numbers(num_outputs, seed=2)
    got = ops.linear(x, ops.weight(weight), ops.weight(bias))
    assert_near(got, exact @ matrix.T + as_held(bias, dtype)[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_fp32(dtype):
    ops = ReferenceOps(dtype)
    (x, exact), head = as_held(numbers(3, 20), dtype), numbers(41, 20, seed=1)
    got = ops.logits(x, ops.weight(head))
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), exact @ as_held(head, dtype)[1].T, atol=5e-2, rtol=NEAR[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_scaled_and_then_capped_in_fp32(dtype):
    ops = ReferenceOps(dtype)
    (x, exact), head = as_held(numbers(3, 20), dtype), numbers(41, 20, seed=1)
    plain = exact @ as_held(head, dtype)[1].T
    scaled, both = ops.logits(x, ops.weight(head), 0.3), ops.logits(x, ops.weight(head), 0.3, 2.0)
    assert scaled.dtype == both.dtype == torch.float32
    near = {"atol": 2e-2 if dtype == "bfloat16" else 1e-5, "rtol": NEAR[dtype]}
    np.testing.assert_allclose(scaled.numpy(), plain * 0.3, **near)
    np.testing.assert_allclose(both.numpy(), np.tanh(plain * 0.3 / 2) * 2, **near)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 5, 40), (33, 576)])
def test_rms_norm(shape, dtype):
    ops = ReferenceOps(dtype)
    (x, exact), gamma = as_held(0.1 * numbers(*shape), dtype), numbers(shape[-1], seed=1)
    for eps in (1e-6, 0.3):
        wanted = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + eps) * as_held(gamma, dtype)[1]
        assert_near(ops.rms_norm(x, ops.weight(gamma), eps), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_to_a_norms_weight_is_not_rounded_with_it(dtype):
    ops = ReferenceOps(dtype)
    x, exact = as_held(numbers(9, 40), dtype)
    held, gamma = as_held(0.01 * numbers(40, seed=1), dtype)
    wanted = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * (1 + gamma)
    got = ops.rms_norm(x, ops.weight(held.float().numpy()), 1e-6, 1.0)
    assert_near(got, wanted, dtype)
    once = torch.from_numpy(wanted).to(got.dtype)
    assert (got == once).float().mean() > 0.97 or dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (33, 576)])
def test_layer_norm(shape, dtype):
    ops = ReferenceOps(dtype)
    (x, exact), gamma, beta = as_held(0.1 * numbers(*shape) + 3, dtype), numbers(shape[-1], seed=1), numbers(shape[-1])
    for eps in (1e-5, 0.3):
        centred = exact - exact.mean(-1, keepdims=True)
        wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        wanted = wanted * as_held(gamma, dtype)[1] + as_held(beta, dtype)[1]
        got = ops.layer_norm(x, ops.weight(gamma), ops.weight(beta), eps)
        np.testing.assert_allclose(got.double().numpy(), wanted, atol=20 * NEAR[dtype], rtol=NEAR[dtype])


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_glu_gates_the_second_half_and_leaves_its_input(activation, dtype):
    ops = ReferenceOps(dtype)
    x, exact = as_held(3 * numbers(6, 2 * 13), dtype)
    wanted = ACTIVATIONS[activation](exact[:, :13]) * exact[:, 13:]
    assert_near(ops.glu(x, activation), wanted, dtype)
    assert np.array_equal(x.double().numpy(), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activate_leaves_its_input(activation, dtype):
    ops = ReferenceOps(dtype)
    x, exact = as_held(3 * numbers(6, 13), dtype)
    assert_near(ops.activate(x, activation), ACTIVATIONS[activation](exact), dtype)
    assert np.array_equal(x.double().numpy(), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_scale_gather_and_embed(dtype):
    ops = ReferenceOps(dtype)
    (x, a), (y, b) = as_held(numbers(4, 9), dtype), as_held(numbers(4, 9, seed=1), dtype)
    assert_near(ops.add(x, y), a + b, dtype)
    assert_near(ops.scale(x, 0.3), a * 0.3, dtype)
    rows = np.array([3, 0, 3], np.int32)
    gathered = ops.gather(x, rows)
    assert_near(gathered, a[rows], dtype)
    gathered.zero_()
    assert np.array_equal(x.double().numpy(), a), "a copy, not a view"
    table, ids = numbers(30, 9, seed=2), np.array([29, 0, 29], np.int32)
    assert_near(ops.embed(ids, ops.weight(table)), as_held(table, dtype)[1][ids], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "num_turned"), [(8, 8), (8, 4), (64, 64), (80, 32), (2, 2)])
def test_rotate_turns_pairs_half_the_turned_dimensions_apart(dim, num_turned, dtype):
    ops = ReferenceOps(dtype)
    x, exact = as_held(numbers(5, 3, dim), dtype)
    table = np.random.default_rng(3).uniform(-np.pi, np.pi, (20, num_turned // 2))
    angles = np.concatenate([np.cos(table), np.sin(table)], 1).astype(np.float32)
    positions = np.array([0, 19, 4, 4, 7], np.int32)
    one = np.ones(1, np.int32)
    step = ops.begin(StepInputs(positions, positions, np.full(5, -1), np.array([0, 5], np.int32), one, one[None]))
    wanted = exact.copy()
    for token, position in enumerate(positions):
        for i in range(num_turned // 2):
            turn = np.exp(1j * table[position, i])
            pair = (exact[token, :, i] + 1j * exact[token, :, i + num_turned // 2]) * turn
            wanted[token, :, i], wanted[token, :, i + num_turned // 2] = pair.real, pair.imag
    assert_near(ops.rotate(x, ops.angles(angles, step)), wanted, dtype)
    assert np.array_equal(x.double().numpy(), exact)


def test_split_heads_gives_heads_in_order():
    x = torch.arange(2 * 12.0).view(2, 12)
    q, k, v = ReferenceOps().split_heads(x, (3, 2, 1), 2)
    assert q.shape == (2, 3, 2) and k.tolist()[0] == [[6, 7], [8, 9]] and v.tolist()[1] == [[22, 23]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_as_float32_float16_and_bfloat16_words(dtype):
    values = numbers(6, 11)
    words = torch.from_numpy(values).bfloat16()
    stored = {
        "float32": values,
        "float16": values.astype(np.float16),
        "bfloat16": words.view(torch.int16).numpy().view(np.uint16),
    }
    exact = {"float32": values, "float16": stored["float16"].astype(np.float32), "bfloat16": words.float().numpy()}
    ops = ReferenceOps(dtype)
    for kind, array in stored.items():
        array.flags.writeable = False
        held = ops.weight(array).plain
        assert torch.equal(held, torch.from_numpy(exact[kind].copy()).to(held.dtype))


def test_a_writable_array_of_the_right_type_is_not_copied():
    array = numbers(4, 4)
    assert ReferenceOps("float32").weight(array).plain.data_ptr() == array.ctypes.data
    words = np.zeros((4, 4), np.uint16)
    assert to_torch(words).data_ptr() == words.ctypes.data and to_torch(words).dtype == torch.bfloat16


def test_a_table_stays_readable_after_it_served_as_a_matrix():
    ops, table = ReferenceOps("float32"), numbers(30, 9)
    weight, ids = ops.weight(table.copy()), np.array([4], np.int32)
    before = ops.embed(ids, weight)
    ops.logits(before, weight)
    assert torch.equal(ops.embed(ids, weight), before)


def test_no_op_records_a_gradient():
    ops = ReferenceOps("bfloat16")
    x = ops.embed(np.array([1], np.int32), ops.weight(numbers(3, 8)))
    assert not ops.linear(x, ops.weight(numbers(4, 8))).requires_grad
