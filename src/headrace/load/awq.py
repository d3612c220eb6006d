"""AWQ checkpoints, the layout called gemm: 4 bits, words along outputs in an order of their own (arXiv 2306.00978)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.load.integers import Grouped, unpack
from headrace.load.quantized import SCALE_TYPES, Found, Matrix, Stored, Told, check, extents, finite, modules
from headrace.ops.base import Integers
from headrace.words.errors import ModelError, brief

BITS, PER_WORD = 4, 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read(stored: Stored, told: Told) -> Found:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]. Raises ModelError."""
    told.one_of("bits", (BITS,), other="w_bit")
    told.one_of("version", ("gemm", "GEMM"), "gemm", other="format")
    group = told.group_size(other="q_group_size")
    found = {f"{name}.weight": matrix(stored, name, group) for name in modules(stored, "qweight")}
    return Found(found)


def matrix(stored: Stored, name: str, group: int | None) -> Matrix:
    columns, words = extents(stored, f"{name}.qweight")
    rows = words * PER_WORD
    group = min(group or columns, columns)
    if columns % group:
        raise ModelError(stored.file, f"the matrix {brief(name)} has {columns} inputs, which {group} does not divide")
    num_groups = columns // group
    weight = check(stored, f"{name}.qweight", ("I32",), (columns, words))
    zeros = check(stored, f"{name}.qzeros", ("I32",), (num_groups, words))
    scales = check(stored, f"{name}.scales", SCALE_TYPES, (num_groups, rows))
    grouped = Grouped(
        integers(stored, weight),
        (rows, columns),
        group,
        turned(stored, scales),
        partial(unpack, integers(stored, zeros), (rows, num_groups)),
        is_symmetric=False,
        has_half_scales=stored.dtype(scales) != "F32",
    )
    return Matrix.of((weight, zeros, scales), grouped)


def integers(stored: Stored, name: str) -> Integers:
    columns, words = stored.shape(name)
    return Integers(stored.raw(name), BITS, (words, columns), is_turned=True, holds_rows=True, places=PLACES)


def turned(stored: Stored, name: str) -> Callable[[], NDArray[np.generic]]:
    return lambda: finite(stored, name).T
