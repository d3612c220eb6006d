"""Ends from outside: aborts and deadlines in every state, each with exactly one final event, and nothing afterwards."""

import gc
import weakref

import pytest
from tests.schedule.harness import Harness

from headrace.schedule.invariants import check
from headrace.schedule.sequence import MOVES, Status
from headrace.words.outputs import FinishReason
from headrace.words.plan import Emits

STATES = ("blocked", "waiting", "prefilling", "running", "preempted", "in flight")


def in_state(state: str, **options: object) -> Harness:
    """A harness whose request 2 stands there; request 1 is somebody else, who runs on."""
    harness = Harness(num_blocks=5, max_num_seqs=1 if state == "waiting" else 4, max_num_batched_tokens=4)
    harness.overlap = state == "in flight"
    harness.add([1, 2, 3], max_tokens=16, ignore_eos=True)
    harness.step()
    gates = ("image:0",) if state == "blocked" else ()
    length = 7 if state in ("prefilling", "preempted") else 3
    harness.add(range(5, 5 + length), max_tokens=14, ignore_eos=True, gates=gates, **options)
    harness.steps({"preempted": 11, "in flight": 3}.get(state, 1))
    seq = harness.sequence(2)
    derived = "preempted" if seq.num_preemptions else "in flight" if seq.pending else seq.status.value
    assert ("prefilling" if seq.is_prefilling else derived) == state
    return harness


def finals(harness: Harness, request_id: int) -> int:
    return sum(event.finish is not None for event in harness.record(request_id).events)


@pytest.mark.covers("T21", "D38", "D36", "T25", "I22")
@pytest.mark.parametrize("state", STATES)
def test_an_abort_gives_one_final_event_with_the_tokens_so_far_and_frees_all(state):
    harness = in_state(state)
    held = list(harness.sequence(2).block_ids)
    so_far = list(harness.record(2).token_ids)
    harness.scheduler.abort(2, "the client left")
    harness.scheduler.abort(2)
    check(harness.scheduler)
    refs = harness.scheduler.cache.pool.refs
    assert all(refs[block] == 0 for block in held), "blocks are free at once"
    harness.step()
    assert harness.record(2).finish == (FinishReason.ABORTED, None, "the client left")
    assert harness.record(2).token_ids == so_far and finals(harness, 2) == 1
    harness.run().check_idle()
    assert finals(harness, 2) == 1
    del harness.records[2, 0]
    harness.check_as_alone()


@pytest.mark.covers("T22", "D36")
@pytest.mark.parametrize("state", STATES)
def test_a_deadline_ends_a_request_in_every_state_like_an_abort(state):
    harness = in_state(state, timeout_s=30.0)
    so_far = list(harness.record(2).token_ids)
    harness.clock.now += 29.9
    harness.scheduler.schedule()
    assert 2 in harness.scheduler.roster.requests
    harness.clock.now += 0.1
    harness.scheduler.schedule()
    check(harness.scheduler)
    [event] = [event for event in harness.scheduler.commit(None) if event.finish]
    assert (event.request_id, event.token_ids) == (2, ()) and so_far == harness.record(2).token_ids
    assert event.finish == (FinishReason.TIMED_OUT, None, "took longer than its timeout of 30.0 s")
    assert event.timeline[-1].where == "deadline: total" and event.timeline[-1].target == "finished"


@pytest.mark.covers("T22")
@pytest.mark.parametrize("state", STATES)
def test_the_queue_timeout_ends_only_who_never_ran(state):
    harness = in_state(state, queue_timeout_s=30.0)
    harness.clock.now += 31
    harness.scheduler.schedule()
    ended = [(e.request_id, e.finish.reason) for e in harness.scheduler.commit(None) if e.finish]
    assert ended == ([(2, FinishReason.TIMED_OUT)] if state in ("blocked", "waiting") else [])


@pytest.mark.covers("T22")
def test_the_next_deadline_is_the_earliest_that_still_applies():
    harness = Harness(max_num_seqs=1)
    now = harness.clock.now
    assert harness.scheduler.next_deadline() is None
    harness.add([1, 2, 3], timeout_s=50.0, queue_timeout_s=5.0, max_tokens=30, ignore_eos=True)
    harness.add([4, 5, 6], timeout_s=20.0)
    assert harness.scheduler.next_deadline() == now + 5
    harness.step()
    assert harness.scheduler.next_deadline() == now + 20, "request 1 is out of the queue"
    harness.scheduler.abort(2)
    assert harness.scheduler.next_deadline() == now + 50
    harness.run()
    assert harness.scheduler.next_deadline() is None


