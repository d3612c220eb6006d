"""Who is admitted next: first come, by priority, or a fair share, and how often somebody may be passed at most."""

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.queue import WaitingQueue
from headrace.schedule.sequence import Sequence, Status
from headrace.words.config import EngineConfig, SchedulerConfig
from headrace.words.params import Request, Sampling


def waiting(number: int, priority: int = 0, user: str | None = None, length: int = 1) -> Sequence:
    request = Request(number, f"r{number}", (1,) * length, Sampling(), priority=priority, user=user)
    return Sequence(number, request, 0, number, 0.0, tokens=[1] * length)


def admit_next(queue: WaitingQueue) -> int:
    seq = queue.head()
    assert seq is not None
    queue.admit(seq)
    return seq.seq_id


def admitted(harness: Harness) -> list[int]:
    return [admission.seq_id for plan in harness.plans for admission in plan.admissions]


@pytest.mark.covers("I13", "E9", "T4")
def test_first_come_first_served_passes_nobody_even_if_a_later_one_would_fit():
    harness = Harness(num_blocks=8)
    harness.add([1] * 17, max_tokens=3, ignore_eos=True)
    large = harness.add([2] * 20, max_tokens=1, ignore_eos=True)
    small = [harness.add([3, i], max_tokens=1, ignore_eos=True) for i in range(3)]
    harness.step()
    assert harness.scheduler.cache.pool.num_free == 3, "the small ones would fit"
    harness.run().check_idle()
    assert admitted(harness) == [1, large, *small]


@pytest.mark.covers("I13")
def test_first_come_first_served_takes_no_notice_of_priorities_and_users():
    harness = Harness(max_num_seqs=1)
    for i in range(6):
        harness.add([i, 2], max_tokens=1, priority=-i, user=str(i % 2))
    harness.run()
    assert admitted(harness) == [1, 2, 3, 4, 5, 6]


@pytest.mark.covers("I13", "E9")
def test_lower_priority_values_come_first_and_equal_ones_in_the_order_of_arrival():
    harness = Harness(max_num_seqs=1, scheduling_policy="priority")
    for i, priority in enumerate([2, 0, 1, 0, -5]):
        harness.add([i, 2], max_tokens=1, priority=priority)
    harness.run()
    assert admitted(harness) == [5, 2, 4, 3, 1]


@pytest.mark.covers("I13")
@pytest.mark.parametrize("policy", ["priority", "fair"])
@pytest.mark.parametrize("bound", [0, 1, 5, 256])
def test_a_waiting_request_is_passed_exactly_as_often_as_the_bound_allows(policy, bound):
    queue = WaitingQueue(policy, bound)
    queue.push(waiting(1, priority=9, user="old", length=10_000))
    if policy == "fair":  # the user has had a large share already, so that everybody else comes first
        queue.admit(queue.head())
        queue.push(waiting(2, user="old"))
    old = 2 if policy == "fair" else 1
    order = []
    for number in range(10, 10 + bound + 2):
        queue.push(waiting(number, user=f"user {number}"))
        order.append(admit_next(queue))
    assert order.index(old) == bound
    assert order[:bound] == list(range(10, 10 + bound))


@pytest.mark.covers("I13")
def test_each_of_several_old_ones_is_passed_within_the_bound():
    queue, bound = WaitingQueue("priority", 8), 8
    passed = {number: 0 for number in range(1, 6)}
    for number in passed:
        queue.push(waiting(number, priority=9))
    for number in range(100, 200):
        queue.push(waiting(number))
        seq_id = admit_next(queue)
        passed = {old: count + (seq_id > old) for old, count in passed.items() if old != seq_id}
        assert all(count <= bound for count in passed.values())
    assert not passed, "none of them is left behind"


@pytest.mark.covers("I13")
def test_256_is_the_default_bound():
    assert SchedulerConfig(max_model_len=64).max_overtakes == 256
    assert EngineConfig().scheduling_policy == "fcfs"


@pytest.mark.covers("I13", "D14")
def test_who_comes_from_a_gate_is_the_oldest_and_is_not_starved_by_higher_priorities():
    harness = Harness(max_num_seqs=1, scheduling_policy="priority", max_overtakes=3)
    image = harness.add([1, 2], gates=("image:0",), priority=9, max_tokens=1)
    for i in range(4):
        harness.add([3, i], max_tokens=1)
    harness.steps(2)
    harness.scheduler.gate_ready(image, "image:0")
    for i in range(12):
        harness.add([4, i], max_tokens=1)
    harness.run().check_idle()
    assert admitted(harness).index(image) <= 2 + 3


