"""Quantized matrices into the layout of the kernels, straight from what checkpoints hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace import _native
from headrace.ops.base import Blocks, Codes, QuantizedMatrix, Unrounded


def pack_quantized(machine: _native.Machine, matrix: QuantizedMatrix) -> _native.Weight | None:
    """None where the kernels do not keep it."""
    if matrix.form is None:
        return None
    blocks = [part for part in matrix.parts if isinstance(part, Blocks)]
    codes = [part for part in matrix.parts if isinstance(part, Codes)]
    unrounded = [part for part in matrix.parts if isinstance(part, Unrounded)]
    if blocks:
        return machine.pack_blocks([(p.data, p.format, p.shape[0], p.order) for p in blocks], matrix.shape[1])
    if codes:
        return machine.pack_codes([code_part(part) for part in codes], matrix.shape[1])
    return machine.pack_rounded([np.ascontiguousarray(part.values()) for part in unrounded], unrounded[0].bits)


def code_part(part: Codes) -> tuple[Any, ...]:
    scales, minimums = part.scales()
    return part.integers, scales, minimums, part.group, part.is_half
