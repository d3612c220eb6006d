"""A step that raises, and a row that gives no number: who goes back, who ends, and who never notices."""

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.invariants import check
from headrace.schedule.sequence import Status
from headrace.words.outputs import FinishReason

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
FAULTS = pytest.mark.parametrize("fault", ["fail_forward", "fail_result"])


def step_with(harness: Harness, fault: str) -> None:
    setattr(harness.device, fault, True)
    harness.step()
    check(harness.scheduler)


@pytest.mark.covers("D18", "T23")
@FAULTS
@pytest.mark.parametrize("overlap", [False, True])
def test_rows_of_a_failed_step_wait_with_nothing_computed_and_their_tokens_unchanged(fault, overlap):
    harness = Harness(overlap=overlap)
    for i in range(3):
        harness.add([*PROMPT, i], max_tokens=5, seed=i, ignore_eos=True)
    harness.steps(2)
    step_with(harness, fault)
    for request_id, seq in harness.scheduler.roster.sequences.items():
        assert (seq.status, seq.num_computed, seq.block_ids, seq.row) == (Status.WAITING, 0, [], None)
        assert seq.tokens == [*seq.request.prompt_ids, *harness.record(request_id).token_ids]
        assert len(harness.record(request_id).token_ids) == 2
        assert (seq.num_failures, seq.num_preemptions, seq.epoch) == (1, 0, 1)
    harness.run().check_idle()
    harness.check_as_alone()
    stats = harness.scheduler.stats()
    assert (stats.failed_steps, stats.preemptions) == (1, 0) and stats.recomputed_tokens > 0


@pytest.mark.covers("T23", "I23")
@FAULTS
def test_the_second_failure_of_a_row_that_is_alone_ends_it_and_a_newer_one_waits_beside_it(fault):
    harness = Harness(num_blocks=64)
    old = harness.add(PROMPT, max_tokens=8, ignore_eos=True)
    harness.steps(2)
    step_with(harness, fault)
    newer = harness.add((9, 9, 9), max_tokens=8, ignore_eos=True)
    told = list(harness.record(old).token_ids)
    step_with(harness, fault)
    record = harness.record(old)
    assert record.finish == (FinishReason.FAILED, None, fault.removeprefix("fail_"))
    assert record.token_ids == told and len(told) == 2, "the tokens told so far stay told"
    assert (harness.sequence(newer).status, harness.sequence(newer).num_failures) == (Status.WAITING, 0)
    harness.run().check_idle()
    del harness.records[old, 0]
    harness.check_as_alone()


@pytest.mark.covers("T23", "I23")
def test_rows_outside_the_failed_step_keep_row_blocks_and_epoch():
    harness = Harness(prefill_policy="first")
    outside = harness.add(PROMPT, max_tokens=8, ignore_eos=True)
    harness.steps(2)
    seq = harness.sequence(outside)
    before = (seq.row, list(seq.block_ids), seq.epoch, seq.num_computed, list(seq.tokens))
    harness.add((9, 9, 9), ignore_eos=True)
    step_with(harness, "fail_forward")
    assert (seq.row, list(seq.block_ids), seq.epoch, seq.num_computed, list(seq.tokens)) == before
    assert seq.status is Status.RUNNING and seq.num_failures == 0
    harness.run().check_idle()
    harness.check_as_alone()
    assert not any(a.seq_id == seq.seq_id for plan in harness.plans[1:] for a in plan.admissions)


@pytest.mark.covers("T23", "E8", "6g")
@FAULTS
def test_what_a_failed_step_published_is_withdrawn_and_what_was_there_before_stays(fault):
    harness = Harness()
    harness.add(PROMPT, max_tokens=1, ignore_eos=True)
    harness.step()
    assert len(harness.scheduler.cache.index) == 2
    harness.add([*PROMPT, *PROMPT, 9], max_tokens=1, ignore_eos=True)
    step_with(harness, fault)
    assert len(harness.scheduler.cache.index) == 2
    harness.add([*PROMPT, *PROMPT, 10], max_tokens=1, ignore_eos=True)
    plans = harness.steps(2)
    assert [(segment.start, segment.length) for plan in plans for segment in plan.segments] == [(8, 9), (16, 1)]
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T23", "T19", "I19")
def test_a_later_step_in_flight_is_void_too_and_its_own_rows_are_not_to_blame():
    harness = Harness(overlap=True)
    first = harness.add(PROMPT, max_tokens=6, ignore_eos=True)
    one = harness.scheduler.schedule()
    second = harness.add([*PROMPT, 9], max_tokens=6, ignore_eos=True)
    two = harness.scheduler.schedule()
    assert [segment.seq_id for segment in two.segments] == [first, second]
    assert two.segments[1].start == 8, "the second one hit what the first step published"
    harness.device.forward(one)
    harness.device.sample(one)
    harness.device.forward(two)
    late = harness.device.sample(two)
    harness.scheduler.fail(one.step, "lost")
    check(harness.scheduler)
    assert not harness.scheduler.in_flight and not len(harness.scheduler.cache.index)
    assert [harness.sequence(r).num_failures for r in (first, second)] == [1, 0]
    assert [harness.sequence(r).status for r in (first, second)] == [Status.WAITING] * 2
    assert harness.scheduler.commit(late) == [], "a result that comes nevertheless is of no step"
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T23", "I9")
def test_rows_retired_by_a_failed_plan_are_retired_again():
    harness = Harness(max_num_seqs=3)
    for i in range(3):
        harness.add([i, 2, 3], max_tokens=1 + 3 * (i > 0), ignore_eos=True)
    harness.step()
    assert harness.record(1).finish is not None
    harness.device.fail_forward = True
    failed = harness.step()
    assert failed.retired_rows == (1,)
    again = harness.step()
    assert set(again.retired_rows) == {1, 2, 3} and len(again.retired_rows) == 3
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T23", "I10")
def test_blocks_zeroed_by_a_failed_plan_are_zeroed_again():
    harness = Harness(num_blocks=3, enable_prefix_caching=False)
    harness.add(range(1, 9), max_tokens=9, ignore_eos=True)
    harness.device.poisoned.add(1)
    harness.step()
    harness.add(range(1, 10), max_tokens=1, ignore_eos=True)
    harness.device.fail_forward = True
    failed = harness.step()
    again = harness.step()
    assert failed.zero_blocks and set(failed.zero_blocks) <= set(again.zero_blocks)
    harness.run().check_idle()
    assert harness.record(2).reason is FinishReason.LENGTH_CAPPED


