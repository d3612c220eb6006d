"""First uses before the first request: nothing of them is seen afterwards."""

import logging

import pytest
from tests.engine import fakes, tiny
from tests.engine.fakes import FakeExecutor

from headrace.engine.build import Engine, build_engine
from headrace.engine.llm_engine import LLMEngine
from headrace.engine.warm_up import warm_up
from headrace.words.config import engine_config
from headrace.words.params import SamplingParams


def answers(engine: Engine) -> list[tuple[list[int], int | None]]:
    """Tokens and seeds of a few requests, one after another and together."""
    model = LLMEngine(engine)
    for i, prompt in enumerate([[70, 71, 72] * 5, [80], [90, 91]]):
        model.add_request(str(i), {"prompt_token_ids": prompt}, SamplingParams(max_tokens=9, ignore_eos=True))
    found = {}
    while model.has_unfinished_requests():
        for output in model.step():
            found[output.request_id] = output
    return [(found[name].outputs[0].token_ids, found[name].outputs[0].seed) for name in sorted(found)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("tiny")))


def test_a_warm_engine_gives_the_tokens_of_a_cold_one_and_has_counted_nothing(folder):
    cold, warm = (build_engine(engine_config(model=folder, max_model_len=64)) for _ in range(2))
    warm_up(warm)
    before = warm.metrics.snapshot()
    assert before.num_steps == before.num_accepted == before.num_prompt_tokens == 0 and before.cache_usage == 0
    assert answers(warm) == answers(cold)
    for engine in (cold, warm):
        engine.close()


def test_it_is_a_prompt_and_a_token_after_it():
    plans = []
    warm_up(fakes.engine(FakeExecutor(on_forward=plans.append)))
    assert [(segment.start, segment.length) for plan in plans for segment in plan.segments] == [(0, 1), (1, 1)]


def test_one_that_fails_is_logged_and_harms_nobody(caplog):
    def fail(plan):
        if plan.step == 0:
            raise MemoryError("no memory")

    engine = fakes.engine(FakeExecutor(on_forward=fail))
    with caplog.at_level(logging.WARNING):
        warm_up(engine)
    assert "no memory" in caplog.text and len(answers(engine)) == 3
