"""Numbers made integers by the kernels: what numpy makes of them, near what they were."""

import numpy as np
import pytest
from tests.ops.native.machines import KINDS, assert_same_on_all, numbers, ops_of

from headrace.load.rounding import RoundedWeights
from headrace.ops.base import QuantizedMatrix, Unrounded
from headrace.ops.bfloat16 import as_dtype, to_bfloat16, to_float32
from headrace.ops.rounding import GROUP, rounded, rounded_values


def matrix(rows: int, columns: int, dtype: str, seed: int = 4) -> np.ndarray:
    values = (np.random.default_rng(seed).standard_t(4, (rows, columns)) * 0.05).astype(np.float32)
    values[1, :GROUP] = 0
    values[2, :GROUP] = 0.25
    values[3, GROUP : 2 * GROUP] *= 1e-4
    return to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)


def part(values: np.ndarray, bits: int) -> Unrounded:
    return Unrounded(bits, values.shape, lambda: values, lambda: rounded_values(values, bits))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "dtype"), [(96, "float32"), (64, "float16"), (75, "bfloat16")])
def test_the_kernels_round_as_numpy_does_to_the_bit(bits, columns, dtype):
    values = matrix(45, columns, dtype)
    ids = np.arange(45, dtype=np.int32)
    quantized = QuantizedMatrix((part(values, bits), part(values[:7], bits)))
    got = assert_same_on_all("bfloat16", lambda ops: ops.embed(np.append(ids, ids[:7] + 45), ops.weight(quantized)))
    wanted = rounded_values(values, bits)
    assert got.tobytes() == np.concatenate([wanted, wanted[:7]]).tobytes()
    alone = QuantizedMatrix((part(values, bits),))
    packed = ops_of(*KINDS[0], "bfloat16").weight(alone)
    assert packed.nbytes == alone.num_bytes and packed.bits == bits


@pytest.mark.parametrize(("bits", "most"), [(4, 0.08), (8, 0.006)])
def test_the_error_is_that_of_so_many_bits_and_fitting_makes_it_less(bits, most):
    values = np.random.default_rng(1).standard_normal((64, 640)).astype(np.float32)
    error = np.sqrt(np.mean((rounded_values(values, bits) - values) ** 2))
    assert most / 2 < error < most
    if bits == 4:
        low, high = (f(values.reshape(64, -1, GROUP), axis=-1, keepdims=True) for f in (np.min, np.max))
        step = (high - low) / 15
        plain = np.rint((values.reshape(low.shape[:2] + (GROUP,)) - low) / step) * step + low
        assert error < 0.95 * np.sqrt(np.mean((plain.reshape(values.shape) - values) ** 2))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_group_with_a_number_that_is_none_is_none_and_its_neighbours_are_not(bits):
    values = matrix(8, 96, "float32")
    values[5, 40], values[6, 70], values[7, 3] = np.nan, np.inf, 1e9
    ops = ops_of(*KINDS[0], "bfloat16")
    ids = np.arange(8, dtype=np.int32)
    for got in (rounded_values(values, bits), ops.embed(ids, ops.weight(QuantizedMatrix((part(values, bits),))))):
        is_nan = np.isnan(got).reshape(8, 3, GROUP).any(-1)
        assert np.argwhere(is_nan).tolist() == [[5, 1], [6, 2], [7, 0]]
        assert np.isnan(got).reshape(8, 3, GROUP).all(-1).sum() == 3


def test_integers_and_scales_are_those_that_are_said():
    codes, scales, minimums = rounded(matrix(16, 64, "float32"), 4)
    assert codes.min() == 0 and codes.max() == 15 and np.array_equal(codes, np.rint(codes))
    codes8, scales8, minimums8 = rounded(matrix(16, 64, "float32"), 8)
    assert codes8.min() >= -127 and codes8.max() <= 127 and not minimums8.any()
    for halves in (scales, minimums, scales8):
        assert np.array_equal(halves, halves.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_is_near_that_of_the_numbers_as_they_were(bits):
    values, x = matrix(96, 512, "bfloat16"), numbers("bfloat16", 9, 512)
    got = assert_same_on_all("bfloat16", lambda ops: ops.logits(x, ops.weight(QuantizedMatrix((part(values, bits),)))))
    exact = to_float32(x).astype(np.float64) @ rounded_values(values, bits).T.astype(np.float64)
    np.testing.assert_allclose(got, exact, atol=1e-5 * np.abs(exact).max())
    before = to_float32(x) @ to_float32(values).T
    assert np.linalg.norm(got - before) < (0.15 if bits == 4 else 0.01) * np.linalg.norm(before)


def test_in_float32_a_weight_is_what_the_integers_mean():
    values = matrix(33, 64, "float32")
    ops = ops_of(*KINDS[0], "float32")
    got = ops.embed(np.arange(33, dtype=np.int32), ops.weight(QuantizedMatrix((part(values, 4),))))
    assert got.tobytes() == rounded_values(values, 4).tobytes()


class Source:
    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def names(self):
        return self.arrays.keys()

    def shape(self, name):
        return self.arrays[name].shape

    def get(self, name):
        return self.arrays[name]

    def blocks(self, name, is_turned=False):
        return None


def test_a_source_rounds_matrices_and_leaves_the_rest():
    source = RoundedWeights(Source(norm=np.ones(64, np.float32), matrix=matrix(32, 64, "bfloat16")), 4, vocab_size=320)
    assert source.blocks("norm") is None and np.array_equal(source.get("norm"), np.ones(64))
    assert source.get("matrix").dtype == np.uint16
    wanted = rounded_values(as_dtype(source.get("matrix"), "float32"), 4)
    assert np.array_equal(source.blocks("matrix").dequantize(), wanted)


def test_the_vocabulary_has_8_bits_in_any_case():
    source = RoundedWeights(Source(head=matrix(320, 64, "float32"), up=matrix(96, 64, "float32")), 4, vocab_size=320)
    assert (source.blocks("head").bits, source.blocks("up").bits) == (8, 4)
    assert np.array_equal(source.blocks("head").dequantize(), rounded_values(source.get("head"), 8))


def test_what_cannot_be_rounded_is_refused():
    ops = ops_of(*KINDS[0], "bfloat16")
    wide = np.zeros((2, 64), np.float32)
    with pytest.raises(ValueError, match="4 or 8 bits"):
        ops.machine.pack_rounded([wide], 3)
    with pytest.raises(ValueError, match="as wide as the others"):
        ops.machine.pack_rounded([wide, wide[:, :32].copy()], 4)
    with pytest.raises(ValueError, match="float32, float16, or bfloat16"):
        ops.machine.pack_rounded([wide.astype(np.float64)], 4)
