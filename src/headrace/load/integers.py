"""Integers in words, and matrices of them in groups with scales and zeros, as numbers: the kernels' slow twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Codes, Floats, Integers, Ints
from headrace.ops.bfloat16 import as_dtype

WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 4: np.dtype("<u4")}


def unpack(integers: Integers, shape: tuple[int, int]) -> NDArray[np.int16]:
    """→ `shape`, the first rows and columns of what the words hold"""
    rows, columns = integers.num_words
    words = integers.data.view(WORDS[integers.word_bytes])
    words = words.reshape(columns, rows).T if integers.is_turned else words.reshape(rows, columns)
    places = integers.places or range(integers.word_bytes * 8 // integers.bits)
    shifts = np.array([place * integers.bits for place in places], words.dtype)
    apart = (words[..., None] >> shifts & words.dtype.type((1 << integers.bits) - 1)).astype(np.int16)
    if integers.holds_rows:
        apart = apart.transpose(0, 2, 1)
    held = apart.shape[2] if integers.holds_rows else apart.shape[1] * apart.shape[2]
    found = apart.reshape(-1, held)[: shape[0], : shape[1]]
    if integers.bits == 4:
        return found
    return found - np.int16(256) * (found > 127) if integers.is_signed else found - np.int16(128)


class Grouped(NamedTuple):
    """A matrix of integers in groups along its rows: each value is scale × (integer − zero)."""

    integers: Integers
    shape: tuple[int, int]
    group: int
    """values of a group, a whole row if it is as long"""
    scales: Callable[[], NDArray[Any]]
    """→ [rows, groups], float16, bfloat16 or float32"""
    zeros: Callable[[], NDArray[np.int16]]
    """→ [rows, groups], or [1, 1] for all, in the range that `unpack` gives"""
    is_symmetric: bool
    """Whether zeros are in the middle of that range; if it is not so after all, only the plan of memory is wrong."""
    has_half_scales: bool
    """Whether scales have no more bits than a float16."""
    groups: Callable[[], Ints] | None = None
    """→ [columns] the group of each, where they do not follow one another"""

    def dequantize(self) -> Floats:
        """→ [rows, columns]"""
        values = unpack(self.integers, self.shape).astype(np.float32)
        values -= self._spread(self.zeros().astype(np.float32))
        values *= self._spread(self._float_scales())
        return values

    def codes(self) -> Codes | None:
        """As kernels keep it; None if they cannot."""
        if self.groups is not None or (self.group % 16 and self.group < self.shape[1]):
            return None
        return Codes(
            self.integers,
            self.shape,
            self.group,
            has_minimum=not (self.is_symmetric and self.integers.bits == 8),
            is_half=self.is_symmetric and self.has_half_scales,
            scales=self._scales_and_minimums,
            dequantize=self.dequantize,
        )

    def _spread(self, of_groups: Floats) -> Floats:
        """[rows, groups] → [rows, columns]"""
        if of_groups.size == 1:
            return of_groups
        if self.groups is not None:
            return of_groups[:, self.groups()]
        return np.repeat(of_groups, self.group, axis=1)[:, : self.shape[1]]

    def _float_scales(self) -> Floats:
        return as_dtype(self.scales(), "float32")

    def _scales_and_minimums(self) -> tuple[Floats, Floats | None]:
        zeros, scales = self.zeros(), np.ascontiguousarray(self._float_scales())
        if not zeros.any():
            return scales, None
        return scales, np.ascontiguousarray(-zeros.astype(np.float32) * scales)
