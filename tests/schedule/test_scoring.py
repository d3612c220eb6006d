"""Requests about their prompt: log-probabilities and pooled states, in chunks, after preemption, for n choices."""

from typing import Any

import pytest
from tests.schedule.device import score
from tests.schedule.harness import Harness

from headrace.words.outputs import FinishReason
from headrace.words.plan import Emits

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
LENGTH = FinishReason.LENGTH_CAPPED


def scores(harness: Harness, request_id: int, choice: int = 0) -> list[float]:
    return [entry.logprobs[0] for entry in harness.record(request_id, choice).prompt_logprobs]


def wanted(prompt: tuple[int, ...] = PROMPT) -> list[float]:
    """One for each position but the first."""
    return [score(prompt[:i], prompt[i]) for i in range(1, len(prompt))]


def emitted(harness: Harness) -> list[Emits]:
    return [segment.emits for plan in harness.plans for segment in plan.segments]


@pytest.mark.covers("D23", "E7")
@pytest.mark.parametrize("overlap", [False, True])
def test_max_tokens_0_scores_the_prompt_and_ends_by_length_without_a_token(overlap):
    harness = Harness(overlap=overlap)
    harness.add(PROMPT, max_tokens=0, prompt_logprobs=2)
    harness.run().check_idle()
    record = harness.record(1)
    assert (record.token_ids, record.reason) == ([], LENGTH)
    assert scores(harness, 1) == wanted()
    assert emitted(harness) == [Emits.LOGPROBS] and len(record.events) == 1


@pytest.mark.covers("D23")
def test_max_tokens_0_without_scores_still_ends_with_one_event():
    harness = Harness(max_num_batched_tokens=4)
    harness.add(PROMPT, max_tokens=0)
    harness.run().check_idle()
    assert emitted(harness) == [Emits.NOTHING] * 3
    assert len(harness.record(1).events) == 1 and harness.record(1).reason is LENGTH


@pytest.mark.covers("E7", "I24")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [1, 3, 4, 9, 10, 32])
def test_prompt_logprobs_do_not_depend_on_the_chunks(budget, overlap):
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=budget, overlap=overlap)
    harness.add(PROMPT, max_tokens=3, prompt_logprobs=0, ignore_eos=True)
    harness.run().check_idle()
    assert scores(harness, 1) == wanted()
    harness.check_as_alone()


@pytest.mark.covers("E7")
def test_a_chunk_that_begins_at_the_last_prompt_token_has_nothing_left_to_score():
    harness = Harness(max_num_batched_tokens=9)
    harness.add(PROMPT, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    harness.run()
    assert emitted(harness) == [Emits.LOGPROBS, Emits.TOKEN]


@pytest.mark.covers("E7")
def test_a_prompt_of_one_token_has_no_logprobs_and_still_gets_its_output():
    harness = Harness()
    harness.add((7,), max_tokens=2, prompt_logprobs=0, ignore_eos=True)
    harness.run().check_idle()
    assert scores(harness, 1) == [] and len(harness.record(1).token_ids) == 2


def preempting(**options: Any) -> Harness:
    """Request 2, with these options and a prompt of ten, is preempted by request 1 before it ends."""
    harness = Harness(num_blocks=20, block_size=1, max_num_batched_tokens=5, enable_prefix_caching=False)
    harness.add((11, 12, 11), max_tokens=16, ignore_eos=True)
    harness.steps(5)
    harness.add(PROMPT, **({"max_tokens": 6, "ignore_eos": True} | options))
    return harness


@pytest.mark.covers("E7", "D29")
def test_after_a_preemption_no_score_is_told_twice():
    harness = preempting(prompt_logprobs=0)
    harness.run().check_idle()
    assert harness.record(2).events[-1].num_preemptions == 1
    assert scores(harness, 2) == wanted()
    harness.check_as_alone()


@pytest.mark.covers("E7", "D29", "D17")
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_half_scored_and_a_half_pooled_prompt_begin_again_and_come_out_right(pooling):
    for options in ({"max_tokens": 0, "prompt_logprobs": 0}, {"pooling": pooling}):
        harness = preempting(**options)
        victim = harness.sequence(2)
        harness.steps(1)
        assert 0 < victim.num_computed < len(PROMPT)
        harness.scheduler.roster.send_back(victim, "test")
        harness.run().check_idle()
        if "pooling" in options:
            total = sum(PROMPT)
            assert harness.record(2).events[-1].hidden == (total if pooling == "last" else total / 10,)
        else:
            assert scores(harness, 2) == wanted()


@pytest.mark.covers("E7", "D1")
def test_each_of_n_choices_scores_the_prompt_for_itself():
    harness = Harness(max_num_batched_tokens=7)
    harness.add(PROMPT, n=3, max_tokens=4, prompt_logprobs=0, ignore_eos=True)
    harness.run().check_idle()
    for choice in range(3):
        assert scores(harness, 1, choice) == wanted()
        assert harness.record(1, choice).events[-1].num_cached_tokens == 0
    harness.check_as_alone()


@pytest.mark.covers("D23", "D36")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [1, 4, 32])
@pytest.mark.parametrize(("pooling", "value"), [("last", 55.0), ("mean", 5.5)])
def test_a_pooled_state_comes_once_with_the_end_whatever_the_chunks(pooling, value, budget, overlap):
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=budget, overlap=overlap)
    harness.add(PROMPT, pooling=pooling)
    harness.run().check_idle()
    [event] = harness.record(1).events
    assert event.hidden == (value,) and event.token_ids == () and event.finish == (LENGTH, None, None)


@pytest.mark.covers("E8")
def test_only_the_last_state_may_come_from_behind_a_cached_prefix():
    harness = Harness()
    for pooling in ("last", "last", "mean"):
        harness.add(PROMPT, pooling=pooling)
        harness.run()
    assert [harness.record(i).events[-1].num_cached_tokens for i in (1, 2, 3)] == [0, 8, 0]
    assert [harness.record(i).events[-1].hidden for i in (1, 2, 3)] == [(55.0,), (55.0,), (5.5,)]


@pytest.mark.covers("I29", "E7")
def test_logprobs_stay_with_their_tokens_when_steps_are_voided():
    harness = Harness(num_blocks=8, overlap=True)
    for i in range(3):
        harness.add([i, 2, 3, 4, 5], max_tokens=9, logprobs=0, ignore_eos=True)
    harness.run().check_idle()
    assert harness.scheduler.stats().stale_segments > 0
    for record in harness.records.values():
        history = list(record.request.prompt_ids)
        for token, entry in zip(record.token_ids, record.logprobs, strict=True):
            assert entry.logprobs == (score(history, token),)
            history.append(token)