@pytest.mark.covers("T23", "I10")
def test_blocks_zeroed_by_a_failed_plan_are_zeroed_again_also_when_their_owner_left_meanwhile():
    harness = Harness(num_blocks=3, enable_prefix_caching=False)
    harness.add(range(1, 9), max_tokens=9, ignore_eos=True)
    harness.device.poisoned.add(1)
    harness.step()
    gone = harness.add(range(1, 10), max_tokens=1, ignore_eos=True)
    plan = harness.scheduler.schedule()
    assert len(plan.zero_blocks) == 2
    harness.scheduler.abort(gone)
    harness.scheduler.fail(plan.step, "never begun")
    harness.add(range(1, 10), max_tokens=1, ignore_eos=True)
    assert set(plan.zero_blocks) <= set(harness.step().zero_blocks)
    harness.run().check_idle()


@pytest.mark.covers("T23", "T25")
def test_a_step_that_is_not_in_flight_cannot_fail():
    harness = Harness()
    harness.add(PROMPT, max_tokens=2, ignore_eos=True)
    plan = harness.step()
    for step in (plan.step, 99):
        harness.scheduler.fail(step, "too late")
    assert harness.scheduler.stats().failed_steps == 0
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T23", "T21", "T25")
def test_who_ended_before_its_step_failed_stays_ended():
    harness = Harness()
    gone, here = (harness.add([i, 2, 3], max_tokens=3, ignore_eos=True) for i in range(2))
    plan = harness.scheduler.schedule()
    harness.scheduler.abort(gone)
    harness.scheduler.fail(plan.step, "lost")
    harness.run().check_idle()
    assert harness.record(gone).reason is FinishReason.ABORTED
    assert harness.record(here).reason is FinishReason.LENGTH_CAPPED


@pytest.mark.covers("T24", "I23")
@pytest.mark.parametrize("overlap", [False, True])
def test_one_row_without_numbers_ends_alone_and_eight_others_are_as_if_alone(overlap):
    harness = Harness(num_blocks=80, max_num_seqs=9, max_num_batched_tokens=128, overlap=overlap)
    for i in range(9):
        harness.add([i, *PROMPT], max_tokens=8, ignore_eos=True)
    harness.steps(3)
    harness.device.poisoned.add(5)
    harness.run().check_idle()
    bad = harness.records.pop((5, 0))
    assert bad.finish == (FinishReason.FAILED, None, "the logits are not finite")
    assert bad.events[-1].timeline[-1].where == "commit: this row failed"
    harness.check_as_alone()


@pytest.mark.covers("T24", "E8", "I10")
def test_nobody_hits_the_blocks_of_a_row_without_numbers():
    harness = Harness()
    harness.add([*PROMPT, 9], max_tokens=2, ignore_eos=True)
    harness.device.poisoned.add(1)
    harness.step()
    assert not len(harness.scheduler.cache.index)
    harness.add([*PROMPT, 9], max_tokens=2, ignore_eos=True)
    plan = harness.step()
    assert plan.segments[0].start == 0 and len(plan.zero_blocks) == 3
    harness.run().check_idle()


@pytest.mark.covers("T23", "D18", "E7")
@FAULTS
def test_failed_steps_tell_no_prompt_score_twice_and_pool_no_state_twice(fault):
    harness = Harness(max_num_batched_tokens=6)
    harness.add(PROMPT, max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    harness.add(PROMPT, pooling="mean")
    harness.steps(2)
    step_with(harness, fault)
    harness.run().check_idle()
    assert [entry.token_ids for entry in harness.record(1).prompt_logprobs] == [(i,) for i in range(2, 9)]
    assert harness.record(2).events[-1].hidden == (4.5,)