@pytest.mark.covers("T22")
def test_two_deadlines_at_the_same_moment_end_a_request_once():
    harness = Harness(max_num_seqs=1)
    for _ in range(2):
        harness.add([1, 2, 3], queue_timeout_s=5.0, timeout_s=5.0, max_tokens=60, ignore_eos=True)
    harness.step()
    harness.clock.now += 5
    harness.step()
    harness.check_idle()
    assert [finals(harness, r) for r in (1, 2)] == [1, 1]
    assert "queue timeout" in harness.record(2).finish.detail


class Watcher:
    """A stop matcher that never stops."""

    def push(self, token_id: int, active: bool) -> str | None:
        return None


@pytest.mark.covers("T22", "T26")
def test_a_finished_sequence_is_not_kept_until_its_deadline_comes():
    harness = Harness(make_matcher=lambda request: Watcher())
    harness.add([1, 2, 3], timeout_s=3_600.0)
    kept = weakref.ref(harness.sequence(1).matcher)
    harness.step()
    harness.scheduler.abort(1)
    harness.step()
    gc.collect()
    assert kept() is None, "an hour of finished requests would be kept"


@pytest.mark.covers("D32", "T21")
def test_a_prompt_in_flight_is_found_by_an_abort_and_its_result_brings_nothing():
    harness = Harness(overlap=True)
    harness.add([1, 2, 3, 4, 5], ignore_eos=True)
    plan = harness.scheduler.schedule()
    assert plan.segments[0].emits is Emits.TOKEN
    harness.device.forward(plan)
    harness.scheduler.abort(1)
    assert harness.scheduler.cache.pool.num_used == 0
    [event] = harness.scheduler.commit(harness.device.sample(plan))
    assert (event.token_ids, event.finish.reason) == ((), FinishReason.ABORTED)
    assert harness.scheduler.stats().stale_segments == 1 and harness.scheduler.commit(None) == []


@pytest.mark.covers("D38", "T25")
def test_an_unknown_id_and_a_second_abort_are_no_error_and_bring_nothing():
    harness = Harness()
    harness.add([1, 2, 3], max_tokens=2, ignore_eos=True)
    harness.run()
    for request_id in (1, 1, 99):
        harness.scheduler.abort(request_id)
    assert harness.scheduler.commit(None) == [] and not harness.scheduler.has_unfinished()
    assert harness.scheduler.stats().finished == {FinishReason.LENGTH_CAPPED: 1}


@pytest.mark.covers("T21", "D36", "D1")
def test_an_abort_ends_every_choice_that_still_lives():
    harness = Harness()
    request_id = harness.add([1, 2, 3], n=3, max_tokens=20)
    harness.steps(6)
    ended = {choice for choice in range(3) if harness.record(request_id, choice).finish}
    assert 0 < len(ended) < 3, "one has stopped by itself, another has not"
    harness.scheduler.abort(request_id)
    harness.run().check_idle()
    for choice in range(3):
        is_aborted = harness.record(request_id, choice).reason is FinishReason.ABORTED
        assert is_aborted == (choice not in ended)


@pytest.mark.covers("T25", "I22")
def test_no_move_leads_out_of_finished_and_every_other_status_can_finish():
    assert MOVES[Status.FINISHED] == frozenset()
    assert all(Status.FINISHED in targets for source, targets in MOVES.items() if source is not Status.FINISHED)
    harness = Harness()
    harness.add([1])
    seq = harness.sequence(1)
    harness.scheduler.abort(1)
    with pytest.raises(AssertionError, match="FINISHED -> Status.WAITING"):
        seq.move(Status.WAITING, harness.clock, "test")


@pytest.mark.covers("T25", "T26", "I19")
def test_a_result_that_comes_twice_changes_nothing_the_second_time():
    harness = Harness()
    harness.add([1, 2, 3], max_tokens=5, ignore_eos=True)
    plan = harness.scheduler.schedule()
    harness.device.forward(plan)
    result = harness.device.sample(plan)
    assert len(harness.scheduler.commit(result)) == 1 and harness.scheduler.commit(result) == []
    assert harness.sequence(1).num_output_tokens == 1 and harness.scheduler.stats().generated_tokens == 1


@pytest.mark.covers("D36", "I21")
def test_the_last_event_tells_the_whole_life():
    harness = in_state("preempted")
    harness.run().check_idle()
    *before, last = harness.record(2).events
    assert all(event.timeline == () and event.finish is None for event in before)
    path = [move.target for move in last.timeline]
    assert path == ["waiting", "running", "waiting", "running", "finished"]
    assert [move.source for move in last.timeline] == [None, *path[:-1]]
    assert all(move.where for move in last.timeline) and last.num_preemptions == 1
