"""Stepping by hand: the shape of a step, ids that clients choose, aborts, numbers and the timeline."""

import math

import pytest
from tests.engine import fakes
from tests.engine.fakes import Clock, FakeExecutor

from headrace.engine.llm_engine import LLMEngine
from headrace.engine.metrics import Window, nearest_rank
from headrace.engine.timeline import render
from headrace.words.errors import EngineDeadError
from headrace.words.outputs import FinishReason
from headrace.words.params import PoolingParams, SamplingParams


def driven(executor=None, **options) -> LLMEngine:
    return LLMEngine(fakes.engine(executor, **options))


def drain(engine: LLMEngine, max_steps: int = 200) -> list:
    outputs = []
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            return outputs
        outputs += engine.step()
    raise AssertionError("the requests do not end")


@pytest.mark.covers("M10")
@pytest.mark.parametrize("others", [{}, {"async_scheduling": True}])
def test_a_step_with_nothing_to_do_is_an_empty_list_like_any_other(others):
    engine = driven(others=others)
    assert engine.step() == [] and not engine.has_unfinished_requests()
    engine.add_request("a", "hi", SamplingParams(max_tokens=1))
    assert [type(engine.step()) for _ in range(3)] == [list] * 3
    assert engine.step() == []


@pytest.mark.covers("D35", "D36")
def test_outputs_grow_token_by_token_and_exactly_one_is_finished():
    engine = driven()
    engine.add_request("a", "hi", SamplingParams(max_tokens=3))
    outputs = drain(engine)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 2, 3]
    assert [o.finished for o in outputs] == [False, False, True]


@pytest.mark.covers("E11")
def test_requests_of_one_name_do_not_mix_and_an_abort_ends_them_all():
    engine = driven()
    for prompt in ("hello", "world"):
        engine.add_request("same", prompt, SamplingParams(max_tokens=30, temperature=0))
    engine.add_request("other", "hello", SamplingParams(max_tokens=3))
    first = engine.step()
    assert [o.prompt for o in first if o.request_id == "same"] == ["hello", "world"]
    engine.abort_request("same")
    engine.abort_request("same")
    engine.abort_request("never heard of")
    outputs = drain(engine)
    ends = [(o.request_id, o.outputs[0].finish_reason) for o in outputs if o.finished]
    assert sorted(ends) == [("other", "length"), ("same", "abort"), ("same", "abort")]


@pytest.mark.covers("D38", "T21")
@pytest.mark.parametrize("others", [{}, {"async_scheduling": True}], ids=["in order", "overlap"])
@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_an_abort_gives_one_final_output_with_the_tokens_so_far(others, num_steps):
    engine = driven(others=others)
    engine.add_request("a", "hello", SamplingParams(max_tokens=30, temperature=0))
    before = [o for _ in range(num_steps) for o in engine.step()]
    told = before[-1].outputs[0].token_ids if before else []
    engine.abort_request("a")
    (final,) = drain(engine)
    assert final.finished and final.outputs[0].finish_reason == "abort"
    assert final.outputs[0].token_ids == told
    engine.abort_request("a")
    assert engine.step() == []


@pytest.mark.covers("D6")
def test_queue_time_and_time_to_first_token_are_measured_from_the_callers_times():
    clock = Clock()
    executor = FakeExecutor(on_sample=lambda plan: setattr(clock, "now_s", clock.now_s + 0.2))
    engine = driven(executor, others={"clock": clock})
    engine.add_request("a", "hi", SamplingParams(max_tokens=1), arrival_time=999.0)
    clock.now_s += 0.05
    (output,) = engine.step()
    times = output.metrics
    assert (times.arrival_s, times.enqueued_s) == (999.0, 1_000.0)
    assert times.queue_time_s == pytest.approx(0.05)
    assert times.time_to_first_token_s == pytest.approx(1.25)


@pytest.mark.covers("M11")
def test_a_prefix_hit_counts_only_the_tokens_computed():
    engine = driven()
    for name in "ab":
        engine.add_request(name, [*b"a prompt of 21 tokens"], SamplingParams(max_tokens=1))
        drain(engine)
    metrics = engine.get_metrics()
    assert metrics.num_cached_tokens == 20 == metrics.num_prefix_hits
    assert metrics.num_computed_prompt_tokens == 21 + 1 and metrics.num_prompt_tokens == 42
    assert metrics.prefix_hit_rate == pytest.approx(20 / 42)


