"""GGML's block formats to float32, in the order of operations of ggml's own dequantizers, so that bits agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
SUPER = 256
"""Values of a super-block of the K formats."""


class Quant(NamedTuple):
    """A format: `block_values` numbers in `block_bytes` bytes."""

    name: str
    block_values: int
    block_bytes: int
    unpack: Callable[[Bytes], Floats]

    def dequantize(self, raw: Bytes) -> Floats:
        """Bytes of whole blocks → float32, flat. A scale that is not finite makes values that are not, silently."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.unpack(raw.reshape(-1, self.block_bytes)).reshape(-1)


def halves(raw: Bytes) -> Floats:
    """[blocks, 2n] bytes → [blocks, n] float16 values as float32"""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def nibbles(raw: Bytes) -> NDArray[np.uint8]:
    """[blocks, n] → [blocks, 2n]: all low halves, then all high ones"""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def f32(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float32)


def f16(raw: Bytes) -> Floats:
    return halves(raw)


def bf16(raw: Bytes) -> Floats:
    wide = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32)


def q4_0(raw: Bytes) -> Floats:
    return halves(raw[:, :2]) * (nibbles(raw[:, 2:]).astype(np.int8) - np.int8(8)).astype(np.float32)


def q4_1(raw: Bytes) -> Floats:
    return halves(raw[:, :2]) * nibbles(raw[:, 4:]).astype(np.float32) + halves(raw[:, 2:4])


def fifth_bits(raw: Bytes) -> NDArray[np.uint8]:
    """[blocks, 4] → [blocks, 32] bits, worth 16 each"""
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little") << np.uint8(4)


def q5_0(raw: Bytes) -> Floats:
    values = (nibbles(raw[:, 6:]) | fifth_bits(raw[:, 2:6])).astype(np.int8) - np.int8(16)
    return halves(raw[:, :2]) * values.astype(np.float32)


def q5_1(raw: Bytes) -> Floats:
    values = nibbles(raw[:, 8:]) | fifth_bits(raw[:, 4:8])
    return halves(raw[:, :2]) * values.astype(np.float32) + halves(raw[:, 2:4])


def q8_0(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32) * halves(raw[:, :2])


def pairs(raw: Bytes, shifts: tuple[int, ...], mask: int, group: int) -> NDArray[np.uint8]:
    """[blocks, n] → [blocks, n × shifts]: for each `group` bytes the parts at every shift, one part after the other"""
    grouped = raw.reshape(raw.shape[0], -1, 1, group)
    parts = (grouped >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)) & np.uint8(mask)
    return parts.reshape(raw.shape[0], -1)


def q2_k(raw: Bytes) -> Floats:
    scales, quants, d, dmin = np.split(raw, [16, 80, 82], axis=1)
    step = halves(d) * (scales & 15).astype(np.float32)
    least = halves(dmin) * (scales >> 4).astype(np.float32)
    values = pairs(quants, (0, 2, 4, 6), 3, 32).reshape(-1, 16, 16).astype(np.float32)
    return step[:, :, None] * values - least[:, :, None]


def q3_k(raw: Bytes) -> Floats:
    mask, quants, scales, d = np.split(raw, [32, 96, 108], axis=1)
    low = pairs(scales[:, :8], (0, 4), 15, 8)
    high = pairs(scales[:, 8:], (0, 2, 4, 6), 3, 4)
    six = (low | (high << 4)).astype(np.int8) - np.int8(32)
    step = halves(d) * six.astype(np.float32)
    low_bits = pairs(quants, (0, 2, 4, 6), 3, 32)
    high_bits = pairs(mask, tuple(range(8)), 1, 32) ^ 1
    values = low_bits.astype(np.int8) - (high_bits << 2).astype(np.int8)
    return step[:, :, None] * values.reshape(-1, 16, 16).astype(np.float32)


def six_bit_scales(raw: Bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[blocks, 12] → scales and minimums [blocks, 8] of Q4_K and Q5_K"""
    first, second, high = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, (high & 15) | ((first >> 2) & 48)], axis=1)
    least = np.concatenate([second & 63, (high >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, least


def scaled(raw: Bytes, values: NDArray[np.uint8]) -> Floats:
    """Q4_K and Q5_K: 8 groups of 32 values, each with a scale and a minimum"""
    scales, least = six_bit_scales(raw[:, 4:16])
    step = halves(raw[:, :2]) * scales.astype(np.float32)
    low = halves(raw[:, 2:4]) * least.astype(np.float32)
    return step[:, :, None] * values.reshape(-1, 8, 32).astype(np.float32) - low[:, :, None]


def q4_k(raw: Bytes) -> Floats:
    return scaled(raw, pairs(raw[:, 16:], (0, 4), 15, 32))


def q5_k(raw: Bytes) -> Floats:
    high = pairs(raw[:, 16:48], tuple(range(8)), 1, 32)
    return scaled(raw, pairs(raw[:, 48:], (0, 4), 15, 32) | (high << np.uint8(4)))


def q6_k(raw: Bytes) -> Floats:
    low, high, scales, d = np.split(raw, [128, 192, 208], axis=1)
    four = pairs(low, (0, 4), 15, 64)
    two = pairs(high, (0, 2, 4, 6), 3, 32)
    values = (four | (two << 4)).astype(np.int8) - np.int8(32)
    step = halves(d) * np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    return step[:, :, None] * values.reshape(-1, 16, 16).astype(np.float32)


QUANTS: dict[int, Quant] = {
    0: Quant("F32", 1, 4, f32),
    1: Quant("F16", 1, 2, f16),
    2: Quant("Q4_0", 32, 18, q4_0),
    3: Quant("Q4_1", 32, 20, q4_1),
    6: Quant("Q5_0", 32, 22, q5_0),
    7: Quant("Q5_1", 32, 24, q5_1),
    8: Quant("Q8_0", 32, 34, q8_0),
    10: Quant("Q2_K", SUPER, 84, q2_k),
    11: Quant("Q3_K", SUPER, 110, q3_k),
    12: Quant("Q4_K", SUPER, 144, q4_k),
    13: Quant("Q5_K", SUPER, 176, q5_k),
    14: Quant("Q6_K", SUPER, 210, q6_k),
    30: Quant("BF16", 1, 2, bf16),
}
"""By ggml's type number."""
