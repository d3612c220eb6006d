"""The order of the loop's four calls: seeded scenarios, run in step and overlapped, against what each request gives
alone."""

from __future__ import annotations

import logging
import os
from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.schedule.harness import Harness, Record, expected

from headrace.schedule.invariants import check
from headrace.words.outputs import FinishReason
from headrace.words.params import MediaSpan

SCENARIOS = max(600, int(os.environ.get("HEADRACE_FUZZ_EVENTS", "0")) // 100)
SHARED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)


def make_config(random: Random) -> dict[str, Any]:
    """Pools in which almost everybody is in somebody's way."""
    return {
        "num_blocks": random.randint(6, 10),
        "block_size": random.choice([2, 4]),
        "max_num_seqs": random.randint(3, 5),
        "max_num_batched_tokens": random.randint(5, 16),
        "max_model_len": random.choice([15, 24, 40]),
        "prefill_policy": random.choice(["mixed", "mixed", "first", "attempt"]),
        "scheduling_policy": random.choice(["fcfs", "priority", "fair"]),
        "victim_policy": random.choice(["latest", "most_output"]),
        "num_drafts": random.choice([0, 0, 0, 3]),
        "ordered": random.random() < 0.8,
    }


def make_request(random: Random) -> dict[str, Any]:
    own = tuple(random.randint(1, 12) for _ in range(random.randint(1, 4)))
    prompt = SHARED[: random.randint(0, len(SHARED))] + own
    request = {
        "prompt": prompt,
        "max_tokens": random.choice([1, 9, 16, 20]),
        "n": random.choice([1, 1, 1, 2]),
        "seed": random.randint(0, 2),
        "ignore_eos": random.random() < 0.7,
        "stop_token_ids": random.choice([(), (), (5,)]),
        "priority": random.choice([0, 0, 1]),
        "user": random.choice("ab"),
    }
    if random.random() < 0.2 and len(prompt) > 3:
        request["spans"] = (MediaSpan(1, random.randint(2, min(5, len(prompt) - 1)), "handle", "same", atomic=True),)
    return request


def play(seed: int, overlap: bool) -> Harness:
    """One scenario: requests come and some are aborted while others run; the same events in either order."""
    random = Random(seed)
    harness = Harness(overlap=overlap, **make_config(random))
    for _ in range(random.randint(4, 9)):
        request = make_request(random)
        request_id = harness.add(request.pop("prompt"), **request)
        harness.steps(random.randint(0, 4))
        if random.random() < 0.25:
            harness.scheduler.abort(random.randint(1, request_id))
        harness.device.fail_forward = random.random() < 0.03
        harness.step()
        harness.device.fail_forward = False
        check(harness.scheduler)
    for turn in range(2_000):
        if not harness.scheduler.has_unfinished() and not harness.scheduler.in_flight:
            break
        harness.step()
        if turn % 8 == 0:
            check(harness.scheduler)
    harness.check_idle()
    return harness


def is_as_alone(record: Record, harness: Harness) -> bool:
    """The oracle's tokens and reason, or the first of them where the end came from outside."""
    tokens, reason = expected(record.request, record.choice, harness.config)
    if record.reason in (FinishReason.STOPPED, FinishReason.LENGTH_CAPPED):
        return (record.token_ids, record.reason) == (tokens, reason)
    return record.token_ids == tokens[: len(record.token_ids)]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.covers("D31", "D34", "T19", "I14", "I19", "I21", "I23", "I24", "I27")
def test_in_step_and_overlapped_everybody_gets_what_he_gets_alone(caplog):
    caplog.set_level(logging.CRITICAL, "headrace")
    seen: Counter[str] = Counter()
    for seed in range(SCENARIOS):
        for overlap in (False, True):
            harness = play(seed, overlap)
            wrong = [key for key, record in harness.records.items() if not is_as_alone(record, harness)]
            assert not wrong, f"scenario {seed}, overlap {overlap}: sequences {wrong}"
            stats = harness.scheduler.stats()
            order = "overlapped" if overlap else "in step"
            seen[f"preemptions {order}"] += stats.preemptions
            seen[f"hits {order}"] += stats.cached_tokens
            seen[f"aborts {order}"] += stats.finished[FinishReason.ABORTED]
            seen[f"failed steps {order}"] += stats.failed_steps
            seen[f"void segments {order}"] += stats.stale_segments
    for order in ("in step", "overlapped"):
        assert seen[f"preemptions {order}"] > SCENARIOS, seen
        assert seen[f"hits {order}"] > SCENARIOS and seen[f"aborts {order}"] > SCENARIOS / 4, seen
        assert seen[f"failed steps {order}"] > SCENARIOS / 50, seen
    assert seen["void segments overlapped"] > SCENARIOS and seen["void segments in step"] == 0, seen


@pytest.mark.covers("I24", "D29")
def test_a_scenario_is_the_same_each_time_it_is_played():
    first, second = play(7, True), play(7, True)
    assert first.plans == second.plans