@pytest.mark.covers("I30", "M34", "D40")
def test_reasons_sum_to_the_requests_and_every_number_is_finite():
    engine = driven()
    empty = engine.get_metrics()
    engine.add_request("a", "hello", SamplingParams(max_tokens=9))
    engine.add_request("b", "x" * 99, SamplingParams())
    engine.add_request("c", "hello", PoolingParams())
    engine.add_request("d", "hello", SamplingParams(n=2, max_tokens=30))
    engine.step()
    engine.abort_request("d")
    drain(engine)
    metrics = engine.get_metrics()
    reasons = metrics.num_finished
    assert set(reasons) == {reason.value for reason in FinishReason}
    assert sum(reasons.values()) == metrics.num_accepted == 5
    assert (reasons["abort"], reasons["prompt_length_exceeded"]) == (2, 1)
    assert metrics.num_prompt_tokens + metrics.num_recomputed_tokens == (
        metrics.num_computed_prompt_tokens + metrics.num_cached_tokens
    )
    for snapshot in (empty, metrics):
        assert math.isfinite(snapshot.prefix_hit_rate) and math.isfinite(snapshot.prefill_savings)
        assert math.isfinite(snapshot.input_tokens_per_s) and math.isfinite(snapshot.output_tokens_per_s)
    times = metrics.time_to_first_token_s
    assert times.count == 2 and 0 < times.p50 <= times.p90 <= times.p99


def test_percentiles_are_values_that_were_measured():
    window = Window()
    for value in [None, *range(1, 101)]:
        window.add(value)
    read = window.read()
    assert (read.count, read.mean, read.p50, read.p90, read.p99) == (100, 50.5, 50, 90, 99)
    assert nearest_rank([7.0], 0.99) == 7.0


def test_the_timeline_can_be_read():
    engine = driven(num_blocks=7)
    for i in range(4):
        engine.add_request(str(i), [*b"hello"], SamplingParams(max_tokens=9, seed=i, n=2 if i == 3 else 1))
    finals = {o.request_id: o for o in drain(engine) if o.finished}
    text = render(finals["3"])
    assert text.startswith("request 3: 5 prompt tokens")
    assert "choice 1" in text and "new → waiting" in text and "waiting → running" in text
    assert "schedule: preempted" in text and "preempted 1 times and recomputed" in text or "running → waiting" in text
    assert "ended: length" in text and "seed 3" in text and "s to the first token" in text


def test_the_timeline_of_a_vector_can_be_read():
    engine = driven()
    engine.add_request("v", "hello", PoolingParams())
    (output,) = drain(engine)
    assert render(output).splitlines()[-1] == "  ended: length"


@pytest.mark.parametrize("others", [{}, {"async_scheduling": True}], ids=["in order", "overlap"])
def test_interrupted_steps_cost_no_request_anything(others):
    def on_forward(plan):
        if plan.step in (2, 3, 5):
            raise KeyboardInterrupt

    calm, interrupted = driven(others=others), driven(FakeExecutor(on_forward=on_forward), others=others)
    finals, num_interrupts = [], 0
    for engine in (calm, interrupted):
        engine.add_request("a", "hi", SamplingParams(max_tokens=6, seed=1))
        while engine.has_unfinished_requests():
            try:
                finals += [output for output in engine.step() if output.finished]
            except KeyboardInterrupt:
                num_interrupts += 1
    assert num_interrupts == 3
    assert [final.outputs[0].finish_reason for final in finals] == ["length", "length"]
    assert finals[0].outputs[0].token_ids == finals[1].outputs[0].token_ids


def test_a_broken_engine_says_so_with_its_cause_ever_after():
    engine = driven()
    engine.engine.core.scheduler.schedule = lambda: 1 // 0
    engine.add_request("a", "hi", SamplingParams())
    with pytest.raises(EngineDeadError, match="the engine stopped: ZeroDivisionError: .*zero"):
        engine.step()
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        engine.add_request("b", "hi", SamplingParams())
    assert not engine.has_unfinished_requests()
