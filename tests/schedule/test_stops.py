"""How a sequence ends by itself: the order of the tests for an end, and what follows it is dropped."""

from dataclasses import replace
from typing import Any

import pytest
from tests.schedule.harness import CONFIG

from headrace.schedule.invariants import check, check_idle
from headrace.schedule.scheduler import Scheduler
from headrace.words.outputs import Finish, FinishReason, TokenLogprobs
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, RowResult, StepResult, TokenEvent

EOS, OTHER_EOS = 2, 7
STOPPED, LENGTH = FinishReason.STOPPED, FinishReason.LENGTH_CAPPED


class WordMatcher:
    """Stop strings over a toy text: tokens are words of letters, the earliest completing match wins."""

    WORDS = {10: "E", 11: "ND", 12: "x", 13: "yEN", 14: "D!"}

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.text = ""

    def push(self, token_id: int, active: bool) -> str | None:
        self.text += self.WORDS.get(token_id, "?")
        found = [stop for stop in self.stops if stop in self.text] if active else []
        return min(found, key=lambda stop: self.text.index(stop) + len(stop), default=None)


def watch(request: Request) -> WordMatcher | None:
    return WordMatcher(request.sampling.stop) if request.sampling.stop else None


def play(*draws: tuple[int, ...], prompt: int = 3, config: dict[str, Any] | None = None, **sampling: Any) -> TokenEvent:
    """One sequence whose steps give `draws` (accepted drafts, then the drawn token); all its tokens, and its end."""
    limits = {"eos_token_ids": frozenset({EOS, OTHER_EOS})} | (config or {})
    scheduler = Scheduler(replace(CONFIG, **limits), CacheLayout(33, 4), make_matcher=watch)
    scheduler.add(Request(1, "r", tuple(range(20, 20 + prompt)), Sampling(**({"max_tokens": 50} | sampling))))
    token_ids, logprobs = (), ()
    for tokens in draws:
        plan = scheduler.schedule()
        [segment] = plan.segments
        entries = tuple(TokenLogprobs((token,), (-1.0,), 1) for token in tokens)
        row = RowResult(segment.seq_id, segment.epoch, tokens, entries, num_accepted=len(tokens) - 1)
        [event] = scheduler.commit(StepResult(plan.step, (row,)))
        check(scheduler)
        token_ids, logprobs = token_ids + event.token_ids, logprobs + event.logprobs
    if event.finish is not None:
        check_idle(scheduler)
        assert scheduler.schedule().is_empty and not scheduler.commit(None), "I21: nothing after the last event"
    return event._replace(token_ids=token_ids, logprobs=logprobs)


@pytest.mark.covers("D20", "T13", "T14", "I18")
def test_what_follows_a_stop_among_accepted_drafts_is_dropped_with_its_logprobs():
    end = play((8,), (5, EOS, 9), config={"num_drafts": 2})
    assert end.token_ids == (8, 5, EOS) and end.finish == Finish(STOPPED)
    assert [entry.token_ids for entry in end.logprobs] == [(8,), (5,), (EOS,)]


@pytest.mark.covers("D20", "T13")
def test_accepted_drafts_and_the_drawn_token_are_all_taken_when_nothing_ends():
    end = play((8,), (5, 6, 9), (4,), config={"num_drafts": 2})
    assert end.token_ids == (8, 5, 6, 9, 4) and end.finish is None


@pytest.mark.covers("D21", "T14", "E2")
def test_the_end_of_sequence_on_the_last_allowed_token_is_a_stop():
    assert play((5,), (6,), (EOS,), max_tokens=3).finish == Finish(STOPPED)


@pytest.mark.covers("D21", "M8", "T15")
def test_an_ignored_end_of_sequence_leaves_the_length():
    end = play((EOS,), (EOS,), (EOS,), max_tokens=3, ignore_eos=True)
    assert end.token_ids == (EOS, EOS, EOS)
    assert end.finish == Finish(LENGTH, None, "max_tokens (3) reached")


@pytest.mark.covers("D22", "T15", "E1")
def test_with_max_model_len_8_and_a_prompt_of_5_there_are_three_outputs():
    end = play((1,), (3,), (4,), prompt=5, config={"max_model_len": 8})
    assert end.finish == Finish(LENGTH, None, "max_model_len (8) reached")


