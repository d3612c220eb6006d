"""Which tokens of a row min_p, top_k and top_p leave: exact, without sorting the vocabulary where that can be avoided.

`gaps` are a row's logits minus their maximum, over the temperature: ≤ 0, −inf for a forbidden token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.ops.draws import MASS_REACH, masses
from headrace.ops.elementary import log

Ints = NDArray[np.int32]
Places = NDArray[np.int64]
Floats = NDArray[np.float32]

GROUP = 16
"""Tokens per group when a bound on the k-th largest logit is sought."""
BINS_PER_UNIT = np.float32(64)
"""Resolution of the gap when top_p counts mass; any number gives the same tokens."""
SMALLEST_NORMAL = np.float32(2.0**-126)


def scaled_gaps(logits: Floats, top_id: int, temperature: np.float32) -> Floats:
    """[vocab] → gaps, the subtraction before the division, so that no temperature makes infinities meet."""
    gaps = logits - logits[top_id]
    with np.errstate(over="ignore"):
        gaps /= temperature
    return gaps


def top_places(values: Floats, k: int) -> Places:
    """Places of the k largest values and of all that tie with the k-th, rising."""
    if k >= values.size:
        return np.arange(values.size)
    bound = _bound(values, k)
    found = np.arange(values.size) if bound is None else np.flatnonzero(values >= bound)
    inside = values[found]
    if found.size == k:
        return found
    kth = np.partition(inside, found.size - k)[found.size - k]
    return found[inside >= kth]


def _bound(values: Floats, k: int) -> np.float32 | None:
    """A number that at least k values reach: the k-th largest maximum of disjoint groups. None: too few groups."""
    num_groups = values.size // GROUP
    if num_groups < k:
        return None
    maxima = values[: GROUP * num_groups].reshape(GROUP, num_groups).max(axis=0)
    return np.partition(maxima, num_groups - k)[num_groups - k]


def by_falling_value(values: Floats, places: Places) -> Places:
    """`places` (rising) ordered by value, ties by lowest place."""
    return places[np.argsort(-values[places], kind="stable")]


def nucleus(gaps: Floats, top_p: float) -> Places:
    """Places, rising, of the most likely tokens, each kept while the mass before it is below `top_p` of the whole; at
    least one. Gaps ≥ −MASS_REACH; masses are exact sums (`draws.masses`), ties are taken by lowest place.

    The tokens are counted into bins by gap; only the bin in which the limit falls is sorted.
    """
    mass = masses(gaps)
    bins = (gaps * -BINS_PER_UNIT).astype(np.int64)
    reached = np.cumsum(np.bincount(bins, mass))
    limit = top_p * reached[-1]
    last = int(np.searchsorted(reached, limit))
    inside = by_falling_value(gaps, np.flatnonzero(bins == last))
    before = reached[last] - np.cumsum(mass[inside][::-1])[::-1]
    count = max(1, int(np.searchsorted(before, limit)))
    return np.sort(np.concatenate([np.flatnonzero(bins < last), inside[:count]]))


def kept_places(gaps: Floats, min_p: np.float32, top_k: int, top_p: float) -> Places | None:
    """Ids, rising, of the tokens that remain of a row's whole vocabulary; None when nothing is cut.

    min_p and top_k are both cuts by value, so their order is free.
    """
    places: Places | None = None
    if top_k > 0:
        places = top_places(gaps, top_k)
    if min_p > 0:
        floor = log(np.maximum(min_p, SMALLEST_NORMAL)[None])[0]
        places = np.flatnonzero(gaps >= floor) if places is None else places[gaps[places] >= floor]
    if top_p < 1:
        has_mass = gaps >= -MASS_REACH
        places = np.flatnonzero(has_mass) if places is None else places[has_mass[places]]
        places = places[nucleus(gaps[places], top_p)]
    return places
