"""What must happen by when: the timeouts of gates, of the queue and of whole requests, in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from enum import StrEnum

from headrace.schedule.sequence import Sequence, Status


class Limit(StrEnum):
    """Which wait a deadline ends; of two that are due at the same moment the first by name."""

    GATE = "gate"
    QUEUE = "queue"
    TOTAL = "total"


class Deadlines:
    """Deadlines of the sequences in `live`; those that no longer apply are dropped when they come up.

    The heap holds ids, so that a finished sequence is not kept in memory until its deadline.
    """

    def __init__(self, live: Mapping[int, Sequence]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, Limit]] = []

    def add(self, seq: Sequence) -> None:
        request = seq.request
        limits = ((Limit.QUEUE, request.queue_timeout_s), (Limit.TOTAL, request.timeout_s))
        gate = (Limit.GATE, request.gate_timeout_s if request.gates else None)
        for limit, timeout_s in (gate, *limits):
            if timeout_s is not None:
                heapq.heappush(self._heap, (request.arrival_s + timeout_s, seq.seq_id, limit))

    def due(self, now_s: float) -> Iterator[tuple[Sequence, Limit]]:
        """Those whose time is over and whose wait is still going on when it is their turn."""
        while self._heap and self._heap[0][0] <= now_s:
            _, seq_id, limit = heapq.heappop(self._heap)
            seq = self._live.get(seq_id)
            if seq is not None and applies(limit, seq):
                yield seq, limit

    def next_s(self) -> float | None:
        while self._heap:
            time_s, seq_id, limit = self._heap[0]
            seq = self._live.get(seq_id)
            if seq is not None and applies(limit, seq):
                return time_s
            heapq.heappop(self._heap)
        return None


def applies(limit: Limit, seq: Sequence) -> bool:
    """Whether the wait that a limit bounds is still going on."""
    if limit is Limit.GATE:
        return seq.status is Status.BLOCKED
    if limit is Limit.QUEUE:
        return seq.status in (Status.BLOCKED, Status.WAITING) and seq.admission == 0
    return seq.status is not Status.FINISHED
