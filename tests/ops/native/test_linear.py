"""Packed linear layers: the bits of the definition, on every instruction set, in any company."""

import numpy as np
import pytest
from tests.ops.native.machines import ISAS, assert_same_on_all, numbers, ops_of

from headrace.ops.bfloat16 import to_bfloat16, to_float32
from headrace.ops.cpu.machine import MAX_INPUTS
from headrace.words.errors import ModelError

SHAPES = [(1, 1, 1), (1, 64, 33), (3, 31, 95), (5, 100, 17), (33, 65, 1100), (130, 40, 70)]


def as_defined(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[rows, k], [n, k] float32 → sums as TDPBF16PS adds them: per 32 of K an even and an odd FMA chain; segments of
    1,024. Products and sums of such short numbers are exact in float64, so that rounding once is what an FMA does."""
    pad = -x.shape[1] % 32
    x, weight = (np.pad(a, ((0, 0), (0, pad))).astype(np.float64) for a in (x, weight))
    total = np.zeros((len(x), len(weight)), np.float32)
    for segment in range(0, x.shape[1], 1024):
        part = np.zeros_like(total)
        for tile in range(segment, min(segment + 1024, x.shape[1]), 32):
            chains = [np.zeros_like(total), np.zeros_like(total)]
            for k in range(tile, tile + 32):
                product = x[:, k, None] * weight[None, :, k]
                chains[k % 2] = (chains[k % 2] + product).astype(np.float32)
            part += chains[0] + chains[1]
        total = part if segment == 0 else total + part
    return total


def moderate(*shape: int, seed: int) -> np.ndarray:
    """bfloat16 with magnitudes in [2⁻⁶, 2⁶] or zero."""
    values = to_float32(numbers("bfloat16", *shape, seed=seed, spread=3.0))
    return to_bfloat16(np.where(np.abs(values) < 2**-6, 0, values))


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_bf16_sums_have_the_bits_of_the_definition(rows, n, k):
    x, weight = moderate(rows, k, seed=1), moderate(n, k, seed=2)
    result = assert_same_on_all("bfloat16", lambda ops: ops.logits(x, ops.weight(weight)))
    assert result.tobytes() == as_defined(to_float32(x), to_float32(weight)).tobytes()


@pytest.mark.parametrize("spread", [1e-19, 1.0, 1e18])
def test_every_instruction_set_gives_the_same_bits_for_tiny_and_huge_numbers(spread):
    x, weight = numbers("bfloat16", 7, 200, spread=spread), numbers("bfloat16", 50, 200, seed=3, spread=spread)
    assert_same_on_all("bfloat16", lambda ops: ops.logits(x, ops.weight(weight)))


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_fp32_is_the_same_on_all_and_close_to_exact(rows, n, k):
    x, weight = numbers("float32", rows, k), numbers("float32", n, k, seed=4)
    bias = numbers("float32", n, seed=5)
    result = assert_same_on_all("float32", lambda ops: ops.linear(x, ops.weight(weight), ops.weight(bias)))
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    np.testing.assert_allclose(result, exact, rtol=0, atol=2e-6 * k**0.5 * 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_its_company_or_place(isa, dtype):
    ops = ops_of(isa, 2, dtype)
    x, weight = numbers(dtype, 70, 300), ops.weight(numbers(dtype, 97, 300, seed=6))
    together = ops.linear(x, weight)
    for row in (0, 1, 15, 16, 33, 69):
        assert ops.linear(x[row : row + 1], weight).tobytes() == together[row].tobytes()
    assert ops.linear(x[11:52], weight).tobytes() == together[11:52].tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_nan_stays_in_its_row(isa):
    ops = ops_of(isa, 1, "bfloat16")
    x, weight = numbers("bfloat16", 9, 64), ops.weight(numbers("bfloat16", 40, 64, seed=7))
    clean = ops.linear(x, weight)
    x[4] = 0x7FC0
    dirty = ops.linear(x, weight)
    assert np.isnan(to_float32(dirty[4])).all()
    assert np.delete(dirty, 4, axis=0).tobytes() == np.delete(clean, 4, axis=0).tobytes()


def test_bias_is_added_before_rounding_once():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    x, weight, bias = moderate(3, 64, seed=8), moderate(5, 64, seed=9), moderate(5, seed=10)
    sums = as_defined(to_float32(x), to_float32(weight)) + to_float32(bias)
    assert ops.linear(x, ops.weight(weight), ops.weight(bias)).tobytes() == to_bfloat16(sums).tobytes()


def test_shapes_and_types_that_do_not_fit_are_refused():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    weight = ops.weight(numbers("bfloat16", 8, 32))
    with pytest.raises(ValueError, match="shapes do not fit"):
        ops.linear(numbers("bfloat16", 2, 31), weight)
    in_fp32 = ops_of(ISAS[-1], 1, "float32")
    with pytest.raises(ValueError, match="types do not fit"):
        in_fp32.linear(numbers("bfloat16", 2, 32), in_fp32.weight(numbers("float32", 8, 32)))


def test_what_layers_add_up_is_rounded_to_bf16_where_it_is_multiplied():
    x, weight = numbers("float32", 5, 70), numbers("bfloat16", 8, 70)
    wide = assert_same_on_all("bfloat16", lambda ops: ops.linear(x, ops.weight(weight)))
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    assert wide.tobytes() == ops.linear(to_bfloat16(x), ops.weight(weight)).tobytes()


def test_a_summand_is_not_rounded():
    x, weight = numbers("bfloat16", 5, 70), numbers("bfloat16", 8, 70)
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    summand = ops.linear(x, ops.weight(weight), is_summand=True)
    assert summand.dtype == np.float32
    assert to_bfloat16(summand).tobytes() == ops.linear(x, ops.weight(weight)).tobytes()


def test_the_float_mode_of_the_thread_is_what_it_was():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    ops.linear(numbers("bfloat16", 2, 32), ops.weight(numbers("bfloat16", 8, 32)))
    denormal = np.array([1e-40], np.float32)
    assert (denormal * np.float32(0.5))[0] > 0


def test_weights_and_inputs_may_be_read_only():
    ops = ops_of(ISAS[-1], 1, "bfloat16")
    x, weight = numbers("bfloat16", 2, 32), numbers("bfloat16", 8, 32)
    expected = ops.linear(x, ops.weight(weight)).tobytes()
    for array in (x, weight):
        array.flags.writeable = False
    assert ops.linear(x, ops.weight(weight)).tobytes() == expected


def test_a_matrix_of_too_many_inputs_is_refused_before_anything_is_written():
    wide = np.zeros((1, MAX_INPUTS + 1), np.uint16)
    with pytest.raises(ModelError, match=f"of {MAX_INPUTS + 1} inputs; {MAX_INPUTS} can be multiplied"):
        ops_of(ISAS[-1], 1, "bfloat16").weight(wide)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_as_long_as_allowed_is_multiplied(dtype):
    weight, x = numbers(dtype, 2, MAX_INPUTS, seed=1), numbers(dtype, 3, MAX_INPUTS, seed=2)
    result = np.array(assert_same_on_all(dtype, lambda ops: ops.linear(x, ops.weight(weight))))
    wide = (lambda a: to_float32(a)) if dtype == "bfloat16" else (lambda a: a)
    expected = wide(x).astype(np.float64) @ wide(weight).astype(np.float64).T
    np.testing.assert_allclose(wide(result), expected, rtol=2e-2, atol=5)
