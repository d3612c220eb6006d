"""Edges of the books: what is counted to the token, forgotten in time, done once, and shared as far as it may be."""

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.invariants import check
from headrace.schedule.prefix import Key, PrefixIndex
from headrace.words.params import MediaSpan
from headrace.words.plan import Emits

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
