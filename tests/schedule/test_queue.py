"""The waiting queue against a plain list searched from end to end: any order of arrivals, admissions, aborts and
returns, long enough that the heaps are swept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace.schedule.queue import WaitingQueue
from headrace.schedule.sequence import Sequence
from headrace.words.config import SchedulingPolicy
from headrace.words.params import Request, Sampling

NO_BOUND = 1 << 30


class Books:
    """The queue under test, and beside it the plain facts: who waits, and what each user was given."""

    def __init__(self, policy: SchedulingPolicy, bound: int = NO_BOUND) -> None:
        self.queue = WaitingQueue(policy, bound)
        self.waiting: list[Sequence] = []
        self.served: dict[str, int] = {}
        self.floor = 0
        self.count = 0

    def arrive(self, random: Random, user: str | None = None) -> None:
        self.count += 1
        user, length = user or f"user {random.randint(1, 9)}", random.randint(1, 30)
        request = Request(self.count, "r", (1,) * length, Sampling(), priority=random.randint(-2, 2), user=user)
        self.push(Sequence(self.count, request, 0, self.count, 0.0, tokens=list(request.prompt_ids)))

    def push(self, seq: Sequence) -> None:
        user = seq.request.user or ""
        if user not in {other.request.user for other in self.waiting if not other.was_preempted}:
            self.served[user] = max(self.served.get(user, 0), self.floor)
        self.waiting.append(seq)
        self.queue.push(seq)

    def admit(self, seq: Sequence) -> None:
        if not seq.was_preempted:
            user = seq.request.user or ""
            self.floor = max(self.floor, self.served[user])
            self.served[user] += len(seq.tokens)
        self.queue.admit(seq)
        self.waiting.remove(seq)

    def leave(self, seq: Sequence) -> None:
        self.queue.remove(seq)
        self.waiting.remove(seq)


def is_first_come(books: Books, head: Sequence) -> bool:
    return head is min(books.waiting, key=lambda seq: (not seq.was_preempted, seq.arrival))


def is_first_by_priority(books: Books, head: Sequence) -> bool:
    return head is min(books.waiting, key=lambda seq: (seq.request.priority, not seq.was_preempted, seq.arrival))


def is_of_the_user_served_least(books: Books, head: Sequence) -> bool:
    returning = [seq for seq in books.waiting if seq.was_preempted]
    if returning:
        return head is min(returning, key=lambda seq: seq.arrival)
    least = min(books.served[seq.request.user or ""] for seq in books.waiting)
    own = [seq for seq in books.waiting if seq.request.user == head.request.user]
    is_least = books.served[head.request.user or ""] == least
    return is_least and head is min(own, key=lambda seq: (seq.request.priority, seq.arrival))


@pytest.mark.covers("I13", "E9", "D41")
@pytest.mark.parametrize(
    ("policy", "is_right"),
    [("fcfs", is_first_come), ("priority", is_first_by_priority), ("fair", is_of_the_user_served_least)],
)
def test_the_head_is_who_a_plain_search_would_find(
    policy: SchedulingPolicy, is_right: Callable[[Books, Sequence], bool]
):
    random, books = Random(1), Books(policy)
    admitted: list[Sequence] = []
    for turn in range(6_000):
        event = random.random()
        if event < (0.6 if turn % 1_000 < 300 else 0.3):
            books.arrive(random)
        elif event < 0.5 and admitted:
            seq = admitted.pop(random.randrange(len(admitted)))
            seq.was_preempted = True
            books.push(seq)
        elif event < 0.75 and books.waiting:
            books.leave(random.choice(books.waiting))
        elif books.waiting:
            head = books.queue.head()
            assert head is not None and is_right(books, head), f"turn {turn}"
            books.admit(head)
            admitted.append(head)
        assert len(books.queue) == len(books.waiting)
        assert books.queue.num_tokens == sum(len(seq.tokens) for seq in books.waiting)
    assert len(admitted) > 500


@pytest.mark.covers("I13", "T21")
def test_what_is_left_of_a_large_crowd_keeps_its_order():
    random, books = Random(2), Books("priority")
    for _ in range(1_000):
        books.arrive(random)
    for seq in random.sample(books.waiting, 900):
        books.leave(seq)
    while books.waiting:
        head = books.queue.head()
        assert head is not None and is_first_by_priority(books, head)
        books.admit(head)
    assert books.queue.head() is None


@pytest.mark.covers("D41")
def test_users_who_come_once_and_leave_do_not_disturb_the_shares_of_those_who_stay():
    random, books = Random(3), Books("fair")
    for _ in range(200):
        books.arrive(random)
    residents = set(books.served)
    for turn in range(3_000):
        books.arrive(random, f"visitor {turn}")
        if turn % 4:
            books.leave(books.waiting[-1])
        head = books.queue.head()
        assert head is not None and is_of_the_user_served_least(books, head), f"turn {turn}"
        books.admit(head)
        if head.request.user in residents:
            books.arrive(random, head.request.user)
    assert len(residents) == 9 and len(books.waiting) < 1_000


@pytest.mark.covers("I13")
def test_who_comes_later_has_not_been_passed_by_those_who_passed_another():
    queue = WaitingQueue("priority", 3)
    order = []

    def arrive(number: int, priority: int) -> None:
        queue.push(Sequence(number, Request(number, "r", (1,), Sampling(), priority=priority), 0, number, 0.0, [1]))

    def admit() -> None:
        head = queue.head()
        assert head is not None
        queue.admit(head)
        order.append(head.seq_id)

    arrive(1, 9)
    for number in (2, 3):
        arrive(number, 0)
        admit()
    arrive(4, 9)
    for number in range(5, 9):
        arrive(number, 0)
        admit()
    admit()
    assert order == [2, 3, 5, 1, 6, 7, 4], "1 was passed by 2, 3 and 5; 4 only by 5, 6 and 7"
