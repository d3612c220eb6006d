"""Entering: what a request becomes, what is refused at the door, and what an enormous one costs."""

import tracemalloc
from dataclasses import FrozenInstanceError

import pytest
from tests.schedule.harness import CONFIG, Harness, answer

from headrace.schedule.scheduler import Scheduler
from headrace.schedule.sequence import Status
from headrace.words.config import EngineConfig, SchedulerConfig
from headrace.words.outputs import FinishReason
from headrace.words.params import MediaSpan, Request, Sampling
from headrace.words.plan import CacheLayout


@pytest.mark.covers("D1")
def test_two_choices_share_the_two_full_blocks_of_a_prompt_of_33_tokens():
    harness = Harness(block_size=16, max_num_batched_tokens=128)
    request_id = harness.add(range(1, 34), n=2, ignore_eos=True)
    first, second = (admission.block_ids for admission in harness.step().admissions)
    assert first[:2] == second[:2] and first[2] != second[2]
    assert [harness.scheduler.cache.pool.refs[block] for block in first] == [2, 2, 1]
    harness.run().check_idle()
    harness.check_as_alone()
    assert harness.record(request_id, 0).token_ids != harness.record(request_id, 1).token_ids


@pytest.mark.covers("D2")
def test_nothing_of_an_added_request_can_be_changed_any_more():
    harness = Harness()
    request = harness.record(harness.add([1, 2, 3], max_tokens=4, ignore_eos=True)).request
    for value, name in ((request, "sampling"), (request.sampling, "max_tokens"), (request, "prompt_ids")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, None)
    harness.run()
    assert len(harness.record(1).token_ids) == 4


@pytest.mark.covers("D7", "T15")
def test_two_billion_max_tokens_reserve_only_the_room_and_end_by_length():
    config = SchedulerConfig(max_model_len=8_192, max_num_batched_tokens=8_192)
    scheduler = Scheduler(config, CacheLayout(1_025, 16))
    prompt = tuple(range(8_180))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    scheduler.add(Request(1, "huge", prompt, Sampling(max_tokens=2**31)))
    events = scheduler.commit(answer(scheduler.schedule()))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000_000, f"{grown} bytes for one request"
    assert scheduler.cache.pool.num_used == 512
    while scheduler.has_unfinished():
        events += scheduler.commit(answer(scheduler.schedule()))
    assert sum(len(event.token_ids) for event in events) == 12
    assert events[-1].finish.reason is FinishReason.LENGTH_CAPPED
    assert events[-1].finish.detail == "max_model_len (8192) reached"


@pytest.mark.covers("D8")
def test_the_role_is_normal_unless_asked_otherwise():
    assert EngineConfig().role == "normal"


@pytest.mark.covers("D4", "T4")
def test_text_waits_for_no_image_worker_that_never_answers():
    harness = Harness()
    image = harness.add([1, 2, 3], gates=("image:0",))
    text = harness.add([4, 5, 6])
    harness.run()
    assert harness.record(text).reason in (FinishReason.STOPPED, FinishReason.LENGTH_CAPPED)
    assert harness.sequence(image).status is Status.BLOCKED and harness.record(image).events == []


@pytest.mark.covers("D19", "D36", "D37", "T2", "M4")
@pytest.mark.parametrize(
    ("length", "num_blocks", "said"),
    [
        (64, 32, "the prompt has 64 tokens and max_model_len is 64; shorten it to 63"),
        (60, 15, "needs 16 cache blocks of 4 tokens, 15 exist"),
        (61, 8, "needs 16 cache blocks of 4 tokens, 8 exist"),
    ],
)
def test_what_can_never_fit_ends_at_the_door_with_one_empty_output(length, num_blocks, said):
    harness = Harness(num_blocks=num_blocks)
    request_id = harness.add(range(length))
    assert not harness.scheduler.num_waiting and not harness.scheduler.cache.pool.num_used
    assert harness.scheduler.has_unfinished(), "the final event is still to be handed over"
    [event] = harness.scheduler.commit(None)
    assert (event.request_id, event.token_ids) == (request_id, ())
    assert event.finish.reason is FinishReason.PROMPT_TOO_LONG and said in event.finish.detail
    assert not harness.scheduler.has_unfinished() and harness.scheduler.schedule().is_empty


@pytest.mark.covers("D19", "D37")
def test_each_choice_of_a_refused_request_ends_once():
    harness = Harness()
    request_id = harness.add(range(64), n=3)
    harness.run().check_idle()
    assert [harness.record(request_id, choice).reason for choice in range(3)] == [FinishReason.PROMPT_TOO_LONG] * 3


@pytest.mark.covers("D19")
def test_a_prompt_that_leaves_room_for_one_token_and_just_fits_the_pool_runs():
    harness = Harness(num_blocks=16, max_num_batched_tokens=64)
    harness.add(range(1, 64), max_tokens=9, ignore_eos=True)
    harness.run().check_idle()
    harness.check_as_alone()
    assert len(harness.record(1).token_ids) == 1


@pytest.mark.covers("D19")
def test_a_prompt_that_is_only_scored_needs_no_room_for_a_token():
    harness = Harness(num_blocks=16)
    harness.add(range(64), max_tokens=0, prompt_logprobs=0)
    harness.add(range(64), pooling="last")
    harness.run().check_idle()
    assert [record.reason for record in harness.records.values()] == [FinishReason.LENGTH_CAPPED] * 2


@pytest.mark.covers("D19")
def test_a_preempted_sequence_of_max_model_len_less_one_is_not_taken_for_a_long_prompt():
    harness = Harness(num_blocks=29, block_size=1, max_model_len=16)
    for first_id in (1, 11):
        harness.add([first_id, 2, 3, 4, 5, 6, 7, 8], max_tokens=99, ignore_eos=True)
    harness.steps(8)
    victim = harness.sequence(2)
    assert (victim.status, len(victim.tokens), victim.num_preemptions) == (Status.WAITING, 15, 1)
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T2")
def test_a_media_item_larger_than_a_step_is_refused():
    harness = Harness()
    request_id = harness.add(range(40), spans=(MediaSpan(2, 33, "handle", "digest", atomic=True),))
    harness.run()
    assert harness.record(request_id).reason is FinishReason.PROMPT_TOO_LONG
    assert "takes 33 tokens in one step and max_num_batched_tokens is 32" in harness.record(request_id).finish.detail


@pytest.mark.covers("T1", "E11")
def test_equal_client_ids_are_two_requests_and_an_internal_id_is_never_used_twice():
    scheduler = Scheduler(CONFIG, CacheLayout(9, 4))
    for request_id in (1, 2):
        scheduler.add(Request(request_id, "same", (1, 2, 3), Sampling(max_tokens=1)))
    assert scheduler.num_waiting == 2
    with pytest.raises(AssertionError, match="request 2 exists"):
        scheduler.add(Request(2, "other", (1, 2, 3), Sampling(max_tokens=1)))
    assert scheduler.num_waiting == 2 and scheduler.stats().accepted == 2
    events = scheduler.commit(answer(scheduler.schedule()))
    assert sorted(event.request_id for event in events) == [1, 2]
