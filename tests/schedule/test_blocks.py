"""Blocks and rows: when one is taken, when it is free again, and who may have it next."""

import pytest
from tests.schedule.device import EOS
from tests.schedule.harness import Harness

from headrace.schedule.cache_manager import CacheManager
from headrace.schedule.invariants import check
from headrace.schedule.pool import BlockPool
from headrace.schedule.prefix import ROOT, Key, PrefixIndex
from headrace.schedule.sequence import Sequence, Status
from headrace.words.outputs import FinishReason
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, StepPlan


def growths(plans: list[StepPlan]) -> list[int]:
    return [sum(len(growth.block_ids) for growth in plan.growths) for plan in plans]


@pytest.mark.covers("M7")
def test_with_blocks_of_256_a_257th_token_needs_a_block_and_a_256th_does_not():
    cache = CacheManager(CacheLayout(9, 256))
    seq = Sequence(1, Request(1, "r", tuple(range(255)), Sampling()), 0, 1, 0.0, tokens=list(range(255)))
    assert cache.admit(seq) and len(seq.block_ids) == 1
    assert cache.grow(seq, 256) == ()
    assert len(cache.grow(seq, 257)) == 1 and len(seq.block_ids) == 2
    assert [cache.blocks_for(n) for n in (1, 256, 257, 512, 513)] == [1, 1, 2, 2, 3]


@pytest.mark.covers("M7")
def test_the_token_just_drawn_takes_its_place_only_when_it_is_computed():
    harness = Harness()
    harness.add([1, 2, 3], max_tokens=11, ignore_eos=True)
    plans = harness.steps(8)
    assert growths(plans) == [0, 0, 1, 0, 0, 0, 1, 0], "positions 4 and 8 begin a block"


@pytest.mark.covers("M7", "T8")
def test_a_grant_that_does_not_fit_takes_nothing():
    cache = CacheManager(CacheLayout(3, 4))
    seq = Sequence(1, Request(1, "r", (1, 2, 3), Sampling()), 0, 1, 0.0, tokens=[1, 2, 3])
    assert cache.admit(seq) and cache.grow(seq, 13) is None and not cache.has_room(seq, 13)
    assert len(seq.block_ids) == 1 and cache.pool.num_free == 1
    assert cache.has_room(seq, 8) and len(cache.grow(seq, 8)) == 1


@pytest.mark.covers("D33", "T26", "T27", "M8")
def test_when_the_only_request_ends_all_is_free_after_that_same_step():
    harness = Harness(max_num_seqs=2)
    harness.add([1, 2, 3], max_tokens=2, ignore_eos=True)
    harness.steps(2)
    assert harness.record(1).finish is not None
    assert harness.scheduler.cache.pool.num_free == harness.scheduler.stats().num_blocks == 32
    assert not list(harness.scheduler.live()) and not harness.scheduler.roster.requests
    harness.check_idle()


@pytest.mark.covers("T27", "D33", "I7")
def test_an_idle_scheduler_plans_nothing_keeps_nothing_and_asks_for_no_wake():
    harness = Harness()
    harness.add([1, 2, 3])
    harness.run().check_idle()
    assert harness.scheduler.schedule().is_empty and harness.scheduler.commit(None) == []
    assert not harness.scheduler.has_unfinished() and harness.scheduler.next_deadline() is None
    assert not harness.scheduler.in_flight


