"""Drafts in the plan: how many are asked for, what the accepted ones do, and what they never do to others."""

from dataclasses import replace

import pytest
from tests.schedule.harness import CONFIG, Harness, answer

from headrace.schedule.invariants import check
from headrace.schedule.scheduler import Scheduler
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, RowResult, StepPlan, StepResult


def drafting(max_tokens: int = 20, prompt: int = 3, num_blocks: int = 32, **config: int) -> Scheduler:
    """A scheduler of drafts whose one sequence has its first token."""
    scheduler = Scheduler(replace(CONFIG, **config), CacheLayout(num_blocks + 1, 4))
    scheduler.add(Request(1, "r", (1,) * prompt, Sampling(max_tokens=max_tokens, ignore_eos=True)))
    scheduler.commit(answer(scheduler.schedule()))
    return scheduler


def verify(scheduler: Scheduler, num_accepted: int) -> StepPlan:
    """One step of which that many drafts hold."""
    plan = scheduler.schedule()
    [segment] = plan.segments
    tokens = tuple(range(1, num_accepted + 2))
    scheduler.commit(StepResult(plan.step, (RowResult(1, segment.epoch, tokens, num_accepted=num_accepted),)))
    check(scheduler)
    return plan


@pytest.mark.covers("D20", "T12", "T13", "I20")
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_each_number_of_accepted_drafts_is_appended_and_the_rejected_are_taken_off_computed(num_accepted):
    scheduler = drafting(num_drafts=3)
    plan = verify(scheduler, num_accepted)
    [segment] = plan.segments
    assert (segment.start, segment.length, segment.num_drafts, plan.has_drafts) == (3, 4, 3, True)
    [seq] = scheduler.live()
    assert len(seq.tokens) == 4 + num_accepted + 1
    assert seq.num_computed == len(seq.tokens) - 1 and seq.pending == 0
    assert scheduler.schedule().segments[0].start == seq.num_computed - 4
    stats = scheduler.stats()
    assert (stats.draft_tokens, stats.accepted_tokens) == (6, num_accepted)


@pytest.mark.covers("T12", "I18")
def test_no_draft_is_asked_for_beyond_max_tokens():
    scheduler = drafting(max_tokens=6, num_drafts=3)
    asked = [verify(scheduler, accepted).segments[0].num_drafts for accepted in (1, 1, 0)]
    assert asked == [3, 2, 0], "room for 5, 3 and 1 tokens"
    assert not list(scheduler.live())


@pytest.mark.covers("T12", "I18")
def test_no_draft_is_asked_for_beyond_max_model_len():
    scheduler = drafting(prompt=10, max_model_len=14, num_drafts=3)
    asked = [verify(scheduler, accepted).segments[0].num_drafts for accepted in (0, 1)]
    assert asked == [2, 1]
    assert not list(scheduler.live())


@pytest.mark.covers("I12", "T12")
def test_drafts_take_only_what_the_decodes_leave_of_the_budget():
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8, num_drafts=3)
    for i in range(4):
        harness.add([i], max_tokens=40, ignore_eos=True)
    plans = harness.steps(6)
    assert [len(plan.segments) for plan in plans] == [4] * 6, "nobody is left out for a draft"
    assert [[s.num_drafts for s in plan.segments] for plan in plans[1:]] == [[3, 1, 0, 0]] * 5
    assert all(plan.num_tokens <= 8 for plan in plans)
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T12")
def test_where_blocks_are_short_drafts_are_left_out_before_anybody_is_preempted():
    scheduler = drafting(num_blocks=1, num_drafts=3)
    plan = scheduler.schedule()
    assert (plan.segments[0].length, plan.segments[0].num_drafts) == (1, 0)
    assert scheduler.stats().preemptions == 0 and scheduler.num_running == 1


@pytest.mark.covers("T12")
def test_none_is_asked_for_while_a_step_is_in_flight():
    scheduler = drafting(num_drafts=3)
    first = scheduler.schedule()
    assert first.segments[0].num_drafts == 3
    scheduler.add(Request(2, "r", (1, 2), Sampling(max_tokens=9, ignore_eos=True)))
    second = scheduler.schedule()
    assert not second.has_drafts


@pytest.mark.covers("T12", "E7")
def test_a_prompt_chunk_has_no_drafts():
    harness = Harness(num_drafts=3, max_num_batched_tokens=4)
    harness.add(range(1, 11), max_tokens=5, ignore_eos=True)
    assert [plan.segments[0].num_drafts for plan in harness.steps(4)] == [0, 0, 0, 3]


@pytest.mark.covers("I24", "I20", "D35")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_with_drafts_everybody_gets_the_tokens_he_gets_without(num_drafts, overlap):
    harness = Harness(num_blocks=14, num_drafts=num_drafts, overlap=overlap)
    for i in range(4):
        harness.add([i, 2, 3], n=1 + i % 2, max_tokens=14, seed=i)
    harness.run().check_idle()
    harness.check_as_alone()
    stats = harness.scheduler.stats()
    if overlap:
        assert stats.draft_tokens == 0, "there is always a step in flight"
        return
    assert 0 < stats.accepted_tokens < stats.draft_tokens, "some hold and some do not"
    assert max(len(event.token_ids) for r in harness.records.values() for event in r.events) > 1


@pytest.mark.covers("T16", "I24")
def test_drafts_in_a_pool_that_is_too_small_survive_preemption():
    harness = Harness(num_blocks=8, num_drafts=3)
    for i in range(4):
        harness.add([i, 2, 3, 4], max_tokens=14, ignore_eos=True)
    harness.run().check_idle()
    harness.check_as_alone()
    assert harness.scheduler.stats().preemptions > 0


@pytest.mark.covers("E8", "I6")
def test_a_block_is_published_with_the_ids_that_held_and_not_with_the_drafts():
    scheduler = drafting(num_drafts=3)
    verify(scheduler, 0)
    assert len(scheduler.cache.index) == 1, "positions 0 to 3 are known: the prompt and the first token"
    verify(scheduler, 3)
    [seq] = scheduler.live()
    assert seq.num_computed == 8 and len(scheduler.cache.index) == 2
    keys = [key.ids for key, _ in scheduler.cache.index.entries().values()]
    assert [token for ids in keys for token in ids] == seq.tokens[:8]
