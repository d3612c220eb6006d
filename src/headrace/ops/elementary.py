"""exp and log in float32 that give the same bits on every machine.

Each is a fixed chain of correctly rounded additions, subtractions and multiplications: no fused step, nothing from
the C library. A port compiled without contraction (`-ffp-contract=off`) repeats them bit for bit. The polynomials are
our own minimax fits; both err by less than one unit in the last place. They belong to numerics version 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LN2_HIGH = np.float32(0.693115234375)
"""The first bits of ln 2: its product with any exponent is exact."""
LN2_LOW = np.float32(3.194618329871446e-05)
LOG2_E = np.float32(1.4426950408889634)
SQRT_HALF_BITS = np.int32(0x3F3504F3)
ONE_BITS = np.int32(0x3F800000)

# (log(1 + f) − f + f²/2) / f³ for f in [√½ − 1, √2 − 1], lowest power last.
LOG_TERMS = tuple(
    np.float32(c)
    for c in (
        -0.07634429633617401,
        0.12761549651622772,
        -0.131601944565773,
        0.14201761782169342,
        -0.16623356938362122,
        0.20001226663589478,
        -0.250008225440979,
        0.3333333134651184,
    )
)
# (exp(r) − 1 − r) / r² for |r| ≤ ½ ln 2, lowest power last.
EXP_TERMS = tuple(
    np.float32(c)
    for c in (
        0.001381446490995586,
        0.008368780836462975,
        0.04166839271783829,
        0.1666651964187622,
        0.4999999403953552,
    )
)


def _horner(x: Floats, terms: tuple[np.float32, ...]) -> Floats:
    total = x * terms[0]
    total += terms[1]
    for term in terms[2:]:
        total *= x
        total += term
    return total


def log(x: Floats) -> Floats:
    """Natural logarithm of positive, normal, finite numbers of any shape."""
    bits = x.view(np.int32)
    exponent = (bits - SQRT_HALF_BITS) >> np.int32(23)
    f = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1)
    scale = exponent.astype(np.float32)
    square = f * f
    tail = _horner(f, LOG_TERMS)
    tail *= f
    tail *= square
    tail -= square * np.float32(0.5)
    tail += scale * LN2_LOW
    tail += f
    tail += scale * LN2_HIGH
    return tail


def exp(x: Floats) -> Floats:
    """e to the power of numbers between −87 and 87, of any shape."""
    scale = np.rint(x * LOG2_E)
    r = x - scale * LN2_HIGH
    r -= scale * LN2_LOW
    total = _horner(r, EXP_TERMS)
    total *= r
    total *= r
    total += r
    total += np.float32(1)
    scale_bits = scale.astype(np.int32)
    scale_bits <<= np.int32(23)
    scale_bits += ONE_BITS
    total *= scale_bits.view(np.float32)
    return total