@pytest.mark.covers("D34", "I8")
def test_on_one_stream_the_blocks_of_a_sequence_that_ended_are_used_at_once_also_in_flight():
    harness = Harness(num_blocks=4, overlap=True, enable_prefix_caching=False)
    harness.add([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=5, ignore_eos=True)
    harness.add([9, 8, 7, 6, 5], max_tokens=5, ignore_eos=True)
    harness.step()
    mine = harness.sequence(1).block_ids[:]
    harness.step()
    harness.scheduler.abort(1)
    harness.add([4, 4, 4, 4, 4], max_tokens=3, ignore_eos=True)
    plan = harness.step()
    assert set(plan.admissions[0].block_ids) & set(mine), "blocks in flight went to the next in line"
    harness.run().check_idle()
    assert harness.record(1).reason is FinishReason.ABORTED
    del harness.records[1, 0]
    harness.check_as_alone()


@pytest.mark.covers("D34", "I8")
def test_off_the_stream_a_step_holds_its_blocks_until_it_is_committed():
    harness = Harness(num_blocks=4, ordered=False)
    harness.add(range(1, 9), max_tokens=5, ignore_eos=True)
    plan = harness.scheduler.schedule()
    harness.scheduler.abort(1)
    check(harness.scheduler)
    assert harness.scheduler.cache.pool.num_free == 2 and not harness.scheduler.num_running
    harness.device.forward(plan)
    harness.scheduler.commit(harness.device.sample(plan))
    assert harness.scheduler.cache.pool.num_free == 4


@pytest.mark.covers("D34", "I8")
def test_blocks_under_a_transfer_are_not_handed_out_until_it_ends():
    harness = Harness(num_blocks=4, enable_prefix_caching=False)
    harness.add(range(1, 9), max_tokens=1, ignore_eos=True)
    plan = harness.scheduler.schedule()
    held = harness.sequence(1).block_ids[:]
    pool = harness.scheduler.cache.pool
    pool.lease("transfer", held)
    harness.device.forward(plan)
    harness.scheduler.commit(harness.device.sample(plan))
    waiting = harness.add(range(1, 13), max_tokens=1, ignore_eos=True)
    harness.steps(3)
    assert harness.sequence(waiting).status is Status.WAITING and pool.num_free == 2
    pool.end_lease("transfer")
    pool.end_lease("transfer")
    plan = harness.step()
    assert set(held) <= set(plan.admissions[0].block_ids)
    assert pool.refs[held[0]] == 0


@pytest.mark.covers("D34", "I14", "T18")
@pytest.mark.parametrize("prefill_policy", ["mixed", "first", "attempt"])
def test_a_lone_sequence_short_of_blocks_waits_for_a_lease_and_is_served_before_newer_ones(prefill_policy):
    harness = Harness(num_blocks=3, enable_prefix_caching=False, prefill_policy=prefill_policy)
    harness.add([1, 2, 3, 4], max_tokens=8, ignore_eos=True)
    harness.step()
    pool = harness.scheduler.cache.pool
    pool.lease("transfer", pool.take(2))
    pool.drop(pool.leased())
    newer = harness.add([5, 6, 7, 8, 9], max_tokens=1, ignore_eos=True)
    assert [plan.is_empty for plan in harness.steps(3)] == [True] * 3
    assert harness.sequence(1).status is Status.RUNNING and harness.sequence(newer).status is Status.WAITING
    pool.end_lease("transfer")
    assert harness.step().segments[0].seq_id == 1
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("I10", "T24")
def test_blocks_of_a_row_that_gave_nan_are_zeroed_before_anybody_reads_them():
    harness = Harness(num_blocks=3, enable_prefix_caching=False)
    harness.add(range(1, 9), max_tokens=9, ignore_eos=True)
    harness.device.poisoned.add(1)
    harness.step()
    assert harness.device.unclean, "the device holds NaN"
    harness.add(range(1, 10), max_tokens=1, ignore_eos=True)
    plan = harness.step()
    soiled = set(harness.plans[0].admissions[0].block_ids)
    assert set(plan.zero_blocks) == soiled <= set(plan.admissions[0].block_ids)
    harness.run().check_idle()
    assert not any(plan.zero_blocks for plan in harness.plans[2:])


@pytest.mark.covers("I10", "I9", "T7")
def test_a_row_begins_with_an_admission_that_says_all_and_is_retired_before_it_is_given_again():
    harness = Harness(max_num_seqs=1)
    first = harness.add([1, 2, 3], max_tokens=1, seed=5, ignore_eos=True)
    second = harness.add([4, 5, 6], max_tokens=1, seed=6, ignore_eos=True)
    plans = harness.steps(2)
    [one], [two] = (plan.admissions for plan in plans)
    assert (one.row, two.row, plans[1].retired_rows) == (1, 1, (1,))
    assert (one.seq_id, one.token_ids, one.seed) == (first, (1, 2, 3), 5)
    assert (two.seq_id, two.token_ids, two.seed) == (second, (4, 5, 6), 6)
    assert plans[1].segments[0].start == 0, "nothing of the row's former owner counts"


@pytest.mark.covers("6a", "I1")
def test_references_count_up_and_down_and_no_block_is_lost_or_freed_twice():
    harness = Harness(block_size=4)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for i in range(3):
        harness.add(prompt, max_tokens=3 + i, seed=i, ignore_eos=True)
    refs = []
    head = None
    for _ in range(6):
        plan = harness.step()
        head = head or plan.admissions[0].block_ids[0]
        refs.append(harness.scheduler.cache.pool.refs[head])
    assert refs == [3, 3, 2, 1, 0, 0]
    with pytest.raises(AssertionError, match="was freed twice"):
        harness.scheduler.cache.pool.drop([head])


@pytest.mark.covers("I2", "I1")
def test_the_null_block_and_the_null_row_are_never_handed_out():
    harness = Harness(num_blocks=5, max_num_seqs=3)
    for i in range(3):
        harness.add([i, EOS, EOS], max_tokens=2)
    plan = harness.step()
    assert sorted(admission.row for admission in plan.admissions) == [1, 2, 3]
    assert sorted(block for admission in plan.admissions for block in admission.block_ids) == [1, 2, 3]
    assert harness.scheduler.cache.pool.take(2) == [4, 5]


def published(pool: BlockPool, index: PrefixIndex, parent: int = ROOT) -> tuple[int, int]:
    """(block, entry) of a new published block."""
    [block] = pool.take(1)
    entry, _ = index.publish(Key(parent, (block,), ()), block)
    return block, entry


@pytest.mark.covers("E8")
def test_unpublished_blocks_are_reused_first_then_the_least_recently_used():
    index = PrefixIndex()
    pool = BlockPool(6, index)
    a, b, c = (published(pool, index)[0] for _ in range(3))
    [plain] = pool.take(1)
    for block in (b, a, plain, c):
        pool.drop([block])
    pool.share(b)
    pool.drop([b])
    assert pool.take(5)[2:] == [a, c, b], "b was used last"
    assert not len(index)


@pytest.mark.covers("E8")
def test_of_one_request_the_tail_is_reused_before_the_head():
    index = PrefixIndex()
    pool = BlockPool(4, index)
    chain, parent = [], ROOT
    for _ in range(3):
        block, parent = published(pool, index, parent)
        chain.append(block)
    pool.drop(chain)
    assert pool.take(3) == chain[::-1]
