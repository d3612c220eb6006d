"""Prompts in chunks beside decodes: budget, reservation, what a chunk emits, and spans that are never split."""

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.sequence import Status
from headrace.words.params import MediaSpan
from headrace.words.plan import Emits


def lengths(plans) -> list[list[int]]:
    return [[segment.length for segment in plan.segments] for plan in plans]


@pytest.mark.covers("D17", "T9", "T10", "T11")
def test_a_prompt_of_ten_goes_in_chunks_of_four_four_and_two_and_only_the_last_emits():
    harness = Harness(max_num_batched_tokens=4)
    request_id = harness.add(range(1, 11), ignore_eos=True)
    seen = []
    for _ in range(3):
        plan = harness.step()
        [segment] = plan.segments
        seq = harness.sequence(request_id)
        seen.append((segment.start, segment.length, segment.emits, seq.status, len(harness.record(request_id).events)))
    assert seen == [
        (0, 4, Emits.NOTHING, Status.RUNNING, 0),
        (4, 4, Emits.NOTHING, Status.RUNNING, 0),
        (8, 2, Emits.TOKEN, Status.RUNNING, 1),
    ]
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D17", "T9")
def test_a_sequence_is_prefilling_until_its_last_chunk_and_computed_moves_at_the_launch():
    harness = Harness(max_num_batched_tokens=4)
    harness.add(range(1, 11), ignore_eos=True)
    facts = []
    for _ in range(3):
        plan = harness.scheduler.schedule()
        launched = harness.sequence(1)
        facts.append((launched.num_computed, launched.pending, launched.is_prefilling))
        harness.device.forward(plan)
        harness.scheduler.commit(harness.device.sample(plan))
    assert facts == [(4, 0, True), (8, 0, True), (10, 1, False)]


@pytest.mark.covers("D16", "T7")
def test_the_first_chunk_of_a_prompt_of_100_reserves_seven_blocks_and_no_later_one_takes_any():
    harness = Harness(num_blocks=8, block_size=16, max_model_len=112)
    prompt = [i % 13 for i in range(100)]
    harness.add(prompt, max_tokens=12, ignore_eos=True)
    harness.add([1, 2, 3], max_tokens=40, ignore_eos=True)
    plans = harness.steps(4)
    assert [len(admission.block_ids) for plan in plans for admission in plan.admissions] == [7, 1]
    assert lengths(plans[:3]) == [[32], [32], [32]] and not any(plan.growths for plan in plans)
    assert harness.scheduler.stats().preemptions == 0
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T8", "D16")
def test_what_does_not_fit_whole_takes_nothing_and_waits():
    harness = Harness(num_blocks=8)
    first = harness.add(range(1, 21), max_tokens=3, ignore_eos=True)
    second = harness.add(range(20, 36), max_tokens=3, ignore_eos=True)
    harness.step()
    seq = harness.sequence(second)
    assert (seq.status, seq.block_ids, seq.row, seq.num_computed) == (Status.WAITING, [], None, 0)
    assert harness.scheduler.cache.pool.num_used == len(harness.sequence(first).block_ids) == 5
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D17", "T16")
def test_a_half_computed_prompt_may_be_a_victim_and_starts_again_with_nothing_computed():
    harness = Harness(num_blocks=8, max_num_batched_tokens=5, enable_prefix_caching=False)
    old = harness.add([1, 2, 3, 4], max_tokens=20, ignore_eos=True)
    harness.step()
    young = harness.add(range(1, 25), max_tokens=2, ignore_eos=True)
    harness.steps(5)
    seq = harness.sequence(young)
    assert seq.num_preemptions == 1 and (seq.status, seq.num_computed) == (Status.WAITING, 0)
    assert harness.record(young).events == [] and harness.sequence(old).num_preemptions == 0
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("M4", "I14")
def test_a_prompt_of_2000_completes_with_a_budget_of_1024():
    harness = Harness(num_blocks=130, block_size=16, max_num_batched_tokens=1_024, max_model_len=2_048)
    harness.add([i % 13 for i in range(2_000)], max_tokens=2, ignore_eos=True)
    assert lengths(harness.steps(3)) == [[1_024], [976], [1]]
    harness.check_as_alone()


@pytest.mark.covers("M3", "E9")
def test_a_long_arrival_delays_no_decode_by_more_than_the_step_it_shares():
    harness = Harness(num_blocks=800, block_size=16, max_num_seqs=9, max_num_batched_tokens=64, max_model_len=4_096)
    decoding = [harness.add([i, 2, 3], max_tokens=60, ignore_eos=True) for i in range(8)]
    harness.step()
    harness.add([i % 13 for i in range(560)], max_tokens=1, ignore_eos=True)
    for _ in range(10):
        before = [len(harness.record(r).token_ids) for r in decoding]
        plan = harness.step()
        assert [len(harness.record(r).token_ids) for r in decoding] == [count + 1 for count in before]
        assert plan.num_tokens == 64, "the prompt fills what the decodes leave"
    assert harness.record(9).token_ids, "560 tokens at 56 a step"


