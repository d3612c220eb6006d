"""What the engine counted and timed, as plain numbers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.engine.core import EngineCore
from headrace.engine.output import RequestState
from headrace.words.outputs import FinishReason

WINDOW = 4_096
"""Percentiles are over the last so many requests."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds (or whatever is measured) over recent requests; all 0 when there are none."""

    count: int = 0
    """All ever measured, not only the recent ones."""
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot. Requests are counted by choice (n of one request are n), tokens when they are scheduled."""

    num_running: int
    num_waiting: int
    num_blocked: int
    cache_usage: float
    """Share of the cache blocks that live sequences hold."""
    num_accepted: int
    num_finished: Mapping[str, int]
    """By reason, every reason named."""
    num_steps: int
    num_failed_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_computed_prompt_tokens: int
    num_cached_tokens: int
    num_recomputed_tokens: int
    num_generated_tokens: int
    num_prefix_queries: int
    num_prefix_hits: int
    busy_s: float
    time_to_first_token_s: Percentiles
    time_per_output_token_s: Percentiles
    queue_time_s: Percentiles
    end_to_end_s: Percentiles

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the tokens looked up that the prefix cache had."""
        return _ratio(self.num_prefix_hits, self.num_prefix_queries)

    @property
    def prefill_savings(self) -> float:
        """Share of all prefill work that the prefix cache spared."""
        return _ratio(self.num_cached_tokens, self.num_cached_tokens + self.num_computed_prompt_tokens)

    @property
    def input_tokens_per_s(self) -> float:
        """Prompt tokens computed, cached ones not counted, per second of running steps."""
        return _ratio(self.num_computed_prompt_tokens, self.busy_s)

    @property
    def output_tokens_per_s(self) -> float:
        return _ratio(self.num_generated_tokens, self.busy_s)


class Window:
    """Recent values of one measure."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._count = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)
            self._count += 1

    def read(self) -> Percentiles:
        if not self._values:
            return Percentiles()
        ordered = sorted(self._values)
        p50, p90, p99 = (nearest_rank(ordered, share) for share in (0.50, 0.90, 0.99))
        return Percentiles(self._count, math.fsum(ordered) / len(ordered), p50, p90, p99)


def nearest_rank(ordered: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class EngineMetrics:
    """Times of finished requests, and with the scheduler's counters a snapshot of everything."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._first_token = Window()
        self._per_token = Window()
        self._queue = Window()
        self._whole = Window()
        self._listeners: list[Callable[[RequestState], None]] = []
        self._watchers: list[Callable[[RequestState], None]] = []

    def listen(self, listener: Callable[[RequestState], None]) -> None:
        """`listener` hears of every request that ended, in the thread that reads the outputs."""
        self._listeners.append(listener)

    def watch(self, watcher: Callable[[RequestState], None]) -> None:
        """`watcher` hears of every request that something happened to, in the thread that reads the outputs."""
        self._watchers.append(watcher)

    def progressed(self, states: Iterable[RequestState]) -> None:
        """These were given events."""
        for watcher in self._watchers:
            for state in states:
                watcher(state)

    def observe(self, state: RequestState) -> None:
        """Takes the times of a finished request."""
        for listener in self._listeners:
            listener(state)
        times = state.metrics
        self._first_token.add(times.time_to_first_token_s)
        self._queue.add(times.queue_time_s)
        if times.finished_s is not None:
            self._whole.add(times.finished_s - times.arrival_s)
        num_gaps = state.num_output_tokens // state.request.n - 1
        if times.first_token_s is not None and times.last_token_s is not None and num_gaps > 0:
            self._per_token.add((times.last_token_s - times.first_token_s) / num_gaps)

    def snapshot(self) -> Metrics:
        stats = self._core.scheduler.stats()
        return Metrics(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_blocked=stats.num_blocked,
            cache_usage=stats.cache_usage,
            num_accepted=stats.accepted,
            num_finished={reason.value: stats.finished[reason] for reason in FinishReason},
            num_steps=stats.steps,
            num_failed_steps=stats.failed_steps,
            num_preemptions=stats.preemptions,
            num_prompt_tokens=stats.prompt_tokens,
            num_computed_prompt_tokens=stats.computed_prefill_tokens,
            num_cached_tokens=stats.cached_tokens,
            num_recomputed_tokens=stats.recomputed_tokens,
            num_generated_tokens=stats.generated_tokens,
            num_prefix_queries=stats.prefix_queries,
            num_prefix_hits=stats.cached_tokens,
            busy_s=self._core.busy_s,
            time_to_first_token_s=self._first_token.read(),
            time_per_output_token_s=self._per_token.read(),
            queue_time_s=self._queue.read(),
            end_to_end_s=self._whole.read(),
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
