"""Counts by bucket, read as Prometheus reads them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = tuple(float(10**power * step) for power in range(6) for step in (1, 2, 5))


class Histogram:
    """Cheap to feed by the thousand; not shared between threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def add_all(self, values: Iterable[float]) -> None:
        for value in values:
            self.add(value)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """([(upper bound, how many are not above it)], sum)."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else repr(bound), float(total)))
        return buckets, self._sum


def gap_s(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
