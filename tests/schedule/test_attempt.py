"""The attempt policy: prefill only at attempt points, and how long it can be put off at most."""

from typing import Any

import pytest
from tests.schedule.harness import Harness

from headrace.words.config import EngineConfig, SchedulerConfig


def under_load(num_decodes: int = 8, **config: Any) -> Harness:
    """A harness with that many sequences decoding on and on."""
    options = {"num_blocks": 800, "block_size": 16, "max_num_seqs": 80, "max_num_batched_tokens": 1_024}
    harness = Harness(prefill_policy="attempt", max_model_len=1_024, **(options | config))
    for i in range(num_decodes):
        harness.add([i % 13, i // 13, 1], max_tokens=200, ignore_eos=True)
    harness.step()
    assert harness.scheduler.num_running == num_decodes
    return harness


def steps_until_admitted(harness: Harness, step_s: float = 0.0, limit: int = 50) -> int:
    """Steps that pass without the waiting request, each of them `step_s` seconds long."""
    for delay in range(limit):
        if harness.step().admissions:
            return delay
        harness.clock.now += step_s
    raise AssertionError(f"nobody was admitted in {limit} steps")


@pytest.mark.covers("D15", "I15", "E10")
def test_beside_64_decodes_an_arrival_waits_eight_steps_and_not_one_more():
    harness = under_load(64)
    harness.add([5, 6, 7], ignore_eos=True)
    assert steps_until_admitted(harness) == 8


@pytest.mark.covers("I15")
@pytest.mark.parametrize("max_steps", [1, 3, 8])
def test_the_bound_in_steps_is_what_the_configuration_says(max_steps):
    harness = under_load(attempt_max_steps=max_steps)
    harness.clock.now += 10  # a long time without anybody waiting is no wait
    harness.steps(20)
    harness.add([5, 6, 7], ignore_eos=True)
    assert steps_until_admitted(harness) == max_steps


@pytest.mark.covers("I15", "D15")
@pytest.mark.parametrize(("step_s", "delay"), [(0.024, 3), (0.025, 2), (0.05, 1), (0.001, 8)])
def test_slow_steps_are_bounded_by_fifty_milliseconds(step_s, delay):
    harness = under_load()
    harness.clock.now = 0.0
    harness.add([5, 6, 7], ignore_eos=True)
    assert steps_until_admitted(harness, step_s) == delay


@pytest.mark.covers("I15", "E10")
def test_each_arrival_has_its_own_bound():
    harness = under_load()
    for _ in range(4):
        harness.add([5, 6, 7], max_tokens=200, ignore_eos=True)
        assert steps_until_admitted(harness) == 8


@pytest.mark.covers("I15", "E10")
def test_at_an_attempt_point_everybody_who_fits_is_admitted():
    harness = under_load()
    for i in range(5):
        harness.add([5, 6, i], ignore_eos=True)
    steps_until_admitted(harness)
    assert len(harness.plans[-1].admissions) == 5


@pytest.mark.covers("E10")
def test_prefill_starts_at_once_when_enough_tokens_wait():
    harness = under_load()
    harness.add([i % 13 for i in range(500)], ignore_eos=True)
    assert not harness.step().admissions
    harness.add([i % 11 for i in range(12)], ignore_eos=True)
    assert steps_until_admitted(harness) == 0 and len(harness.plans[-1].admissions) == 2


@pytest.mark.covers("E10")
def test_prefill_starts_at_once_when_nobody_decodes():
    harness = Harness(prefill_policy="attempt")
    harness.add([5, 6, 7])
    assert harness.step().admissions


@pytest.mark.covers("E10")
def test_a_half_computed_prompt_is_not_put_off_again():
    harness = under_load(max_num_batched_tokens=80)
    harness.add([i % 13 for i in range(600)], max_tokens=1, ignore_eos=True)
    plans = harness.steps(9)
    assert [len(plan.segments) for plan in plans] == [9] * 9, "each step has the eight decodes and a chunk"
    assert harness.record(9).finish is not None


@pytest.mark.covers("I15")
def test_a_crowd_that_comes_and_goes_does_not_shorten_the_next_wait():
    harness = under_load()
    request_id = harness.add([5, 6, 7], ignore_eos=True)
    harness.steps(6)
    harness.scheduler.abort(request_id)
    harness.step()
    harness.add([5, 6, 8], ignore_eos=True)
    assert steps_until_admitted(harness) == 8


@pytest.mark.covers("E10", "D15")
def test_mixed_is_the_default_and_attempts_are_bounded_by_8_steps_50_ms_and_512_tokens():
    for config in (EngineConfig(), SchedulerConfig(max_model_len=64)):
        assert config.prefill_policy == "mixed"
        bounds = (config.attempt_max_steps, config.attempt_max_wait_s, config.attempt_target_tokens)
        assert bounds == (8, 0.05, 512)