@pytest.mark.covers("D22", "T15")
def test_the_context_limit_also_cuts_accepted_drafts():
    end = play((1,), (3, 4), prompt=5, config={"max_model_len": 8, "num_drafts": 3})
    assert end.token_ids == (1, 3, 4) and end.finish.reason is LENGTH


@pytest.mark.covers("D21", "M8")
def test_where_both_limits_fall_together_max_tokens_is_named():
    end = play((1,), (3,), prompt=5, max_tokens=2, config={"max_model_len": 7})
    assert end.finish.detail == "max_tokens (2) reached"


@pytest.mark.covers("D24", "E2")
@pytest.mark.parametrize("eos", [EOS, OTHER_EOS])
def test_each_id_of_the_set_ends_the_sequence(eos):
    end = play((5,), (eos,))
    assert end.token_ids == (5, eos) and end.finish == Finish(STOPPED, None)


@pytest.mark.covers("D25", "T14", "E2")
def test_a_stop_id_ends_the_sequence_and_is_named_even_when_the_end_of_sequence_is_ignored():
    assert play((5,), (9,), stop_token_ids=(4, 9), ignore_eos=True).finish == Finish(STOPPED, 9)
    assert play((5,), (EOS,), stop_token_ids=(EOS,)).finish == Finish(STOPPED, None), "the end of sequence comes first"


@pytest.mark.covers("D25", "T14", "E3")
def test_a_stop_string_across_two_tokens_ends_the_sequence_and_is_named():
    end = play((12,), (10,), (11,), stop=("END",), max_tokens=3)
    assert end.token_ids == (12, 10, 11) and end.finish == Finish(STOPPED, "END")


@pytest.mark.covers("D25", "E3", "D20")
def test_tokens_behind_a_stop_string_are_dropped():
    end = play((12,), (10, 11, 12), stop=("END",), config={"num_drafts": 2})
    assert end.token_ids == (12, 10, 11) and end.finish == Finish(STOPPED, "END")


@pytest.mark.covers("D25", "E3")
def test_until_min_tokens_nothing_stops_but_the_matcher_still_reads_along():
    end = play((EOS,), (9,), (10,), (11,), (5,), stop=("END",), stop_token_ids=(9,), min_tokens=5)
    assert end.token_ids == (EOS, 9, 10, 11, 5) and end.finish == Finish(STOPPED, "END")


@pytest.mark.covers("E3", "D21")
def test_min_tokens_counts_the_token_itself():
    assert play((5,), (EOS,), min_tokens=2).finish == Finish(STOPPED)
    assert play((5,), (EOS,), min_tokens=3).finish is None


@pytest.mark.covers("M8", "D21")
def test_the_end_of_sequence_wins_over_a_stop_string_completed_by_the_same_token():
    assert play((10,), (EOS,), stop=("E?",)).finish == Finish(STOPPED, None)


@pytest.mark.covers("M8", "T15", "6a")
def test_every_count_of_max_tokens_gives_exactly_that_many():
    for count in range(1, 10):
        end = play(*[(5,)] * count, max_tokens=count)
        assert len(end.token_ids) == count and end.finish.reason is LENGTH


@pytest.mark.covers("6a")
def test_the_last_token_is_what_the_next_step_computes():
    scheduler = Scheduler(CONFIG, CacheLayout(33, 4))
    scheduler.add(Request(1, "r", (1, 2, 3), Sampling(max_tokens=9)))
    starts = []
    for token in (5, 6, 8):
        plan = scheduler.schedule()
        [segment] = plan.segments
        starts.append((segment.start, segment.length))
        scheduler.commit(StepResult(plan.step, (RowResult(1, segment.epoch, (token,)),)))
    [seq] = scheduler.live()
    assert starts == [(0, 3), (3, 1), (4, 1)] and seq.tokens == [1, 2, 3, 5, 6, 8]


@pytest.mark.covers("T24")
def test_a_worker_that_forgets_a_row_ends_only_that_request():
    scheduler = Scheduler(CONFIG, CacheLayout(33, 4))
    for request_id in (1, 2):
        scheduler.add(Request(request_id, "r", (1, 2, request_id), Sampling(max_tokens=2)))
    plan = scheduler.schedule()
    events = scheduler.commit(StepResult(plan.step, (RowResult(2, 0, (5,)),)))
    assert [(event.request_id, event.finish and event.finish.reason) for event in events] == [
        (1, FinishReason.FAILED),
        (2, None),
    ]
    check(scheduler)
