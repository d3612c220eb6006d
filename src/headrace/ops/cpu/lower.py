"""A model whose step is one native call: recorded once, in its own prose, over its own caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import _native
from headrace.ops.base import (
    Computed,
    Forward,
    Logprobs,
    SamplingInputs,
    StepInputs,
    Tensor,
    Wanted,
)
from headrace.ops.cpu.machine import check_vocabulary
from headrace.ops.cpu.profile import ProgramProfiler
from headrace.ops.cpu.program import Recorder, Symbol
from headrace.ops.profile import Profiler

_NONE, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)
_NO_CUTS = SamplingInputs(_NO_FLOATS, _NO_FLOATS, _NONE, _NO_FLOATS, np.zeros(0, np.uint64), _NONE, _NONE)
NO_LOGPROBS = Logprobs.room(0, 0)
HIDDEN_WANTED = Wanted(_NONE, _NONE, _NO_CUTS, _NONE, 0, hidden=True)


class LoweredModel:
    """See `headrace.ops.base.StepModel`; `caches` must be those of the recording."""

    def __init__(
        self,
        model: Forward,
        program: _native.Program,
        hidden: Symbol,
        logits: Symbol,
        caches: Sequence[Any],
        profiler: Profiler,
    ) -> None:
        self.profiler: Profiler | None = profiler
        self._model = model
        self._program = program
        self._hidden = program.result(hidden.place)
        self._logits = program.result(logits.place)
        self._caches = caches

    def run(self, inputs: StepInputs, caches: Sequence[Any], wanted: Wanted) -> Computed:
        """One call, the GIL released once."""
        assert caches is self._caches or all(a is b for a, b in zip(caches, self._caches, strict=True))
        num_draws, num_scored = wanted.drawn.size, wanted.scored.size
        token_ids, is_finite = np.empty(num_draws, np.int32), np.empty(num_draws, np.bool_)
        found = Logprobs.room(num_scored, min(wanted.num_top, self._logits.shape[1])) if num_scored else NO_LOGPROBS
        draws = _native.Draws(
            wanted.tokens, wanted.drawn, *wanted.sampling, token_ids, is_finite, wanted.scored, *found
        )
        self._program.run(_native.Step(*inputs), draws, wanted.hidden)
        hidden = self._hidden[: inputs.token_ids.size] if wanted.hidden else None
        return Computed(hidden, self._logits[: wanted.tokens.size], is_finite, token_ids, found)

    def forward(self, inputs: StepInputs, caches: Sequence[Any]) -> Tensor:
        return self.run(inputs, caches, HIDDEN_WANTED).hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def lower(
    model: Forward,
    machine: _native.Machine,
    is_bf16: bool,
    caches: Sequence[Any],
    max_num_tokens: int,
    max_num_draws: int,
) -> LoweredModel:
    """Records `model.forward` and `model.logits`, which must use `ops` and nothing but ops on what they are given."""
    recorder = Recorder(machine, is_bf16, max_num_tokens)
    symbols: Any = recorder.step()
    hidden = model.forward(symbols, caches)
    logits = model.logits(recorder.head(hidden, min(max_num_draws, max_num_tokens)))
    check_vocabulary(logits.place.cols)
    recorder.program.end_head(logits.place)
    profiler = ProgramProfiler(recorder.program, machine, is_bf16)
    return LoweredModel(model, recorder.program, hidden, logits, caches, profiler)
