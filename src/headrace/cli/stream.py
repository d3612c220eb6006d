"""One request, its outputs as they come."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.inputs import Prompt
from headrace.engine.interrupts import DeferredInterrupt
from headrace.engine.llm_engine import LLMEngine
from headrace.words.outputs import RequestOutput
from headrace.words.params import SamplingParams


def stream(engine: LLMEngine, prompt: Prompt, params: SamplingParams) -> Iterator[RequestOutput]:
    """The request as it grows, the last time finished. Ctrl-C aborts it: then its last output says so."""
    request_id = engine.submit(engine.engine.inputs.check(prompt, params))
    is_finished = False
    with DeferredInterrupt() as interrupt:
        try:
            while not is_finished:
                engine.advance()
                if interrupt.take():
                    engine.abort(request_id)
                for state in engine.take_news((request_id,)):
                    is_finished = state.is_finished
                    output = state.output()
                    assert isinstance(output, RequestOutput)
                    yield output
        finally:
            if not is_finished:
                engine.discard([request_id])
