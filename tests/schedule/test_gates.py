"""Gates: a request waits for an image or a grammar in no queue, so nobody waits behind it."""

import time

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.scheduler import Scheduler
from headrace.schedule.sequence import Status
from headrace.words.config import SchedulerConfig
from headrace.words.outputs import FinishReason
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout

IMAGE, GRAMMAR = "image:0", "grammar"


@pytest.mark.covers("T3", "T5")
def test_the_last_gate_lets_a_request_wait_and_opening_one_again_changes_nothing():
    harness = Harness()
    scheduler, request_id = harness.scheduler, harness.add([1, 2, 3], gates=(IMAGE, GRAMMAR))
    assert (scheduler.num_blocked, scheduler.num_waiting) == (1, 0)
    assert scheduler.gate_ready(request_id, IMAGE) and not scheduler.gate_ready(request_id, IMAGE)
    assert (scheduler.num_blocked, scheduler.num_waiting) == (1, 0)
    assert scheduler.gate_ready(request_id, GRAMMAR) and not scheduler.gate_ready(request_id, GRAMMAR)
    assert (scheduler.num_blocked, scheduler.num_waiting) == (0, 1)
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T3", "T5", "D14")
def test_a_request_that_becomes_ready_takes_the_place_of_its_arrival():
    harness = Harness(max_num_seqs=1)
    early = harness.add([1, 2, 3], gates=(IMAGE,))
    later = [harness.add([4, 5, i]) for i in range(3)]
    harness.scheduler.gate_ready(early, IMAGE)
    harness.run()
    admitted = [admission.seq_id for plan in harness.plans for admission in plan.admissions]
    assert admitted == [early, *later]


@pytest.mark.covers("D14")
def test_text_passes_an_image_that_takes_ten_seconds_and_the_image_is_not_starved_once_ready():
    harness = Harness(max_num_seqs=2)
    image, text = harness.add([1, 2, 3], gates=(IMAGE,)), harness.add([4, 5, 6], ignore_eos=True)
    harness.step()
    assert harness.record(text).token_ids, "the text waited behind the image"
    harness.clock.now += 10
    harness.scheduler.gate_ready(image, IMAGE)
    harness.add([7, 8, 9])
    harness.step()
    assert harness.record(image).token_ids, "the image waited behind the text"


@pytest.mark.covers("D9")
def test_a_worker_that_answers_at_once_never_loses_the_ready_event():
    harness = Harness()
    for i in range(50):
        request_id = harness.add([1, 2, i % 13], gates=(IMAGE,))
        assert harness.scheduler.gate_ready(request_id, IMAGE), "the request was not found"
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("D13")
def test_fifty_thousand_ready_events_among_fifty_thousand_waiting_take_less_than_a_second():
    scheduler = Scheduler(SchedulerConfig(max_model_len=64), CacheLayout(65, 16))
    for request_id in range(50_000):
        scheduler.add(Request(request_id, "text", (1, 2, 3), Sampling(max_tokens=1)))
    for request_id in range(50_000, 100_000):
        scheduler.add(Request(request_id, "image", (1, 2, 3), Sampling(max_tokens=1), gates=(IMAGE,)))
    start = time.process_time()
    opened = sum(scheduler.gate_ready(request_id, IMAGE) for request_id in range(50_000, 100_000))
    assert time.process_time() - start < 1.0
    assert opened == 50_000 and not scheduler.gate_ready(10**9, IMAGE)
    assert (scheduler.num_blocked, scheduler.num_waiting) == (0, 100_000)


@pytest.mark.covers("D5", "T6")
@pytest.mark.parametrize(
    ("gate", "reason"), [(IMAGE, FinishReason.MEDIA_FAILED), (GRAMMAR, FinishReason.GRAMMAR_FAILED)]
)
def test_a_failed_gate_ends_its_request_before_any_queue_and_disturbs_nobody(gate, reason):
    harness = Harness()
    bad, good = harness.add([1, 2, 3], gates=(gate,)), harness.add([4, 5, 6])
    assert harness.scheduler.gate_fail(bad, gate, "not decodable")
    assert harness.scheduler.num_blocked == 0 and harness.scheduler.num_waiting == 1
    harness.run().check_idle()
    record = harness.record(bad)
    assert len(record.events) == 1 and record.token_ids == []
    assert (record.finish.reason, record.finish.detail) == (reason, "not decodable")
    assert harness.record(good).reason in (FinishReason.STOPPED, FinishReason.LENGTH_CAPPED)


@pytest.mark.covers("T6", "T25", "I22")
def test_a_result_that_comes_late_is_void_and_says_so():
    harness = Harness()
    failed, aborted = harness.add([1], gates=(IMAGE, GRAMMAR)), harness.add([2], gates=(IMAGE,))
    harness.scheduler.gate_fail(failed, IMAGE, "broken")
    harness.scheduler.abort(aborted)
    for request_id in (failed, aborted, 99):
        for gate in (IMAGE, GRAMMAR):
            assert not harness.scheduler.gate_ready(request_id, gate)
            assert not harness.scheduler.gate_fail(request_id, gate, "late")
    harness.run().check_idle()
    assert [harness.record(r).reason for r in (failed, aborted)] == [FinishReason.MEDIA_FAILED, FinishReason.ABORTED]


@pytest.mark.covers("T6")
def test_the_caller_may_name_the_reason_of_a_failed_gate():
    harness = Harness()
    request_id = harness.add([1, 2], gates=(IMAGE,))
    harness.scheduler.gate_fail(request_id, IMAGE, "the worker died", FinishReason.FAILED)
    harness.run()
    assert harness.record(request_id).finish == (FinishReason.FAILED, None, "the worker died")


@pytest.mark.covers("T6", "T22")
@pytest.mark.parametrize(
    ("gate", "reason"), [(IMAGE, FinishReason.MEDIA_FAILED), (GRAMMAR, FinishReason.GRAMMAR_FAILED)]
)
def test_a_gate_that_stays_closed_too_long_ends_the_request_with_the_gates_reason(gate, reason):
    harness = Harness()
    request_id = harness.add([1, 2, 3], gates=(gate,), gate_timeout_s=5.0)
    assert harness.scheduler.next_deadline() == harness.clock.now + 5.0
    harness.clock.now += 4.9
    harness.step()
    assert harness.sequence(request_id).status is Status.BLOCKED
    harness.clock.now += 0.1
    harness.step()
    assert harness.record(request_id).finish == (reason, None, f"{gate} was not ready within 5.0 s")
    harness.check_idle()


@pytest.mark.covers("T5", "T22")
def test_a_gate_that_opened_in_time_has_no_deadline_any_more():
    harness = Harness()
    request_id = harness.add([1, 2, 3], gates=(IMAGE,), gate_timeout_s=5.0)
    harness.scheduler.gate_ready(request_id, IMAGE)
    assert harness.scheduler.next_deadline() is None
    harness.clock.now += 60
    harness.run().check_idle()
    harness.check_as_alone()


@pytest.mark.covers("T5", "D1")
def test_all_choices_of_a_request_pass_a_gate_together():
    harness = Harness()
    request_id = harness.add([1, 2, 3, 4, 5], n=3, gates=(IMAGE,))
    assert harness.scheduler.num_blocked == 3
    harness.scheduler.gate_ready(request_id, IMAGE)
    assert (harness.scheduler.num_blocked, harness.scheduler.num_waiting) == (0, 3)
    harness.run().check_idle()
    harness.check_as_alone()
