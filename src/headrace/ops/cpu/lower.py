"""A model whose forward is one native call: recorded once, in its own prose, over its own caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace import _native
from headrace.ops.base import Forward, StepInputs, Tensor
from headrace.ops.cpu.program import Lowered, Recorder


class LoweredModel:
    """What the worker needs of a model. The hidden states that `forward` gives are overwritten by the next."""

    def __init__(self, model: Forward, lowered: Lowered, caches: Sequence[Any]) -> None:
        self._model = model
        self._lowered = lowered
        self._caches = caches

    def forward(self, inputs: StepInputs, caches: Sequence[Any]) -> Tensor:
        """`caches` must be those of the recording."""
        assert caches is self._caches or all(a is b for a, b in zip(caches, self._caches, strict=True))
        return self._lowered.run(_native.Step(*inputs), inputs.token_ids.size)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def lower(
    model: Forward, machine: _native.Machine, is_bf16: bool, caches: Sequence[Any], max_num_tokens: int
) -> LoweredModel:
    """Records `model.forward`, which must use `ops` and nothing but ops on what it is given."""
    recorder = Recorder(machine, is_bf16, max_num_tokens)
    symbols: Any = recorder.step()
    result = model.forward(symbols, caches)
    return LoweredModel(model, Lowered(recorder, result), caches)
