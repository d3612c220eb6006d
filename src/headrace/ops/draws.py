"""Draws by Gumbel noise that is a pure function of (seed, choice, position, token id); numerics version 1.

The winner of argmax(log p + G) over independent Gumbel G is distributed as p (the Gumbel-max trick). Because the noise
is keyed and never taken from a generator, a row's draw depends on nothing but the row. The arithmetic is uint32,
uint64 and single float32 operations, so that a port repeats it bit for bit:

    z = mix64(mix64(seed + STEP) xor (choice · 2³² + position)), STEP the odd number next to 2⁶⁴/φ
    low, high = the two halves of z
    h = mix of (token id + low), `high` xored in between its two multiplications
    u = (⌊h / 2⁹⌋ + ½) · 2⁻²³, exact in float32, never 0 nor 1
    G = −log(−log(u))

mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, Stafford's variant 13), the 32-bit mix uses the two
multipliers that Wellons' search found least biased (0x7FEB352D, 0x846CA68B).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.ops.elementary import exp, log

Ints = NDArray[np.int32]
Words = NDArray[np.uint32]
Key = Words | np.uint32
Floats = NDArray[np.float32]

STEP = np.uint64(0x9E3779B97F4A7C15)
MIX64 = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MIX32 = ((16, 0x7FEB352D), (15, 0x846CA68B))
BIN = np.float32(2.0**-23)
HALF = np.float32(0.5)


def _mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in MIX64:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


def keys(seeds: NDArray[np.uint64], choices: Ints, positions: Ints) -> tuple[Words, Words]:
    """[R], [R], [R] → the two key words of each draw, [R] each."""
    place = (choices.astype(np.uint64) << np.uint64(32)) | positions.astype(np.uint64)
    z = _mix64(_mix64(seeds + STEP) ^ place)
    return z.astype(np.uint32), (z >> np.uint64(32)).astype(np.uint32)


def bins(token_ids: Ints, low: Key, high: Key) -> Words:
    """Uniform whole numbers in [0, 2²³), one per token id; `low` and `high` broadcast."""
    (shift, factor), (next_shift, next_factor) = MIX32
    h = token_ids.astype(np.uint32) + low
    h ^= h >> np.uint32(shift)
    h *= np.uint32(factor)
    h ^= high
    h ^= h >> np.uint32(next_shift)
    h *= np.uint32(next_factor)
    h ^= h >> np.uint32(16)
    h >>= np.uint32(9)
    return h


def gumbel(bin_numbers: Words) -> Floats:
    """Gumbel noise of the middle of each bin."""
    u = bin_numbers.astype(np.float32)
    u += HALF
    u *= BIN
    return -log(-log(u))


def noise(token_ids: Ints, low: Key, high: Key) -> Floats:
    """Gumbel noise of each token id; `low` and `high` broadcast."""
    return gumbel(bins(token_ids, low, high))


MIN_NOISE, MAX_NOISE = (float(g) for g in gumbel(np.array([0, 2**23 - 1], np.uint32)))
REACH = np.float32(MAX_NOISE - MIN_NOISE + 1.0)
"""A token whose log-probability lies further below the row's maximum can never win; 1 is a margin for rounding."""
FEW = 2_048
"""So many contenders are not worth narrowing down."""


def contenders(token_ids: Ints, gaps: Floats, low: np.uint32, high: np.uint32) -> NDArray[np.int64]:
    """Where in a row's candidates [N] those stand that can still win its draw: a superset of the winner, cheap to find.
    `gaps` ≤ 0 are log-probabilities relative to the most likely candidate's.

    Beyond REACH none wins. Of the others, one beats the most likely token's score s only if −log(u) ≤ exp(gap − s),
    hence only if 1 − u ≤ exp(gap − s), which needs no logarithm; a per mille and one bin cover the rounding of exp.
    """
    near = np.flatnonzero(gaps >= -REACH)
    if near.size <= FEW:
        return near
    token_ids, gaps = token_ids[near], gaps[near]
    top = int(gaps.argmax())
    score = noise(token_ids[top : top + 1], low, high)[0]
    bound = np.exp(gaps - score)
    bound *= np.float32(1.001 * 2.0**23)
    bound += np.float32(1)
    bins_from_one = np.uint32(2**23 - 1) - bins(token_ids, low, high)
    return near[bins_from_one.astype(np.float32) <= bound]


def winners(token_ids: Ints, gaps: Floats, starts: NDArray[np.int64], low: Words, high: Words) -> Ints:
    """Each row's argmax(gap + noise), ties to the lowest id, [R]. Row r's contenders, at least one, lie at
    [starts[r], starts[r + 1]), the last row's up to the end."""
    counts = np.diff(np.append(starts, token_ids.size))
    scores = gaps + noise(token_ids, np.repeat(low, counts), np.repeat(high, counts))
    best = np.repeat(np.maximum.reduceat(scores, starts), counts)
    losers_last = np.where(scores == best, token_ids, np.int32(2**31 - 1))
    return np.minimum.reduceat(losers_last, starts)


MASS_UNITS = np.float32(2.0**34)
"""Probability masses are whole multiples of 2⁻³⁴, so that float64 sums of up to 2¹⁹ of them are exact in any order."""
MASS_REACH = np.float32(24.6)
"""exp(−24.6) rounds to no unit at all."""


def masses(gaps: Floats) -> NDArray[np.float64]:
    """exp(gap) in units of 2⁻³⁴, rounded to whole units; gaps ≤ 0."""
    units = exp(np.maximum(gaps, -MASS_REACH))
    units *= MASS_UNITS
    return np.rint(units, out=units).astype(np.float64)
