"""Who is admitted next: first come, by priority, or a fair share per user. All operations take O(log n)."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import Protocol

from headrace.schedule.sequence import Sequence
from headrace.words.config import SchedulingPolicy

Rank = tuple[int, ...]


class Heap:
    """A heap of sequences with removal: what was removed is skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._live: dict[int, int] = {}
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._live)

    def push(self, rank: Rank, seq: Sequence) -> None:
        self._stamp += 1
        self._live[seq.seq_id] = self._stamp
        heapq.heappush(self._heap, (rank, self._stamp, seq))

    def remove(self, seq: Sequence) -> None:
        del self._live[seq.seq_id]
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [item for item in self._heap if self._is_live(item)]
            heapq.heapify(self._heap)

    def peek(self) -> Sequence | None:
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _is_live(self, item: tuple[Rank, int, Sequence]) -> bool:
        return self._live.get(item[2].seq_id) == item[1]


class Order(Protocol):
    """An order of waiting sequences."""

    def push(self, seq: Sequence) -> None: ...
    def remove(self, seq: Sequence) -> None: ...
    def admitted(self, seq: Sequence) -> None: ...
    def peek(self) -> Sequence | None: ...


class RankedOrder:
    """First come, first served (those that ran before come first), or by priority, lower values first."""

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap = Heap()

    def push(self, seq: Sequence) -> None:
        priority = seq.request.priority if self._by_priority else 0
        self._heap.push((priority, not seq.was_preempted, seq.arrival), seq)

    def remove(self, seq: Sequence) -> None:
        self._heap.remove(seq)

    def admitted(self, seq: Sequence) -> None:
        self._heap.remove(seq)

    def peek(self) -> Sequence | None:
        return self._heap.peek()


class FairOrder:
    """Start-time fair queueing per user: the user served least (in tokens admitted) is next; a new user starts level
    with the one served last, so nobody saves up. Who ran before was charged then, and comes back before all users."""

    def __init__(self) -> None:
        self._returning = Heap()
        self._users: dict[str, Heap] = {}
        self._served: dict[str, int] = {}
        self._turns: list[tuple[int, int, str]] = []
        self._floor = 0
        self._stamp = 0

    def push(self, seq: Sequence) -> None:
        if seq.was_preempted:
            self._returning.push((seq.arrival,), seq)
            return
        user = seq.request.user or ""
        if user not in self._users:
            self._users[user] = Heap()
            self._served[user] = max(self._served.get(user, 0), self._floor)
            self._push_turn(user)
        self._users[user].push((seq.request.priority, seq.arrival), seq)

    def _push_turn(self, user: str) -> None:
        self._stamp += 1
        heapq.heappush(self._turns, (self._served[user], self._stamp, user))

    def remove(self, seq: Sequence) -> None:
        if seq.was_preempted:
            self._returning.remove(seq)
            return
        user = seq.request.user or ""
        self._users[user].remove(seq)
        if not self._users[user]:
            del self._users[user]
            self._forget_absent()

    def admitted(self, seq: Sequence) -> None:
        if not seq.was_preempted:
            user = seq.request.user or ""
            self._floor = max(self._floor, self._served[user])
            self._served[user] += len(seq.tokens)
            self._push_turn(user)
        self.remove(seq)

    def _forget_absent(self) -> None:
        """When those who are away are many, all of them are forgotten: whoever comes back starts level."""
        most = 2 * len(self._users) + 1_024
        if len(self._served) > most:
            self._served = {user: self._served[user] for user in self._users}
        if len(self._turns) > most:
            self._turns = [turn for turn in self._turns if self._is_live(turn)]
            heapq.heapify(self._turns)

    def _is_live(self, turn: tuple[int, int, str]) -> bool:
        served, _, user = turn
        return user in self._users and self._served[user] == served

    def peek(self) -> Sequence | None:
        if (returning := self._returning.peek()) is not None:
            return returning
        while self._turns and not self._is_live(self._turns[0]):
            heapq.heappop(self._turns)
        return self._users[self._turns[0][2]].peek() if self._turns else None


class WaitingQueue:
    """The waiting sequences in the order of a policy, with a bound on how many later ones may pass an earlier one.

    Only the oldest waiting sequence is watched: whoever passes a younger one passes the oldest too.
    """

    def __init__(self, policy: SchedulingPolicy, max_overtakes: int) -> None:
        self._order: Order = FairOrder() if policy == "fair" else RankedOrder(policy == "priority")
        self._by_arrival = None if policy == "fcfs" else Heap()
        self._max_overtakes = max_overtakes
        self._passed: list[int] = []
        self._members: dict[int, Sequence] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._members)

    def push(self, seq: Sequence) -> None:
        self._members[seq.seq_id] = seq
        self.num_tokens += len(seq.tokens)
        self._order.push(seq)
        if self._by_arrival is not None:
            self._by_arrival.push((seq.arrival,), seq)

    def remove(self, seq: Sequence) -> None:
        """Takes out a sequence that is not admitted (aborted, timed out)."""
        self._order.remove(seq)
        self._drop(seq)

    def admit(self, seq: Sequence) -> None:
        """Takes out a sequence that is admitted now; it may have passed older ones."""
        if self._by_arrival is not None and (oldest := self._by_arrival.peek()) and oldest.arrival < seq.arrival:
            insort(self._passed, seq.arrival)
        self._order.admitted(seq)
        self._drop(seq)

    def _drop(self, seq: Sequence) -> None:
        del self._members[seq.seq_id]
        self.num_tokens -= len(seq.tokens)
        if self._by_arrival is not None:
            self._by_arrival.remove(seq)

    def head(self) -> Sequence | None:
        """Who is next."""
        if self._by_arrival is not None and (oldest := self._by_arrival.peek()) is not None:
            del self._passed[: bisect_left(self._passed, oldest.arrival)]
            if len(self._passed) >= self._max_overtakes:
                return oldest
        return self._order.peek()

    def members(self) -> list[Sequence]:
        return list(self._members.values())
