"""A model whose forward is one native call: recorded once, in its own prose, over its own caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace import _native
from headrace.ops.base import StepInputs, Tensor
from headrace.ops.cpu.model_ops import ModelOps
from headrace.ops.cpu.program import Lowered, Recorder


class Forward(Protocol):
    def forward(self, inputs: Any, caches: Sequence[Any]) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


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


def lower(model: Forward, ops: ModelOps, caches: Sequence[Any], max_num_tokens: int) -> LoweredModel:
    """Records `model.forward`, which must use `ops` and nothing but ops on what it is given."""
    recorder = Recorder(ops.machine, ops.dtype == "bfloat16", max_num_tokens)
    result = model.forward(recorder.step(), caches)
    return LoweredModel(model, Lowered(recorder, result), caches)
