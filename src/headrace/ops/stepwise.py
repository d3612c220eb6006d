"""A step op by op: what a backend that compiles nothing runs, and the twin of those that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import (
    Computed,
    Forward,
    Ints,
    KVCache,
    Logprobs,
    Ops,
    SamplingInputs,
    StepInputs,
    Tensor,
    Wanted,
)
from headrace.ops.profile import Profiler


class Stepwise:
    """See `headrace.ops.base.StepModel`."""

    profiler: Profiler | None = None

    def __init__(self, model: Forward, ops: Ops) -> None:
        self._model = model
        self._ops = ops

    def forward(self, inputs: StepInputs, caches: Sequence[KVCache | None]) -> Tensor:
        return self._model.forward(inputs, caches)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def run(self, inputs: StepInputs, caches: Sequence[KVCache | None], wanted: Wanted) -> Computed:
        hidden = self.forward(inputs, caches)
        told = hidden if wanted.hidden else None
        if not wanted.tokens.size:
            return Computed(told, None, np.zeros(0, np.bool_), np.zeros(0, np.int32), Logprobs.room(0, 0))
        logits = self.logits(self._ops.gather(hidden, wanted.tokens))
        return Computed(told, logits, *self._draw(logits, wanted))

    def _draw(self, logits: Tensor, wanted: Wanted) -> tuple[NDArray[np.bool_], Ints, Logprobs]:
        """What Computed holds behind the logits."""
        ops, drawn = self._ops, wanted.drawn
        token_ids, is_finite = np.zeros(drawn.size, np.int32), np.zeros(drawn.size, np.bool_)
        if not drawn.size:
            return is_finite, token_ids, Logprobs.room(0, 0)
        is_finite[:] = ops.finite_rows(ops.gather(logits, drawn))
        alive = np.flatnonzero(is_finite)
        if alive.size:
            sampling = SamplingInputs._make(column[alive] for column in wanted.sampling)
            token_ids[alive] = ops.sample(ops.gather(logits, drawn[alive]), sampling)
        return is_finite, token_ids, self._score(logits, wanted, token_ids, is_finite)

    def _score(self, logits: Tensor, wanted: Wanted, token_ids: Ints, is_finite: NDArray[np.bool_]) -> Logprobs:
        alive = np.flatnonzero(is_finite[wanted.scored])
        if not alive.size:
            return Logprobs.room(0, 0)
        draws = wanted.scored[alive]
        rows = self._ops.gather(logits, wanted.drawn[draws])
        found = self._ops.logprobs(rows, token_ids[draws], wanted.num_top)
        return Logprobs._make(_spread(column, alive, wanted.scored.size) for column in found)


def _spread(values: NDArray[Any], places: NDArray[np.int64], size: int) -> NDArray[Any]:
    """[N, …] at N places of [size, …]"""
    out = np.zeros((size, *values.shape[1:]), values.dtype)
    out[places] = values
    return out
