"""When blocks run out: who goes, where to, and that nobody can tell from the tokens."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.invariants import check
from headrace.schedule.sequence import Status
from headrace.words.config import EngineConfig, SchedulerConfig
from headrace.words.outputs import FinishReason


def crowd(num: int = 3, max_tokens: int = 12, **options: Any) -> Harness:
    """`num` sequences of 4 + max_tokens tokens in a pool that soon is too small, unless told otherwise."""
    harness = Harness(**({"num_blocks": 6, "block_size": 4, "enable_prefix_caching": False} | options))
    for i in range(num):
        harness.add([i, 2, 3, 4], max_tokens=max_tokens, ignore_eos=True)
    return harness


def one_token_blocks(num_blocks: int, **options: Any) -> Harness:
    """Every sequence needs a block in every step, so the pool is short exactly when the sums say so."""
    return Harness(num_blocks=num_blocks, block_size=1, enable_prefix_caching=False, **options)


def step_until(harness: Harness, done: Callable[[], object], max_steps: int = 200) -> None:
    for _ in range(max_steps):
        if done():
            return
        harness.step()
        check(harness.scheduler)
    raise AssertionError(f"it did not come to that in {max_steps} steps")


def num_preemptions(harness: Harness, request_id: int) -> int:
    return harness.sequence(request_id).num_preemptions


@pytest.mark.covers("D29", "T16", "6h", "6a", "I24")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("victim_policy", ["latest", "most_output"])
def test_a_run_with_many_preemptions_equals_a_run_in_a_large_pool(overlap, victim_policy):
    small = crowd(num=4, overlap=overlap, victim_policy=victim_policy).run()
    large = crowd(num=4, num_blocks=100).run()
    small.check_idle()
    assert small.scheduler.stats().preemptions >= 3 and large.scheduler.stats().preemptions == 0
    for key, record in small.records.items():
        assert (record.token_ids, record.reason) == (large.records[key].token_ids, large.records[key].reason)
        assert len(record.token_ids) == 12, "the count restarted"
    small.check_as_alone()


@pytest.mark.covers("T16", "D29", "6h")
def test_a_victim_owns_nothing_keeps_its_outputs_and_comes_back_with_the_prompt_it_had():
    harness = crowd(num=2, num_blocks=4)
    step_until(harness, lambda: harness.scheduler.stats().preemptions)
    victim = harness.sequence(2)
    assert (victim.status, victim.block_ids, victim.row) == (Status.WAITING, [], None)
    assert (victim.num_computed, victim.pending, victim.epoch) == (0, 0, 1)
    assert victim.tokens == [1, 2, 3, 4, *harness.record(2).token_ids] and victim.num_output_tokens == 5
    assert victim.timeline[-1].where == "schedule: preempted for blocks"
    known = tuple(victim.tokens)
    step_until(harness, lambda: victim.row is not None)
    [admission] = harness.plans[-1].admissions
    assert (admission.token_ids, admission.num_prompt_tokens, admission.epoch) == (known, 4, 1)


@pytest.mark.covers("T16", "E9", "I13")
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_victims_come_back_in_the_order_of_their_arrival_and_before_newer_ones(policy):
    harness = crowd(num=3, num_blocks=9, max_tokens=20, scheduling_policy=policy)
    step_until(harness, lambda: num_preemptions(harness, 2) and num_preemptions(harness, 3))
    newer = harness.add([9, 9, 9, 9], user="somebody else")
    num_plans = len(harness.plans)
    harness.run().check_idle()
    admitted = [admission.seq_id for plan in harness.plans[num_plans:] for admission in plan.admissions]
    assert list(dict.fromkeys(admitted)) == [2, 3, newer]
    harness.check_as_alone()


@pytest.mark.covers("E9", "T16")
def test_nobody_is_admitted_in_a_step_that_preempted_though_somebody_would_fit():
    harness = one_token_blocks(24, scheduling_policy="priority", max_num_seqs=9)
    for i in range(3):
        harness.add([i, 2, 3], max_tokens=12, ignore_eos=True)
    count = 0
    for _ in range(40):
        before = harness.scheduler.stats().preemptions
        head = harness.scheduler.queue.head()
        if head is None or head.request.priority == 0:
            harness.add([5], max_tokens=1, priority=-1)
        plan = harness.step()
        if harness.scheduler.stats().preemptions > before:
            count += 1
            assert not plan.admissions
            assert harness.scheduler.queue.head().request.priority == -1, "a single token would fit"
    assert count
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D27", "E9")
@pytest.mark.parametrize(("victim_policy", "goes"), [("latest", "B"), ("most_output", "A")])
def test_of_a_with_ten_outputs_and_b_with_three_the_policy_says_who_goes_and_all_finish(victim_policy, goes):
    harness = one_token_blocks(32, victim_policy=victim_policy)
    harness.add([1, 2, 3, 4], max_tokens=20, ignore_eos=True)
    a = harness.add([5, 2, 3, 4], max_tokens=20, ignore_eos=True)
    harness.steps(7)
    b = harness.add([6, 2, 3, 4], max_tokens=20, ignore_eos=True)
    harness.steps(3)
    assert [len(harness.record(r).token_ids) for r in (a, b)] == [10, 3] and not harness.scheduler.cache.pool.num_free
    harness.step()
    assert (num_preemptions(harness, a), num_preemptions(harness, b)) == ((1, 0) if goes == "A" else (0, 1))
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D27", "E9", "I14")
@pytest.mark.parametrize("victim_policy", ["latest", "most_output"])
def test_the_first_admitted_is_never_the_victim_whatever_its_priority(victim_policy):
    harness = one_token_blocks(20, victim_policy=victim_policy)
    first = harness.add([1, 2, 3, 4], max_tokens=16, priority=99, ignore_eos=True)
    for i in range(3):
        harness.add([i, 5], max_tokens=12, priority=-i, ignore_eos=True)
    harness.run().check_idle()
    assert harness.scheduler.stats().preemptions >= 3
    assert harness.record(first).events[-1].num_preemptions == 0
    harness.check_as_alone()


@pytest.mark.covers("D27")
def test_the_lowest_priority_goes_before_the_latest():
    harness = one_token_blocks(20)
    harness.add([1, 2, 3, 4], max_tokens=16, ignore_eos=True)
    low = harness.add([5, 2, 3, 4], max_tokens=16, priority=1, ignore_eos=True)
    late = harness.add([6, 2, 3, 4], max_tokens=16, priority=0, ignore_eos=True)
    step_until(harness, lambda: harness.scheduler.stats().preemptions)
    assert (num_preemptions(harness, low), num_preemptions(harness, late)) == (1, 0)


@pytest.mark.covers("D28", "T17")
def test_with_four_blocks_and_the_stop_policy_one_of_two_ends_and_keeps_its_tokens():
    harness = crowd(num=2, num_blocks=4, preemption_policy="stop").run()
    harness.check_idle()
    record = harness.record(2)
    assert record.reason is FinishReason.PREEMPTED and record.reason.value == "insufficient_system_resource"
    assert "preempted for want of cache blocks" in record.finish.detail
    alone = crowd(num=2, num_blocks=100).run().record(2).token_ids
    assert record.token_ids == alone[:5]
    assert harness.record(1).reason is FinishReason.LENGTH_CAPPED and len(harness.record(1).token_ids) == 12


@pytest.mark.covers("D28")
def test_recompute_is_the_only_default_and_there_is_no_cap():
    for config in (EngineConfig(), SchedulerConfig(max_model_len=64)):
        assert (config.preemption_policy, config.victim_policy, config.max_preemptions) == ("recompute", "latest", None)


@pytest.mark.covers("T17", "D28")
@pytest.mark.parametrize("cap", [0, 1, 2, None])
def test_one_preemption_more_than_the_cap_ends_the_victim_with_its_tokens(cap):
    harness = one_token_blocks(40, max_preemptions=cap)
    harness.add([1, 2, 3, 4], max_tokens=34, ignore_eos=True)
    victim = harness.add([5, 2, 3, 4], max_tokens=34, priority=1, ignore_eos=True)
    for times in range(1, 4):
        step_until(harness, lambda: harness.sequence(victim).row is not None)
        harness.add([6] * (harness.scheduler.cache.pool.num_free - 5), max_tokens=4, ignore_eos=True)
        step_until(harness, lambda t=times: harness.record(victim).finish or num_preemptions(harness, victim) == t)
        if cap is not None and times > cap:
            assert harness.record(victim).finish.reason is FinishReason.PREEMPTED
            assert f"(time {times})" in harness.record(victim).finish.detail
            assert harness.record(victim).events[-1].num_preemptions == times
            return
    assert cap is None
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("M6", "T18", "6a")
@pytest.mark.parametrize("overlap", [False, True])
def test_a_lone_sequence_that_reaches_nine_tokens_in_two_blocks_of_four_ends_instead_of_looping(overlap):
    harness = Harness(num_blocks=2, overlap=overlap)
    harness.add([1, 2, 3, 4], max_tokens=20, ignore_eos=True)
    harness.run(max_steps=12).check_idle()
    record = harness.record(1)
    assert record.reason is FinishReason.PREEMPTED and "needs more than the 2 cache blocks" in record.finish.detail
    assert len(record.token_ids) == (4 if overlap else 5), "the token in flight is void under overlap"
    assert record.events[-1].num_preemptions == 0


@pytest.mark.covers("D31", "T19", "I19")
def test_a_row_preempted_in_flight_is_void_and_its_neighbours_get_exactly_their_tokens():
    harness = one_token_blocks(11, overlap=True)
    harness.add([1, 2, 3, 4], max_tokens=7, ignore_eos=True)
    harness.step()
    harness.add([5, 6, 7], max_tokens=3, priority=1, ignore_eos=True)
    harness.add([8, 9], max_tokens=3, ignore_eos=True)
    plan = harness.step()
    assert [(segment.seq_id, segment.length) for segment in plan.segments] == [(1, 1), (2, 3), (3, 2)]
    harness.step()
    stats = harness.scheduler.stats()
    assert (stats.preemptions, stats.stale_segments) == (1, 1)
    assert [len(harness.record(r).token_ids) for r in (1, 2, 3)] == [2, 0, 1]
    assert stats.generated_tokens == 3 and harness.record(2).events == []
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D40", "I30")
def test_preemptions_recomputed_tokens_and_reasons_are_counted_and_logged(caplog):
    harness = crowd(num=3)
    with caplog.at_level(logging.INFO, "headrace"):
        harness.run().check_idle()
    stats = harness.scheduler.stats()
    counts = [record.events[-1].num_preemptions for record in harness.records.values()]
    assert stats.preemptions == sum(counts) == 2, counts
    assert stats.recomputed_tokens > 0 and stats.finished[FinishReason.LENGTH_CAPPED] == 3
    assert caplog.messages.count("request r3 preempted and will be recomputed") == counts[2] > 0


@pytest.mark.covers("D40")
def test_a_victim_that_stops_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "headrace"):
        crowd(num=2, num_blocks=4, preemption_policy="stop").run()
    assert caplog.messages == ["request r2 preempted and stops"]


@pytest.mark.covers("D42", "I24")
def test_a_seeded_request_draws_the_same_alone_in_a_crowd_of_32_and_preempted():
    prompt, options = [3, 1, 4, 1, 5], {"max_tokens": 20, "seed": 1, "ignore_eos": True}
    alone = Harness()
    alone.add(prompt, **options)
    packed = Harness(num_blocks=300, max_num_seqs=33, max_num_batched_tokens=64)
    squeezed = Harness(num_blocks=12, max_num_seqs=33)
    for harness in (packed, squeezed):
        for i in range(31):
            harness.add([i % 13, i // 13, 7], max_tokens=20, seed=i, ignore_eos=True)
    outputs = []
    for harness in (alone, packed, squeezed):
        request_id = 1 if harness is alone else harness.add(prompt, **options)
        outputs.append(harness.run().record(request_id).token_ids)
    assert outputs[0] == outputs[1] == outputs[2] and len(outputs[0]) == 20
    assert squeezed.scheduler.stats().preemptions >= 3
