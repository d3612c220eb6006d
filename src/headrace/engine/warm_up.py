"""First uses, made before anybody waits for them."""

from __future__ import annotations

from headrace.engine.build import Engine
from headrace.words.errors import RequestError
from headrace.words.log import get_logger
from headrace.words.params import SamplingParams
from headrace.words.plan import Admission, Emits, Segment, StepPlan

log = get_logger(__name__)
STEP = 0
"""The scheduler's steps begin at 1."""
SEQ_ID, EPOCH, ROW, BLOCK = 0, 0, 1, 1


def warm_up(engine: Engine) -> None:
    """A prompt and one token after it, before the core runs: the memory of caches and activations is touched, the
    threads and the sampler are awake, and the chat template was filled once. Nothing remains of it, for a row and a
    block are written whole by whoever gets them. What fails here is left to the first request to tell."""
    try:
        _run_steps(engine)
        if engine.template is not None:
            engine.template.render([{"role": "user", "content": "a"}])
    except RequestError:
        return
    except Exception as error:
        log.warning("warming up failed: %s", error)


def _run_steps(engine: Engine) -> None:
    request = engine.inputs.check("a", SamplingParams(max_tokens=1, temperature=1.0, seed=0)).request
    tokens = request.prompt_ids[: max(1, engine.layout.block_size - 1)]
    admission = Admission(SEQ_ID, EPOCH, ROW, tokens, len(tokens), (BLOCK,), request.sampling, None, seed=0, choice=0)
    _run(engine, StepPlan(STEP, (_segment(0, len(tokens)),), (admission,)))
    _run(engine, StepPlan(STEP, (_segment(len(tokens), 1),)))


def _segment(start: int, length: int) -> Segment:
    return Segment(SEQ_ID, EPOCH, ROW, start, length, 0, Emits.TOKEN)


def _run(engine: Engine, plan: StepPlan) -> None:
    executor = engine.core.executor
    executor.forward(plan)
    executor.sample(plan).result()
