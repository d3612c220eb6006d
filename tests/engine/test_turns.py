"""Who may call an engine: one thread at a time, in the process that built it; others are refused."""

import os
import threading

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.engine.llm_engine import LLMEngine
from headrace.llm import LLM
from headrace.words.errors import EngineDeadError, EngineError, RequestError
from headrace.words.params import SamplingParams

PARAMS = SamplingParams(max_tokens=5, seed=1)


class Slow:
    """A model that stands in its second step until it is let go."""

    def __init__(self) -> None:
        self.is_there, self.may_go = threading.Event(), threading.Event()
        self.executor = FakeExecutor(on_forward=self._on_forward)

    def _on_forward(self, plan) -> None:
        if plan.step == 2:
            self.is_there.set()
            assert self.may_go.wait(10)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.generate("b", PARAMS, use_tqdm=False),
        lambda model: model.embed("b", use_tqdm=False),
        lambda model: model.llm_engine.add_request("b", "b", PARAMS),
        lambda model: model.llm_engine.step(),
    ],
    ids=["generate", "embed", "add_request", "step"],
)
def test_a_second_thread_is_refused_while_a_call_runs_and_the_call_gets_its_tokens(call):
    (alone,) = LLM.from_engine(fakes.engine()).generate("a", PARAMS, use_tqdm=False)
    slow, outputs = Slow(), []
    model = LLM.from_engine(fakes.engine(slow.executor))
    first = threading.Thread(target=lambda: outputs.extend(model.generate("a", PARAMS, use_tqdm=False)))
    first.start()
    assert slow.is_there.wait(10)
    with pytest.raises(EngineError, match="another thread uses this engine"):
        call(model)
    slow.may_go.set()
    first.join(10)
    assert [output.outputs[0].token_ids for output in outputs] == [alone.outputs[0].token_ids]
    assert model.llm_engine.get_num_unfinished_requests() == 0
    assert len(model.generate("b", PARAMS, use_tqdm=False)) == 1, "afterwards everybody may call"


def test_another_thread_may_abort():
    slow, outputs = Slow(), []
    engine = LLMEngine(fakes.engine(slow.executor))
    engine.add_request("a", "a", PARAMS)

    def drive() -> None:
        while engine.has_unfinished_requests():
            outputs.extend(engine.step())

    driver = threading.Thread(target=drive)
    driver.start()
    assert slow.is_there.wait(10)
    engine.abort_request("a")
    slow.may_go.set()
    driver.join(10)
    assert outputs[-1].outputs[0].finish_reason == "abort" and len(outputs[-1].outputs[0].token_ids) == 2


def test_a_callback_of_a_call_may_call():
    model, inner = LLM.from_engine(fakes.engine()), []

    class Bar:
        def update(self, n):
            if n and not inner:
                inner.append(None)
                inner.extend(model.generate("b", PARAMS, use_tqdm=False))

        def close(self): ...

    (outer,) = model.generate("a", PARAMS, use_tqdm=lambda **kwargs: Bar())
    assert len(outer.outputs[0].token_ids) == len(inner[1].outputs[0].token_ids) == 5


def test_a_bar_that_raises_ends_its_call_and_nothing_else():
    def make(**kwargs):
        class Bar:
            def update(self, n):
                raise ZeroDivisionError

            def close(self): ...

        return Bar()

    model = LLM.from_engine(fakes.engine())
    with pytest.raises(ZeroDivisionError):
        model.generate("a", PARAMS, use_tqdm=make)
    assert model.llm_engine.get_num_unfinished_requests() == 0
    assert model.llm_engine.engine.core.scheduler.stats().num_used_blocks == 0
    assert len(model.generate("a", PARAMS, use_tqdm=False)) == 1


def test_a_forked_process_is_refused(monkeypatch):
    model = LLM.from_engine(fakes.engine())
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    for call in (lambda: model.generate("a", PARAMS), model.llm_engine.step):
        with pytest.raises(EngineDeadError, match=f"lives in process {pid} and not in this fork"):
            call()


@pytest.mark.parametrize("name", [5, None, b"a"])
def test_an_abort_of_what_is_no_name_is_refused(name):
    with pytest.raises(RequestError, match="request_id: must be a text or a list of texts"):
        LLMEngine(fakes.engine()).abort_request(name)


def test_a_name_that_is_no_text_leaves_nothing_behind():
    engine = LLMEngine(fakes.engine())
    with pytest.raises(RequestError, match="request_id"):
        engine.add_request(["a"], "hi", PARAMS)
    assert engine.get_num_unfinished_requests() == 0 and not engine.has_unfinished_requests()
