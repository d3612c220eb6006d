"""Each bad input meets eight requests in full run: it gets its typed answer, they get their tokens."""

import math

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.engine.llm_engine import LLMEngine
from headrace.llm import LLM
from headrace.words.errors import RequestError
from headrace.words.params import SamplingParams

NUM_OTHERS = 8
BAD_ID = 399


def others(engine: LLMEngine) -> None:
    for i in range(NUM_OTHERS):
        engine.add_request(f"good {i}", f"prompt number {i}", SamplingParams(max_tokens=12, seed=i))


def run_to_the_end(engine: LLMEngine) -> dict[str, object]:
    finals = {}
    for _ in range(300):
        if not engine.has_unfinished_requests():
            return finals
        finals |= {output.request_id: output for output in engine.step() if output.finished}
    raise AssertionError("the requests do not end")


def tokens(finals: dict) -> dict[str, list[int]]:
    return {name: o.outputs[0].token_ids for name, o in finals.items() if name.startswith("good")}


def undisturbed() -> dict[str, list[int]]:
    engine = LLMEngine(fakes.engine(num_blocks=120))
    others(engine)
    return tokens(run_to_the_end(engine))


EXPECTED = undisturbed()
ORDERS = pytest.mark.parametrize("order", [{}, {"async_scheduling": True}], ids=["in order", "overlap"])


def start(order, executor: FakeExecutor | None = None, **scheduler) -> LLMEngine:
    """Eight requests in their third step."""
    engine = LLMEngine(fakes.engine(executor, num_blocks=120, others=order, max_num_seqs=12, **scheduler))
    others(engine)
    for _ in range(3):
        engine.step()
    assert engine.engine.core.scheduler.num_running == NUM_OTHERS
    return engine


def check_others(engine: LLMEngine) -> dict[str, object]:
    finals = run_to_the_end(engine)
    assert tokens(finals) == EXPECTED
    assert engine.engine.core.scheduler.stats().num_used_blocks == 0
    return finals


REFUSED = {
    "NaN temperature": ("hi", {"temperature": math.nan}, "temperature"),
    "stop_token_ids out of range": ("hi", {"stop_token_ids": [400]}, "stop_token_ids"),
    "n of a milliard": ("hi", {"n": 10**9}, "n"),
    "empty prompt": ("", {}, "prompt"),
    "no ids": ([], {}, "prompt"),
    "foreign id": ([400], {}, "prompt"),
}


@pytest.mark.covers("D3", "T1")
@ORDERS
@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_parameter_or_prompt_raises_at_once_and_queues_nothing(order, case):
    prompt, fields, parameter = REFUSED[case]
    engine = start(order)
    before = engine.get_metrics(), engine.get_num_unfinished_requests()
    with pytest.raises(RequestError) as caught:
        engine.add_request("bad", prompt, SamplingParams(**fields))
    assert caught.value.parameter == parameter and isinstance(caught.value, ValueError)
    assert (engine.get_metrics(), engine.get_num_unfinished_requests()) == before
    assert "bad" not in check_others(engine)


@pytest.mark.covers("D19", "D37", "T2")
@ORDERS
@pytest.mark.parametrize(
    ("prompt", "limits", "numbers"),
    [([65] * 65, {}, ("65", "64")), ([65] * 480, {"max_model_len": 1_000}, ("480", "121", "119"))],
    ids=["over max_model_len", "more blocks than the pool has"],
)
def test_a_prompt_that_never_fits_ends_at_once_with_both_numbers(order, prompt, limits, numbers):
    engine = start(order, **limits)
    engine.add_request("bad", prompt, SamplingParams(max_tokens=4))
    (bad,) = [output for output in engine.step() if output.request_id == "bad"]
    assert bad.finished and bad.outputs[0].finish_reason == "prompt_length_exceeded"
    assert bad.outputs[0].token_ids == [] and bad.outputs[0].text == ""
    assert all(number in bad.finish_detail for number in numbers)
    check_others(engine)


@pytest.mark.covers("T24")
@ORDERS
def test_a_row_with_nan_logits_ends_alone(order):
    executor = FakeExecutor(poison=lambda admission: admission.token_ids[0] == BAD_ID)
    engine = start(order, executor)
    engine.add_request("bad", [BAD_ID, 1], SamplingParams(max_tokens=4))
    bad = check_others(engine)["bad"]
    assert (bad.outputs[0].finish_reason, bad.finish_detail) == ("error", "its logits are not finite")


@pytest.mark.covers("D18", "T23")
@ORDERS
def test_a_forward_that_raises_once_is_invisible(order):
    def on_forward(plan):
        if plan.step == 5:
            raise MemoryError("no memory for a step")

    engine = start(order, FakeExecutor(on_forward=on_forward))
    check_others(engine)
    metrics = engine.get_metrics()
    assert metrics.num_failed_steps == 1 and metrics.num_recomputed_tokens > 0 and metrics.num_preemptions == 0


@pytest.mark.covers("T23", "I23")
@ORDERS
def test_a_request_that_makes_every_forward_raise_ends_alone(order):
    executor = FakeExecutor()
    engine = start(order, executor)
    bad_id = 1 + max(engine.engine.core.scheduler.roster.sequences)

    def on_forward(plan):
        if any(segment.seq_id == bad_id for segment in plan.segments):
            raise ValueError("a row that no kernel can take")

    executor.on_forward = on_forward
    engine.add_request("bad", [BAD_ID, 1], SamplingParams(max_tokens=4))
    bad = check_others(engine)["bad"]
    assert (bad.outputs[0].finish_reason, bad.finish_detail) == ("error", "ValueError: a row that no kernel can take")
    assert engine.get_metrics().num_failed_steps <= 6


@pytest.mark.covers("E12")
def test_offline_a_prompt_that_is_too_long_becomes_an_output_and_loses_nobody():
    prompts = ["hello", "x" * 99, [65] * 64, "bye"]
    outputs = LLM.from_engine(fakes.engine()).generate(prompts, SamplingParams(max_tokens=3), use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs][1:3] == ["prompt_length_exceeded"] * 2
    assert [len(o.outputs[0].token_ids) for o in outputs] == [3, 0, 0, 3]
    assert "99" in outputs[1].finish_detail and "64" in outputs[1].finish_detail


@pytest.mark.covers("E12")
def test_offline_a_prompt_of_too_many_characters_becomes_an_output_too():
    model = LLM.from_engine(fakes.engine())
    outputs = model.generate(["hello", "x" * 4_000_001], SamplingParams(max_tokens=3), use_tqdm=False)
    assert outputs[1].finished and outputs[1].outputs[0].finish_reason == "prompt_length_exceeded"
    assert "4000001" in outputs[1].finish_detail and len(outputs[0].outputs[0].token_ids) == 3


@pytest.mark.covers("D3", "E12")
def test_offline_one_bad_parameter_raises_before_anything_runs():
    executor = FakeExecutor()
    model = LLM.from_engine(fakes.engine(executor))
    with pytest.raises(RequestError):
        model.generate(["a", "b"], [SamplingParams(), SamplingParams(top_p=2)], use_tqdm=False)
    with pytest.raises(RequestError):
        model.generate(["a", ""], use_tqdm=False)
    assert executor.plans == [] and model.llm_engine.get_num_unfinished_requests() == 0