@pytest.mark.covers("D41")
def test_one_request_of_a_second_user_is_not_behind_a_hundred_of_the_first():
    harness = Harness(max_num_seqs=2, scheduling_policy="fair")
    for i in range(100):
        harness.add([i % 13, 2, 3], max_tokens=2, user="crowd")
    single = harness.add([1, 2, 3], max_tokens=2, user="single")
    harness.run().check_idle()
    assert admitted(harness).index(single) <= 2
    harness.check_as_alone()


@pytest.mark.covers("D41")
def test_users_share_by_tokens_and_not_by_requests():
    queue = WaitingQueue("fair", 256)
    for number in range(1, 41):
        user, length = ("long", 30) if number % 2 else ("short", 10)
        queue.push(waiting(number, user=user, length=length))
    first = [admit_next(queue) for _ in range(20)]
    assert sum(number % 2 for number in first) == 5, "5 × 30 tokens beside 15 × 10"


@pytest.mark.covers("D41")
def test_nobody_saves_up_a_share_while_away():
    queue = WaitingQueue("fair", 256)
    for number in range(1, 31):
        queue.push(waiting(number, user="busy", length=10))
        admit_next(queue)
    for number in range(31, 41):
        queue.push(waiting(number, user="busy" if number % 2 else "new", length=10))
    order = [admit_next(queue) for _ in range(10)]
    assert all({a % 2, b % 2} == {0, 1} for a, b in zip(order[::2], order[1::2], strict=True)), order


@pytest.mark.covers("D41")
@pytest.mark.parametrize("others", [0, 3])
def test_users_who_are_gone_are_forgotten(others):
    queue = WaitingQueue("fair", 10**9)
    for number in range(1, 1 + others):
        queue.push(waiting(number, user="in the queue"))
    for number in range(10, 20_000):
        queue.push(waiting(number, user=f"user {number}"))
        queue.admit(queue.members()[-1])
    assert len(queue._order._served) < 2_000 and len(queue._order._turns) < 2_000


@pytest.mark.covers("D41", "I13")
def test_a_request_without_a_user_is_a_user_like_any_other():
    queue = WaitingQueue("fair", 256)
    for number, user in enumerate([None, None, "a", None], 1):
        queue.push(waiting(number, user=user))
    assert [admit_next(queue) for _ in range(4)] == [1, 3, 2, 4]


@pytest.mark.covers("E9")
def test_running_sequences_are_extended_before_any_waiting_one_is_admitted():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=4)
    for i in range(3):
        harness.add([i, 2], max_tokens=9, ignore_eos=True)
    harness.steps(2)
    late = harness.add([9, 2, 3, 4], max_tokens=1, ignore_eos=True)
    plan = harness.step()
    assert [(segment.seq_id, segment.length) for segment in plan.segments] == [(1, 1), (2, 1), (3, 1), (late, 1)]


@pytest.mark.covers("I13", "T21")
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_who_leaves_the_queue_early_is_never_admitted_and_blocks_nobody(policy):
    harness = Harness(max_num_seqs=1, scheduling_policy=policy)
    for i in range(40):
        harness.add([i % 13, 2], max_tokens=1, user=str(i % 3), priority=i % 2)
    harness.step()
    gone = {seq.seq_id for seq in harness.scheduler.queue.members() if seq.seq_id % 4}
    for seq_id in gone:
        harness.scheduler.abort(seq_id)
    assert harness.scheduler.num_waiting == harness.scheduler.queue.num_tokens // 2
    harness.run().check_idle()
    assert not gone & set(admitted(harness)) and len(admitted(harness)) == 40 - len(gone)


@pytest.mark.covers("E9", "I14")
def test_the_first_admitted_always_completes_while_others_come_and_go():
    harness = Harness(num_blocks=10, max_num_seqs=4, enable_prefix_caching=False, scheduling_policy="priority")
    first = harness.add([1, 2, 3], max_tokens=30, priority=9, ignore_eos=True)
    harness.step()
    for i in range(40):
        harness.add([i % 13, 2, 3], max_tokens=12, ignore_eos=True)
        harness.step()
        assert harness.record(first).finish or harness.sequence(first).status is Status.RUNNING
    assert harness.record(first).finish is not None and harness.scheduler.stats().preemptions > 3
