"""What two moments of a server's /metrics say: levels, rates, and quantiles of what was counted between them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
"""A line of Prometheus's text format without a time: name, labels, value."""
BOUND = re.compile(r'(?:^|,)le="([^"]*)"')
Buckets = dict[float, float]
"""Counts up to each upper bound."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading; `values` are summed over labels."""

    at_s: float
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, Buckets] = field(default_factory=dict)


def read_moment(text: str, at_s: float) -> Moment:
    """From Prometheus's text format."""
    values: defaultdict[str, float] = defaultdict(float)
    buckets: defaultdict[str, Buckets] = defaultdict(dict)
    for name, labels, value in SAMPLE.findall(text):
        if found := BOUND.search(labels):
            counts, bound = buckets[name.removesuffix("_bucket")], float(found[1])
            counts[bound] = counts.get(bound, 0.0) + float(value)
        else:
            values[name] += float(value)
    return Moment(at_s, dict(values), dict(buckets))


def rate(name: str, before: Moment | None, now: Moment) -> float | None:
    """Growth by second; None where there is no earlier moment, or the counter began again."""
    if before is None or now.at_s <= before.at_s:
        return None
    grown = now.values.get(name, 0.0) - before.values.get(name, 0.0)
    return None if grown < 0 else grown / (now.at_s - before.at_s)


def share(part: str, whole: str, before: Moment | None, now: Moment) -> float | None:
    """Of what grew between two moments; None where nothing did."""
    then = before.values if before else {}
    total = now.values.get(whole, 0.0) - then.get(whole, 0.0)
    return (now.values.get(part, 0.0) - then.get(part, 0.0)) / total if total > 0 else None


def quantile(name: str, q: float, before: Moment | None, now: Moment) -> float | None:
    """Linear within its bucket, as Prometheus computes it; None where nothing was counted."""
    then = before.buckets.get(name, {}) if before else {}
    counts = sorted((bound, count - then.get(bound, 0.0)) for bound, count in now.buckets.get(name, {}).items())
    if not counts or counts[-1][1] <= 0:
        return None
    rank, lower, below = q * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                return lower
            within = count - below
            return lower + (bound - lower) * (rank - below) / within if within else bound
        lower, below = bound, count
    raise AssertionError("the last bucket holds all")
