"""Edges of the books: what is counted to the token, forgotten in time, done once, and shared as far as it may be."""

import pytest
from tests.schedule.harness import CONFIG, Harness, answer

from headrace.schedule.invariants import check
from headrace.schedule.prefix import Key, PrefixIndex
from headrace.schedule.scheduler import Scheduler
from headrace.words.outputs import FinishReason
from headrace.words.params import MediaSpan, Request, Sampling
from headrace.words.plan import CacheLayout, Emits, StepResult

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.covers("E8")
def test_a_prompt_that_waits_is_looked_up_block_by_block_only_once(monkeypatch):
    looked_up: list[Key] = []
    find = PrefixIndex.find
    monkeypatch.setattr(PrefixIndex, "find", lambda index, key: looked_up.append(key) or find(index, key))
    harness = Harness(num_blocks=20, max_num_batched_tokens=64, max_model_len=90)
    shared = range(1, 62)
    harness.add(shared, max_tokens=12, ignore_eos=True)
    harness.step()
    harness.add([*shared, *range(70, 87)], max_tokens=1)
    looked_up.clear()
    harness.step()
    assert harness.scheduler.num_waiting == 1 and len(looked_up) == 16, "15 blocks hit and one does not"
    harness.steps(4)
    assert harness.scheduler.num_waiting == 1 and len(looked_up) == 16 + 4, "what was found is not looked for again"


@pytest.mark.covers("T27", "E8")
def test_of_a_step_that_was_committed_no_list_of_its_blocks_is_kept():
    harness = Harness()
    for i in range(5):
        harness.add([i, *PROMPT], max_tokens=6, ignore_eos=True)
    harness.run()
    assert not harness.scheduler.cache._published


@pytest.mark.covers("E8")
def test_two_adapters_share_nothing_with_each_other():
    harness = Harness()
    for adapter in ("a", "b"):
        harness.add(PROMPT, max_tokens=1, adapter=adapter)
        harness.run()
    assert [record.events[-1].num_cached_tokens for record in harness.records.values()] == [0, 0]


@pytest.mark.covers("E8")
@pytest.mark.parametrize(
    ("start", "length", "shared"), [(8, 2, 8), (7, 2, 4), (4, 4, 4), (3, 6, 0), (0, 1, 0), (11, 5, 8)]
)
def test_blocks_before_an_image_are_shared_and_none_that_it_touches_or_follows_it(start, length, shared):
    harness = Harness()
    for digest in ("cat", "dog"):
        harness.add((*PROMPT, *PROMPT), max_tokens=1, spans=(MediaSpan(start, length, "handle", digest),))
        harness.run()
    assert harness.record(2).events[-1].num_cached_tokens == shared


@pytest.mark.covers("E7", "D29")
def test_a_prompt_that_was_scored_is_not_scored_again_after_a_preemption():
    harness = Harness(num_blocks=8)
    harness.add((11, 12, 11), max_tokens=24, ignore_eos=True)
    harness.step()
    harness.add(PROMPT, max_tokens=14, prompt_logprobs=1, ignore_eos=True)
    harness.run().check_idle()
    scoring = [s for plan in harness.plans for s in plan.segments if s.emits is Emits.LOGPROBS]
    assert harness.record(2).events[-1].num_preemptions == 1
    assert [(segment.seq_id, segment.epoch) for segment in scoring] == [(2, 0)]


@pytest.mark.covers("E10")
def test_beside_a_half_computed_prompt_others_are_admitted_at_once():
    harness = Harness(num_blocks=80, max_num_batched_tokens=16, prefill_policy="attempt", attempt_max_steps=4)
    harness.add((1, 2, 3), max_tokens=40, ignore_eos=True)
    harness.step()
    harness.add([i % 13 for i in range(34)], max_tokens=1, ignore_eos=True)
    while harness.sequence(2).row is None:
        harness.step()
    harness.add((4, 5, 6), max_tokens=9, ignore_eos=True)
    delays = [bool(harness.step().admissions) for _ in range(3)]
    assert any(delays[:2]), "it shares the step of the last chunk"


@pytest.mark.covers("I10", "T24")
def test_a_block_is_zeroed_once_and_then_clean_for_its_next_owners():
    harness = Harness(num_blocks=2, enable_prefix_caching=False)
    harness.add((1, 2, 3, 4, 5), max_tokens=3)
    harness.device.poisoned.add(1)
    harness.step()
    for _ in range(2):
        harness.add((1, 2, 3, 4, 5), max_tokens=1)
        harness.run()
    assert [len(plan.zero_blocks) for plan in harness.plans] == [0, 2, 0]


@pytest.mark.covers("T23", "E8", "I2", "T21")
def test_a_failed_step_withdraws_the_blocks_also_of_one_who_left_it_before():
    harness = Harness(num_blocks=6)
    gone = harness.add((*PROMPT, 9), max_tokens=3)
    plan = harness.scheduler.schedule()
    harness.scheduler.abort(gone)
    assert len(harness.scheduler.cache.index) == 2
    harness.scheduler.fail(plan.step, "lost")
    check(harness.scheduler)
    assert not len(harness.scheduler.cache.index)
    harness.add(range(1, 22), max_tokens=2, ignore_eos=True)
    harness.run().check_idle()
    harness.records.pop((gone, 0))
    harness.check_as_alone()


@pytest.mark.covers("D40", "I30")
def test_of_a_half_computed_victim_only_the_computed_half_counts_as_recomputed():
    harness = Harness(max_num_batched_tokens=5, enable_prefix_caching=False)
    harness.add(range(1, 13), max_tokens=2, ignore_eos=True)
    harness.step()
    harness.scheduler.roster.send_back(harness.sequence(1), "test")
    harness.run().check_idle()
    stats = harness.scheduler.stats()
    assert (stats.recomputed_tokens, stats.prompt_tokens, stats.computed_prefill_tokens) == (5, 12, 17)


