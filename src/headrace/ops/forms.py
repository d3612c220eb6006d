"""What kernels keep a matrix of integers as, and what that takes."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """Integers in groups along a row, each with a scale and perhaps a minimum."""

    bits: int
    group: int
    """32 or 16"""
    has_minimum: bool
    is_half: bool
    """Whether float16 holds scales and minimums."""

    def beside(self, other: Form) -> Form:
        """Of rows of both below one another: the wider integers and the shorter groups hold all."""
        return Form(
            max(self.bits, other.bits),
            min(self.group, other.group),
            self.has_minimum or other.has_minimum,
            self.is_half and other.is_half,
        )

    def num_bytes(self, shape: tuple[int, int]) -> int:
        """Of a matrix: 32 columns and rows at a time."""
        rows, columns = (-(-size // 32) * 32 for size in shape)
        per_group = (2 if self.has_minimum else 1) * (2 if self.is_half else 4)
        return rows * columns * self.bits // 8 + rows * (columns // self.group) * per_group


BLOCK_FORMS = {
    "Q4_0": Form(4, 32, True, False),
    "Q4_1": Form(4, 32, True, True),
    "Q5_0": Form(8, 32, False, True),
    "Q5_1": Form(8, 32, True, True),
    "Q8_0": Form(8, 32, False, True),
    "Q4_K": Form(4, 32, True, False),
    "Q5_K": Form(8, 32, True, False),
    "Q6_K": Form(8, 16, False, False),
}
"""By GGML's name of a format; the kernels know no others."""
