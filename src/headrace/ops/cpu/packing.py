"""Quantized matrices into the layout of the kernels, straight from what checkpoints hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace import _native
from headrace.ops.base import Blocks, Codes, QuantizedMatrix, Unrounded

BLOCK_FORMATS = frozenset(_native.block_formats())


def pack_quantized(machine: _native.Machine, matrix: QuantizedMatrix) -> _native.Weight | None:
    """None where the kernels do not know the parts, or not beside one another."""
    parts, num_columns = matrix.parts, matrix.shape[1]
    blocks = [part for part in parts if isinstance(part, Blocks) and part.format in BLOCK_FORMATS]
    codes = [part for part in parts if isinstance(part, Codes)]
    unrounded = [part for part in parts if isinstance(part, Unrounded)]
    if len(blocks) == len(parts):
        return machine.pack_blocks([(p.data, p.format, p.shape[0], p.order) for p in blocks], num_columns)
    if len(codes) == len(parts):
        return machine.pack_codes([code_part(part) for part in codes], num_columns)
    if len(unrounded) == len(parts) and len({part.bits for part in unrounded}) == 1:
        return machine.pack_rounded([np.ascontiguousarray(part.values()) for part in unrounded], unrounded[0].bits)
    return None


def code_part(part: Codes) -> tuple[Any, ...]:
    scales, minimums = part.scales()
    return part.integers, scales, minimums, part.group, part.is_half