@pytest.mark.covers("T23", "I10")
def test_blocks_of_a_failed_step_are_zeroed_once_before_anybody_gets_them():
    harness = Harness(num_blocks=4)
    harness.add((1, 2, 3, 4, 5), max_tokens=2, ignore_eos=True)
    harness.device.fail_forward = True
    failed = harness.step()
    harness.run().check_idle()
    assert [set(plan.zero_blocks) for plan in harness.plans[1:]] == [set(failed.admissions[0].block_ids), set()]
    harness.check_as_alone()


@pytest.mark.covers("T23", "I10")
def test_what_a_failed_plan_should_have_zeroed_is_zeroed_by_one_later_plan():
    harness = Harness(num_blocks=3, enable_prefix_caching=False)
    harness.add(range(1, 9), max_tokens=9)
    harness.device.poisoned.add(1)
    harness.step()
    harness.add(range(1, 10), max_tokens=3, ignore_eos=True)
    harness.device.fail_forward = True
    harness.step()
    harness.run().check_idle()
    assert [bool(plan.zero_blocks) for plan in harness.plans] == [False, True, True, False, False]


@pytest.mark.covers("T23", "D34", "I8")
def test_a_failed_step_off_the_stream_holds_its_blocks_no_longer():
    harness = Harness(num_blocks=4, ordered=False)
    harness.add((1, 2, 3, 4, 5), max_tokens=2, ignore_eos=True)
    harness.device.fail_result = True
    harness.step()
    assert not harness.scheduler.cache.pool.has_leases and harness.scheduler.cache.pool.num_used == 0
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("I12", "M4")
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_smaller_than_the_rows_is_never_passed_and_everybody_finishes(budget):
    harness = Harness(max_num_batched_tokens=budget)
    for i in range(4):
        harness.add((i, 2, 3), max_tokens=12, ignore_eos=True)
    harness.run().check_idle()
    assert {plan.num_tokens for plan in harness.plans if plan.segments} == {*range(1, budget + 1)}
    harness.check_as_alone()


@pytest.mark.covers("M3", "E9")
def test_a_prompt_of_higher_priority_leaves_every_decode_its_token():
    harness = Harness(num_blocks=40, max_num_batched_tokens=6, scheduling_policy="priority")
    decoding = [harness.add((i, 2, 3), max_tokens=30, ignore_eos=True) for i in range(3)]
    harness.steps(3)
    harness.add([i % 13 for i in range(30)], max_tokens=1, priority=-1, ignore_eos=True)
    for plan in harness.steps(8):
        assert {segment.seq_id for segment in plan.segments} >= set(decoding) and plan.num_tokens <= 6
    assert harness.plans[-1].num_tokens == 6


@pytest.mark.covers("D31", "E9")
def test_a_scored_prompt_in_flight_holds_nobody_up():
    harness = Harness(overlap=True)
    harness.add(PROMPT, max_tokens=0, prompt_logprobs=1)
    harness.step()
    newer = harness.add((9, 9, 9), max_tokens=1, ignore_eos=True)
    assert [segment.seq_id for segment in harness.step().segments] == [newer]
    harness.run().check_idle()


@pytest.mark.covers("E10")
def test_under_the_first_policy_also_the_last_two_tokens_of_a_prompt_come_before_the_decodes():
    harness = Harness(prefill_policy="first", max_num_batched_tokens=8)
    harness.add((1, 2, 3), max_tokens=9, ignore_eos=True)
    harness.step()
    late = harness.add(range(1, 11), max_tokens=1, ignore_eos=True)
    chunks = [[(segment.seq_id, segment.length) for segment in plan.segments] for plan in harness.steps(3)]
    assert chunks == [[(late, 8)], [(late, 2)], [(1, 1)]]


@pytest.mark.covers("T12", "I5")
@pytest.mark.parametrize(("length", "num_drafts"), [(1, 2), (2, 0)])
def test_two_drafts_are_asked_for_where_they_just_fit_and_none_where_one_position_is_missing(length, num_drafts):
    harness = Harness(num_blocks=1, block_size=4, num_drafts=2)
    harness.add((5,) * length, max_tokens=9, ignore_eos=True)
    [segment] = harness.steps(2)[1].segments
    assert (segment.length, segment.num_drafts) == (1 + num_drafts, num_drafts)


@pytest.mark.covers("D34")
def test_steps_are_counted_and_on_one_stream_they_hold_no_leases():
    scheduler = Scheduler(CONFIG, CacheLayout(9, 4))
    scheduler.add(Request(1, "r", (1, 2), Sampling(max_tokens=9)))
    for step in (1, 2):
        scheduler.schedule()
        assert not scheduler.cache.pool.has_leases and scheduler.stats().steps == step


@pytest.mark.covers("D31", "T19", "T24")
def test_a_row_that_answers_for_another_epoch_is_no_answer():
    harness = Harness()
    for i in range(2):
        harness.add((i, 2, 3), max_tokens=1, ignore_eos=True)
    plan = harness.scheduler.schedule()
    result = answer(plan)
    odd = result.rows[0]._replace(epoch=result.rows[0].epoch + 1)
    events = harness.scheduler.commit(StepResult(plan.step, (odd, result.rows[1])))
    assert [event.finish.reason for event in events] == [FinishReason.FAILED, FinishReason.LENGTH_CAPPED]
    assert [event.token_ids for event in events] == [(), (1,)]
