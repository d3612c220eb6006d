"""Numbers made integers of 4 or 8 bits in groups of 32 along a row: what kernels do at load, in numpy, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Floats
from headrace.ops.bfloat16 import as_dtype

GROUP = 32
NUM_FITS = 4
MOST = np.float32(65504)
"""A group with a larger number, or one that is not finite, is NaN as a whole."""


def rounded(values: NDArray[Any], bits: int) -> tuple[Floats, Floats, Floats]:
    """[n, k] → integers, scales and minimums of each group of 32, [n, groups, 32] and twice [n, groups, 1].

    8 bits: −127 to 127, the largest magnitude divided by 127 is the scale, there is no minimum. 4 bits: 0 to 15 from
    the least number to the largest; then scale and minimum are fitted by least squares to the integers, and these
    rounded anew, four times; what has the least squared error is kept, the earliest among equals. Scales and minimums
    are float16. A last group that is not whole is filled with the row's last number.
    """
    wide = as_dtype(values, "float32")
    groups = np.pad(wide, ((0, 0), (0, -wide.shape[1] % GROUP)), mode="edge").reshape(len(wide), -1, GROUP)
    with np.errstate(invalid="ignore"):
        is_moderate = (np.abs(groups) <= MOST).all(-1, keepdims=True)
    groups = np.where(is_moderate, groups, np.float32(0))
    codes, scales, minimums = _best_4_bits(groups) if bits == 4 else _best_8_bits(groups)
    return codes, np.where(is_moderate, scales, np.float32(np.nan)), minimums


def rounded_values(values: NDArray[Any], bits: int) -> Floats:
    """[n, k] → what the integers mean, [n, k]"""
    codes, scales, minimums = rounded(values, bits)
    return (codes * scales + minimums).reshape(len(values), -1)[:, : values.shape[1]]


def as_half(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def inverse(scales: Floats) -> Floats:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)


def folded_sum(x: Floats) -> Floats:
    """[…, 32] → […, 1]: halves added until one number is left"""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x


def _best_8_bits(x: Floats) -> tuple[Floats, Floats, Floats]:
    scales = as_half(np.abs(x).max(-1, keepdims=True) / np.float32(127))
    codes = np.rint(np.clip(x * inverse(scales), np.float32(-127), np.float32(127)))
    return codes, scales, np.zeros_like(scales)


def _best_4_bits(x: Floats) -> tuple[Floats, Floats, Floats]:
    low = x.min(-1, keepdims=True)
    scales, minimums = as_half((x.max(-1, keepdims=True) - low) / np.float32(15)), as_half(low)
    codes = _codes(x, scales, minimums)
    best, least = [codes, scales, minimums], _squared_error(x, codes, scales, minimums)
    for _ in range(NUM_FITS):
        scales, minimums = _fit(x, codes, scales, minimums)
        codes = _codes(x, scales, minimums)
        error = _squared_error(x, codes, scales, minimums)
        is_better = error < least
        least = np.where(is_better, error, least)
        best = [np.where(is_better, new, old) for new, old in zip((codes, scales, minimums), best, strict=True)]
    return best[0], best[1], best[2]


def _codes(x: Floats, scales: Floats, minimums: Floats) -> Floats:
    return np.rint(np.clip((x - minimums) * inverse(scales), np.float32(0), np.float32(15)))


def _squared_error(x: Floats, codes: Floats, scales: Floats, minimums: Floats) -> Floats:
    difference = x - (codes * scales + minimums)
    return folded_sum(difference * difference)


def _fit(x: Floats, codes: Floats, scales: Floats, minimums: Floats) -> tuple[Floats, Floats]:
    """Scale and minimum with the least squared error for these integers; as they were where all integers are equal."""
    mean_code, mean = folded_sum(codes) / np.float32(GROUP), folded_sum(x) / np.float32(GROUP)
    squares = folded_sum((codes - mean_code) * (codes - mean_code))
    products = folded_sum((codes - mean_code) * (x - mean))
    differ = squares > 0
    fitted = as_half(np.divide(products, squares, out=np.zeros_like(squares), where=differ))
    new = np.where(differ, fitted, scales)
    return new, np.where(differ, as_half(mean - new * mean_code), minimums)
