"""Weights kept as integers in groups: GGML's blocks and plain codes, against their dequantized values."""

import gguf
import numpy as np
import pytest
from tests.ops.native.machines import KINDS, assert_same_on_all, numbers, ops_of

from headrace.ops.base import Integers
from headrace.ops.bfloat16 import to_float32

FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def blocks(name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Random blocks whose scales are ordinary numbers, [n, bytes of a row]."""
    rng = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    raw = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(name, (0,)):
        halves = rng.normal(0, 0.01, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def plain(name: str, raw: np.ndarray) -> np.ndarray:
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float64)


def pack(ops, *parts: tuple[str, np.ndarray], k: int, order=None):
    return ops.machine.pack_blocks([(raw.reshape(-1), name, len(raw), order) for name, raw in parts], k)


def integers(codes: np.ndarray, bits: int) -> Integers:
    """Row by row, in words of one byte or four."""
    if bits == 8:
        return Integers(codes.astype(np.int8).view(np.uint8).reshape(-1), 8, codes.shape, word_bytes=1, is_signed=True)
    pairs = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return Integers(pairs.reshape(-1), 4, (len(codes), codes.shape[1] // 8))


def assert_close(result: np.ndarray, x: np.ndarray, matrix: np.ndarray) -> None:
    wanted = to_float32(x).astype(np.float64) @ matrix.T
    scale = np.abs(to_float32(x)).astype(np.float64) @ np.abs(matrix).T
    assert (np.abs(result - wanted) <= 2e-6 * scale + 1e-7).all()


@pytest.mark.parametrize("rows", [1, 3, 13, 70])
@pytest.mark.parametrize("name", FORMATS)
def test_a_product_is_that_of_the_dequantized_matrix_in_fp32(name, rows):
    n, k = 45, 1280
    raw, x = blocks(name, n, k), numbers("bfloat16", rows, k)
    result = assert_same_on_all("bfloat16", lambda ops: ops.logits(x, pack(ops, (name, raw), k=k)))
    assert_close(result, x, plain(name, raw))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_any_company(name):
    k = 512
    raw, x = blocks(name, 64, k), numbers("bfloat16", 40, k)
    ops = ops_of(*KINDS[-1], "bfloat16")
    weight = pack(ops, (name, raw), k=k)
    together = ops.logits(x, weight)
    for i in (0, 1, 7, 39):
        assert (ops.logits(x[i : i + 1], weight) == together[i]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_looked_up(name):
    raw = blocks(name, 70, 256)
    ids = np.array([0, 69, 33, 5], np.int32)
    result = assert_same_on_all("bfloat16", lambda ops: ops.embed(ids, pack(ops, (name, raw), k=256)))
    np.testing.assert_allclose(result, plain(name, raw)[ids], rtol=1e-6, atol=1e-8)


def test_parts_of_other_formats_lie_below_one_another_in_an_order():
    k = 256
    first, second, x = blocks("Q4_K", 40, k), blocks("Q6_K", 24, k, seed=1), numbers("bfloat16", 5, k)
    order = np.random.default_rng(2).permutation(40).astype(np.int32)
    matrix = np.concatenate([plain("Q4_K", first)[order], plain("Q6_K", second)])

    def run(ops):
        parts = [(first.reshape(-1), "Q4_K", 40, order), (second.reshape(-1), "Q6_K", 24, None)]
        return ops.logits(x, ops.machine.pack_blocks(parts, k))

    assert_close(assert_same_on_all("bfloat16", run), x, matrix)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("has_minimum", [False, True])
def test_codes_with_scales_and_minimums(bits, group, has_minimum):
    rng = np.random.default_rng(3)
    n, k = 33, 1120
    codes = rng.integers(0, 16, (n, k)) if bits == 4 else rng.integers(-128, 128, (n, k))
    scales = rng.normal(0, 0.01, (n, k // group)).astype(np.float32)
    minimums = rng.normal(0, 0.1, scales.shape).astype(np.float32) if has_minimum else None
    matrix = codes * np.repeat(scales.astype(np.float64), group, 1)
    matrix += 0 if minimums is None else np.repeat(minimums.astype(np.float64), group, 1)
    x = numbers("bfloat16", 9, k)
    part = (integers(codes, bits), scales, minimums, group, False)
    result = assert_same_on_all("bfloat16", lambda ops: ops.logits(x, ops.machine.pack_codes([part], k)))
    assert_close(result, x, matrix)


def test_what_does_not_fit_is_refused():
    ops = ops_of(*KINDS[0], "bfloat16")
    raw = blocks("Q8_0", 4, 64)
    with pytest.raises(ValueError, match="format of blocks"):
        ops.machine.pack_blocks([(raw.reshape(-1), "IQ2_XS", 4, None)], 64)
    with pytest.raises(ValueError, match="not as many"):
        ops.machine.pack_blocks([(raw.reshape(-1)[:-1], "Q8_0", 4, None)], 64)
    with pytest.raises(ValueError, match="whole blocks"):
        ops.machine.pack_blocks([(raw.reshape(-1), "Q8_0", 4, None)], 65)
    with pytest.raises(ValueError, match="does not exist"):
        ops.machine.pack_blocks([(raw.reshape(-1), "Q8_0", 4, np.array([0, 1, 2, 4], np.int32))], 64)


def test_integers_that_do_not_fit_are_refused():
    ops = ops_of(*KINDS[0], "bfloat16")
    words, scales = integers(np.zeros((4, 64), np.int8), 4), np.ones((4, 2), np.float32)
    assert ops.machine.pack_codes([(words, scales, None, 32, True)], 64).shape == (4, 64)
    wrong = {
        "fewer integers": ([(words, scales, None, 64, True)], 128),
        "scales do not fit": ([(words, scales, None, 16, True)], 64),
        "minimums do not fit": ([(words, scales, scales[:3], 32, True)], 64),
        "a multiple of 16": ([(words, scales, None, 24, True)], 64),
        "not as many as": ([(words._replace(data=words.data[:-4]), scales, None, 32, True)], 64),
        "4 or 8 bits": ([(words._replace(bits=2), scales, None, 32, True)], 64),
        "no such place": ([(words._replace(places=(0, 1, 2, 3, 4, 5, 6, 8)), scales, None, 32, True)], 64),
        "a place for each": ([(words._replace(places=(0, 1)), scales, None, 32, True)], 64),
        "at least one part": ([], 64),
    }
    for cause, (parts, columns) in wrong.items():
        with pytest.raises(ValueError, match=cause):
            ops.machine.pack_codes(parts, columns)


@pytest.mark.parametrize("columns", [40, 45, 64])
def test_a_last_group_may_be_shorter_and_a_group_a_whole_row(columns):
    codes = np.random.default_rng(5).integers(-128, 128, (33, columns))
    ids = np.arange(33, dtype=np.int32)
    for group in (16, 32, columns):
        scales = np.random.default_rng(6).normal(0, 0.01, (33, -(-columns // group))).astype(np.float32)
        part = (integers(codes, 8), scales, None, group, False)
        got = assert_same_on_all(
            "bfloat16", lambda ops, part=part: ops.embed(ids, ops.machine.pack_codes([part], columns))
        )
        np.testing.assert_allclose(got, codes * np.repeat(scales, group, 1)[:, :columns], rtol=1e-6)


def test_parts_of_4_and_of_8_bits_lie_below_one_another():
    rng, x = np.random.default_rng(7), numbers("bfloat16", 5, 128)
    few, many = rng.integers(0, 16, (40, 128)), rng.integers(-128, 128, (24, 128))
    scales, minimums = rng.normal(0, 0.01, (40, 2)).astype(np.float32), rng.normal(0, 0.1, (40, 2)).astype(np.float32)
    wide = rng.normal(0, 0.001, (24, 8)).astype(np.float32)
    parts = [(integers(few, 4), scales, minimums, 64, False), (integers(many, 8), wide, None, 16, False)]
    first = few * np.repeat(scales, 64, 1) + np.repeat(minimums, 64, 1)
    got = assert_same_on_all("bfloat16", lambda ops: ops.logits(x, ops.machine.pack_codes(parts, 128)))
    assert_close(got, x, np.concatenate([first, many * np.repeat(wide, 16, 1)]))
