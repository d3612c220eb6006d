"""What must happen by when: the timeouts of gates, of the queue and of whole requests, in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import Enum

from headrace.schedule.sequence import Sequence, Status


class Limit(Enum):
    """Which wait a deadline ends."""

    GATE = "gate"
    QUEUE = "queue"
    TOTAL = "total"


class Deadlines:
    """Deadlines of live sequences; those that no longer apply are dropped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Limit, Sequence]] = []

    def add(self, seq: Sequence) -> None:
        request = seq.request
        limits = ((Limit.QUEUE, request.queue_timeout_s), (Limit.TOTAL, request.timeout_s))
        gate = (Limit.GATE, request.gate_timeout_s if request.gates else None)
        for limit, timeout_s in (gate, *limits):
            if timeout_s is not None:
                heapq.heappush(self._heap, (request.arrival_s + timeout_s, seq.seq_id, limit, seq))

    def due(self, now_s: float) -> Iterator[tuple[Sequence, Limit]]:
        """Those whose time is over and whose wait is still going on when it is their turn."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, limit, seq = heapq.heappop(self._heap)
            if applies(limit, seq):
                yield seq, limit

    def next_s(self) -> float | None:
        while self._heap and not applies(self._heap[0][2], self._heap[0][3]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def applies(limit: Limit, seq: Sequence) -> bool:
    """Whether the wait that a limit bounds is still going on."""
    if limit is Limit.GATE:
        return seq.status is Status.BLOCKED
    if limit is Limit.QUEUE:
        return seq.status in (Status.BLOCKED, Status.WAITING) and seq.admission == 0
    return seq.status is not Status.FINISHED
