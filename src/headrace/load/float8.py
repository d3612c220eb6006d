"""Matrices of 8-bit floats (E4M3 of arXiv 2209.05433) with scales: read as numbers. Also the method called fp8."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.load.quantized import SCALE_TYPES, Found, Matrix, Stored, Told, extents, finite
from headrace.ops.base import Floats
from headrace.ops.bfloat16 import as_dtype
from headrace.words.errors import ModelError, brief

TYPE = "F8_E4M3"
SCALES = ("weight_scale_inv", "weight_scale")
"""Both are multiplied by, whatever their names."""
UNUSED = ("input_scale", "activation_scale", "output_scale", "k_scale", "v_scale", "q_scale")
"""Scales of activations and of a cache of 8-bit floats; here neither is quantized so."""


def read(stored: Stored, told: Told) -> Found:
    """Matrices that are E4M3; all others are left as they are. Raises ModelError."""
    told.one_of("fmt", ("e4m3", "E4M3", "float8_e4m3fn"), "e4m3")
    block = told.raw.get("weight_block_size")
    return Found({name: matrix(stored, name, block_size(told, block)) for name in float8_names(stored)}, unused(stored))


def float8_names(stored: Stored) -> list[str]:
    return sorted(name for name in stored.names() if name.endswith(".weight") and stored.dtype(name) == TYPE)


def unused(stored: Stored) -> frozenset[str]:
    return frozenset(name for name in stored.names() if name.rpartition(".")[2] in UNUSED)


def block_size(told: Told, value: object) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None if the configuration names none."""
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise told.refuse(f"has blocks of {brief(value)} instead of two positive whole numbers")


def matrix(stored: Stored, name: str, block: tuple[int, int] | None) -> Matrix:
    rows, columns = extents(stored, name)
    module = name.removesuffix(".weight")
    scale = next((s for kind in SCALES if (s := f"{module}.{kind}") in stored.names()), None)
    if scale is None:
        raise ModelError(stored.file, f"the tensor {brief(name)} is {TYPE} and has no scale ({' or '.join(SCALES)})")
    if stored.dtype(scale) not in SCALE_TYPES:
        types = " or ".join(SCALE_TYPES)
        raise ModelError(stored.file, f"the tensor {brief(scale)} is {stored.dtype(scale)} instead of {types}")
    spread = extents_of_scale(tuple(stored.shape(scale)), (rows, columns), block)
    if spread is None:
        raise ModelError(
            stored.file, f"the tensor {brief(scale)} has the shape {list(stored.shape(scale))}, which does not fit"
        )
    return Matrix((name, scale), (rows, columns), partial(values, stored, name, scale, spread), lambda: None)


def extents_of_scale(
    shape: tuple[int, ...], matrix: tuple[int, int], block: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Rows and columns that share a scale: all, a row, or a block. None where as many scales are for none of these."""
    rows, columns = matrix
    if shape in ((), (1,), (1, 1)):
        return rows, columns
    if shape in ((rows,), (rows, 1)):
        return 1, columns
    if block is not None and shape == (-(-rows // block[0]), -(-columns // block[1])):
        return min(block[0], rows), min(block[1], columns)
    return None


def values(stored: Stored, name: str, scale: str, spread: tuple[int, int]) -> Floats:
    """[rows, columns], each number × its scale"""
    rows, columns = stored.shape(name)
    scales = as_dtype(finite(stored, scale), "float32").reshape(-(-rows // spread[0]), -(-columns // spread[1]))
    found = table()[stored.raw(name)].reshape(rows, columns)
    found *= np.repeat(np.repeat(scales, spread[0], 0)[:rows], spread[1], 1)[:, :columns] if scales.size > 1 else scales
    return found


def table() -> NDArray[np.float32]:
    """[256] what each byte means: a sign, four bits of exponent around 7, three of fraction; there is no infinity, and
    all ones are NaN."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    magnitude = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    magnitude[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -magnitude, magnitude).astype(np.float32)