@pytest.mark.covers("M5", "I12")
def test_of_a_hundred_requests_never_more_than_sixteen_run():
    harness = Harness(num_blocks=200, max_num_seqs=16, max_num_batched_tokens=64)
    for i in range(100):
        harness.add([i % 13, i // 13, 5], max_tokens=1 + i % 7, ignore_eos=True)
    most = 0
    while harness.scheduler.has_unfinished():
        plan = harness.step()
        most = max(most, len(plan.segments), harness.scheduler.num_running)
    assert most == 16
    harness.check_as_alone()


@pytest.mark.covers("M4", "I14")
def test_a_budget_of_one_token_still_finishes_everybody():
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=1)
    for i in range(3):
        harness.add([i, 2, 3], ignore_eos=True)
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T12")
@pytest.mark.parametrize("limit", [{"max_tokens": 3}, {"max_tokens": 99, "max_model_len": 6}])
def test_no_decode_is_launched_behind_a_token_in_flight_that_is_surely_the_last(limit):
    max_tokens = limit.pop("max_tokens")
    harness = Harness(overlap=True, **limit)
    harness.add([1, 2, 3], max_tokens=max_tokens, ignore_eos=True)
    plans = harness.steps(5)
    assert lengths(plans) == [[3], [1], [1], [], []]
    assert harness.record(1).finish is not None and harness.scheduler.stats().stale_segments == 0
    harness.check_as_alone()


@pytest.mark.covers("T12", "M7")
def test_a_decode_in_flight_already_has_the_block_of_the_next_one():
    harness = Harness(overlap=True)
    harness.add([1, 2, 3], max_tokens=9, ignore_eos=True)
    plans = harness.steps(3)
    assert [len(growth.block_ids) for plan in plans for growth in plan.growths] == [1]
    assert plans[2].growths and plans[2].segments[0].start == 4
    assert harness.sequence(1).pending == 1, "the token of step 3 is still being drawn"


@pytest.mark.covers("E10")
def test_mixed_policy_fills_the_step_beside_the_decodes():
    harness = Harness(max_num_batched_tokens=8)
    harness.add([1, 2, 3], max_tokens=9, ignore_eos=True)
    harness.step()
    harness.add(range(1, 13), ignore_eos=True)
    assert lengths(harness.steps(3)) == [[1, 7], [1, 5], [1, 1]]


@pytest.mark.covers("E10")
def test_first_policy_computes_prompts_alone_whenever_any_fits():
    harness = Harness(max_num_batched_tokens=8, prefill_policy="first")
    harness.add([1, 2, 3], max_tokens=9, ignore_eos=True)
    harness.step()
    harness.add(range(1, 13), ignore_eos=True)
    harness.add(range(5, 9), ignore_eos=True)
    assert lengths(harness.steps(4)) == [[8], [4, 4], [1, 1, 1], [1, 1, 1]]
    harness.run().check_idle()
    harness.check_as_alone()


def test_an_atomic_span_is_computed_in_one_step_or_not_at_all():
    harness = Harness(max_num_batched_tokens=8)
    span = MediaSpan(start=6, length=7, handle="handle", digest="digest", atomic=True)
    harness.add(range(1, 21), spans=(span,), ignore_eos=True)
    harness.run().check_idle()
    assert lengths(harness.plans)[:4] == [[6], [8], [6], [1]]
    harness.check_as_alone()


def test_a_span_that_is_not_atomic_is_split_like_text():
    harness = Harness(max_num_batched_tokens=8)
    harness.add(range(1, 21), spans=(MediaSpan(6, 7, "handle", "digest"),), ignore_eos=True)
    assert lengths(harness.steps(3)) == [[8], [8], [4]]


def test_two_atomic_spans_side_by_side_are_split_only_between_them():
    harness = Harness(max_num_batched_tokens=8)
    spans = tuple(MediaSpan(start, 6, "handle", str(start), atomic=True) for start in (2, 8))
    harness.add(range(1, 17), spans=spans, ignore_eos=True)
    assert lengths(harness.steps(3)) == [[8], [8], [1]]
    harness.run().check_idle()
    harness.check_as_alone()


def test_a_waiting_prompt_whose_atomic_span_has_no_room_this_step_takes_nothing():
    harness = Harness(max_num_batched_tokens=8)
    harness.add([1, 2, 3], max_tokens=3, ignore_eos=True)
    harness.step()
    span = MediaSpan(0, 8, "handle", "digest", atomic=True)
    request_id = harness.add(range(1, 10), spans=(span,), ignore_eos=True)
    harness.step()
    assert harness.sequence(request_id).status is Status.WAITING and harness.scheduler.cache.pool.num_used == 1
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("I14")
def test_an_atomic_span_half_way_is_not_starved_by_newcomers():
    harness = Harness(max_num_batched_tokens=8, max_num_seqs=4, num_blocks=64)
    harness.add([1, 2, 3], max_tokens=5, ignore_eos=True)
    span = MediaSpan(4, 8, "handle", "digest", atomic=True)
    image = harness.add(range(1, 15), spans=(span,), max_tokens=1, ignore_eos=True)
    for i in range(40):
        harness.add([i % 13, 5], max_tokens=5, ignore_eos=True)
        harness.step()
        if harness.record(image).finish is not None:
            break
    assert i < 20, "younger requests keep the image's span from ever having a whole step"
