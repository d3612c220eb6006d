"""One row makes every step fail that holds it: it alone ends, and its neighbours get their tokens."""

import itertools
import math

import pytest
from tests.schedule.harness import Harness

from headrace.schedule import suspects
from headrace.schedule.invariants import check
from headrace.words.outputs import FinishReason

ORDERS = pytest.mark.parametrize("overlap", [False, True], ids=["in order", "overlap"])


def crowd(count: int, max_tokens: int = 6, **options) -> Harness:
    options = {"num_blocks": 40 * count, "max_num_seqs": count + 4, "max_num_batched_tokens": 12 * count, **options}
    harness = Harness(**options)
    for i in range(count):
        harness.add([i % 13, i // 13, 1, 2, 3], max_tokens=max_tokens, seed=i, ignore_eos=True)
    return harness


def check_culprits(harness: Harness, *culprits: int) -> None:
    """Exactly these ended FAILED; all others as if they had been alone."""
    harness.run().check_idle()
    for culprit in culprits:
        record = harness.records.pop((culprit, 0))
        assert record.finish == (FinishReason.FAILED, None, "cursed")
        assert record.events[-1].timeline[-1].where == "fail: failed again, alone"
    harness.check_as_alone()


@pytest.mark.covers("T23", "I23")
@ORDERS
@pytest.mark.parametrize("when", [0, 3], ids=["in its prompt", "while decoding"])
@pytest.mark.parametrize(("count", "culprit"), [(1, 1), (2, 1), (2, 2), (3, 2), (8, 5), (16, 16), (33, 1)])
def test_a_row_that_makes_every_step_fail_ends_alone(count, culprit, when, overlap):
    harness = crowd(count, overlap=overlap)
    harness.steps(when)
    harness.device.cursed.add(culprit)
    check_culprits(harness, culprit)
    assert harness.scheduler.stats().failed_steps <= 2 + math.ceil(math.log2(count))


@pytest.mark.covers("T23", "I23")
@ORDERS
@pytest.mark.parametrize("policy", ["mixed", "first", "attempt"])
def test_several_such_rows_end_and_nobody_else(policy, overlap):
    harness = crowd(16, overlap=overlap, prefill_policy=policy)
    harness.steps(2)
    harness.device.cursed |= {2, 3, 11}
    check_culprits(harness, 2, 3, 11)


@pytest.mark.covers("T23")
def test_after_a_fault_that_passes_all_rows_are_tried_together_in_one_step():
    harness = crowd(8)
    harness.steps(2)
    harness.device.fail_forward = True
    harness.step()
    assert len(harness.step().segments) == 8
    assert not any(seq.group for seq in harness.scheduler.live())
    harness.run().check_idle()
    harness.check_as_alone()
    assert harness.scheduler.stats().failed_steps == 1


@pytest.mark.covers("T23", "I14")
def test_those_who_run_and_are_not_suspected_go_on_in_every_other_step():
    harness = crowd(4, max_tokens=40, prefill_policy="first")
    harness.steps(2)
    running = set(harness.scheduler.running)
    harness.device.cursed |= {harness.add([9, i], max_tokens=4, ignore_eos=True) for i in range(4)}
    harness.step()
    plans = list(itertools.takewhile(lambda plan: harness.device.cursed & set(harness.scheduler.roster.sequences),
                                     (harness.step() for _ in range(60))))  # fmt: skip
    ours = [bool(running & {segment.seq_id for segment in plan.segments}) for plan in plans]
    assert len(plans) > 8 and all(a or b for a, b in itertools.pairwise(ours))
    check_culprits(harness, *harness.device.cursed)


@pytest.mark.covers("T23", "I13")
def test_newcomers_wait_until_the_suspects_have_been_tried():
    harness = crowd(4)
    harness.steps(2)
    harness.device.cursed.add(3)
    harness.step()
    late = harness.add([7, 7, 7], max_tokens=3, ignore_eos=True)
    while 3 in harness.scheduler.roster.sequences:
        plan = harness.step()
        check(harness.scheduler)
        assert late not in {segment.seq_id for segment in plan.segments}
    check_culprits(harness, 3)


@pytest.mark.covers("T23", "I14")
@ORDERS
def test_when_every_step_fails_everybody_ends_and_soon(overlap):
    harness = crowd(8, overlap=overlap)
    harness.device.breaks = lambda plan: True
    harness.run().check_idle()
    assert {record.reason for record in harness.records.values()} == {FinishReason.FAILED}
    assert harness.scheduler.stats().failed_steps == 2 * 8


@pytest.mark.covers("T23", "I14")
def test_rows_that_fail_only_together_are_computed_one_by_one():
    harness = crowd(4)
    harness.device.breaks = lambda plan: len(plan.segments) > 1
    harness.run().check_idle()
    harness.check_as_alone()


def test_a_row_does_not_fail_without_end(monkeypatch):
    monkeypatch.setattr(suspects, "MAX_FAILURES", 3)
    harness = crowd(4, max_tokens=30)
    harness.device.breaks = lambda plan: len(plan.segments) > 1
    with pytest.raises(AssertionError, match="that was not alone"):
        harness.run()
    assert harness.scheduler.stats().failed_steps == 3


@pytest.mark.covers("T21", "T23")
@ORDERS
def test_a_suspect_that_is_aborted_leaves_nothing_behind(overlap):
    harness = crowd(4, overlap=overlap)
    harness.steps(2)
    harness.device.cursed.add(2)
    harness.steps(2)
    harness.scheduler.abort(2)
    check_culprits(harness_without(harness, 2))


def harness_without(harness: Harness, request_id: int) -> Harness:
    harness.run()
    assert harness.records.pop((request_id, 0)).reason is FinishReason.ABORTED
    return harness


@pytest.mark.covers("T23", "I24")
@ORDERS
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority", "fair"])
def test_a_culprit_is_found_in_a_pool_so_small_that_rows_are_preempted(scheduling_policy, overlap):
    harness = crowd(6, max_tokens=14, num_blocks=12, overlap=overlap, scheduling_policy=scheduling_policy)
    harness.steps(4)
    harness.device.cursed.add(4)
    check_culprits(harness, 4)
    assert harness.scheduler.stats().preemptions > 0
