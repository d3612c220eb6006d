"""Every reason why a request can end is reached by a real run, with its string and a detail where more can be said."""

import pytest
from tests.engine import fakes
from tests.engine.fakes import Clock, FakeExecutor

from headrace.engine.llm_engine import LLMEngine
from headrace.words.inbox import Add, GateFailed
from headrace.words.outputs import FinishReason
from headrace.words.params import Request, Sampling, SamplingParams


def drain(engine: LLMEngine) -> dict[str, object]:
    finals = {}
    for _ in range(200):
        if not engine.has_unfinished_requests():
            return finals
        finals |= {output.request_id: output for output in engine.step() if output.finished}
    raise AssertionError("the requests do not end")


def one(executor=None, prompt="hello", params=None, act=lambda engine: None, **options):
    """The end of one request; `act` happens after its first step."""
    engine = LLMEngine(fakes.engine(executor, **options))
    engine.add_request("it", prompt, params or SamplingParams(max_tokens=30, ignore_eos=True))
    finals = {output.request_id: output for output in engine.step() if output.finished}
    act(engine)
    return (finals | drain(engine))["it"]


def gated(gate: str):
    """A request whose gate fails."""
    engine = LLMEngine(fakes.engine())
    request = Request(99, "it", (65,), sampling=Sampling(), gates=(gate,))
    engine.engine.outputs.add(request)
    engine.engine.core.put(Add(request))
    engine.engine.core.put(GateFailed(99, gate, "cannot be had"))
    return drain(engine)["it"]


def out_of_blocks():
    engine = LLMEngine(fakes.engine(num_blocks=5, preemption_policy="stop"))
    for name in ("first", "it"):
        engine.add_request(name, "abc", SamplingParams(max_tokens=12, ignore_eos=True))
    return drain(engine)["it"]


def too_late():
    clock = Clock()

    def wait(engine):
        clock.now_s += 10

    return one(act=wait, others={"request_timeout_s": 5.0, "clock": clock})


def never_runs(plan):
    raise ValueError("broken")


RUNS = {
    FinishReason.STOPPED: lambda: one(FakeExecutor(lambda history, admission: fakes.EOS), params=SamplingParams()),
    FinishReason.LENGTH_CAPPED: lambda: one(),
    FinishReason.ABORTED: lambda: one(act=lambda engine: engine.abort_request("it")),
    FinishReason.PROMPT_TOO_LONG: lambda: one(prompt=[65] * 64),
    FinishReason.PREEMPTED: out_of_blocks,
    FinishReason.MEDIA_FAILED: lambda: gated("image:1"),
    FinishReason.GRAMMAR_FAILED: lambda: gated("grammar:1"),
    FinishReason.TIMED_OUT: too_late,
    FinishReason.FAILED: lambda: one(FakeExecutor(on_forward=never_runs)),
}
SILENT = {FinishReason.STOPPED, FinishReason.ABORTED}
"""Ends of which the reason says everything."""


@pytest.mark.covers("I21", "D36")
@pytest.mark.parametrize("reason", FinishReason)
def test_the_reason_is_reached_and_told(reason):
    output = RUNS[reason]()
    assert output.finished and output.outputs[0].finish_reason == reason.value
    assert bool(output.finish_detail) == (reason not in SILENT)
    assert output.timeline[-1].target == "finished" and output.timeline[0].source is None


@pytest.mark.covers("D28")
def test_a_sequence_that_stops_for_want_of_blocks_keeps_its_tokens():
    output = out_of_blocks()
    assert output.outputs[0].finish_reason == "insufficient_system_resource"
    assert 0 < len(output.outputs[0].token_ids) < 12
