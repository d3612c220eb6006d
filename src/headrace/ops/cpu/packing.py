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
    if all(isinstance(part, Blocks) and part.format in BLOCK_FORMATS for part in parts):
        return machine.pack_blocks([(p.data, p.format, p.shape[0], p.order) for p in parts], num_columns)
    if all(isinstance(part, Codes) for part in parts):
        return machine.pack_codes([code_part(part) for part in parts], num_columns)
    if all(isinstance(part, Unrounded) and part.bits == parts[0].bits for part in parts):
        return machine.pack_rounded([np.ascontiguousarray(part.values()) for part in parts], parts[0].bits)
    return None


def code_part(part: Codes) -> tuple[Any, ...]:
    scales, minimums = part.scales()
    return part.integers, scales, minimums, part.group, part.is_half
