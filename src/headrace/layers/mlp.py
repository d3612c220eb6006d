"""Feed-forward layers: gated (arXiv 2002.05202), plain, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from headrace.comm import Comm
from headrace.layers.linear import Linear, Matrix, RowLinear
from headrace.layers.weights import Weights
from headrace.ops.base import Activation, Ops, Tensor
from headrace.words.errors import ModelError

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation(name: str, file: str = "config.json") -> Activation:
    """The op for config.json's `hidden_act`."""
    if name not in ACTIVATIONS:
        raise ModelError(file, f"hidden_act {name!r} is unknown; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class GatedMLP:
    """down(activation(gate(x)) × up(x)), [T, hidden] → [T, hidden]"""

    def __init__(self, ops: Ops, act: Activation, gate_up: Linear, down: RowLinear) -> None:
        self._ops = ops
        self._activation = act
        self.gate_up = gate_up
        self.down = down

    @classmethod
    def read(
        cls,
        ops: Ops,
        comm: Comm,
        weights: Weights,
        hidden: int,
        inner: int,
        act: Activation,
        has_bias: bool = False,
    ) -> GatedMLP:
        gate_up = Linear.read(ops, weights, ["gate_proj", "up_proj"], [inner, inner], hidden, has_bias)
        return cls(ops, act, gate_up, RowLinear.read(ops, comm, weights, "down_proj", hidden, inner, has_bias))

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._ops.glu(self.gate_up(x), self._activation))


class PlainMLP:
    """down(activation(up(x))), [T, hidden] → [T, hidden]"""

    def __init__(self, ops: Ops, act: Activation, up: Linear, down: RowLinear) -> None:
        self._ops = ops
        self._activation = act
        self.up = up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._ops.activate(self.up(x), self._activation))


ReadExpert = Callable[[int], tuple[Matrix, Matrix]]
"""An expert's [2 × inner, hidden], gate over up, and [hidden, inner]."""


class SparseMLP:
    """Each token goes to the few experts that its router prefers (arXiv 2101.03961), [T, hidden] → [T, hidden]"""

    def __init__(
        self,
        ops: Ops,
        act: Activation,
        router: NDArray[Any],
        read_expert: ReadExpert,
        num_chosen: int,
        renormalize: bool,
    ) -> None:
        """`router` is [experts, hidden]."""
        self._ops = ops
        self._activation = act
        self._num_chosen = num_chosen
        self._renormalize = renormalize
        self._router = ops.weight(router)
        pairs = [tuple(map(ops.weight, read_expert(i))) for i in range(len(router))]
        self._gate_up, self._down = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def __call__(self, x: Tensor) -> Tensor:
        routes = self._ops.route(x, self._router, self._num_chosen, self._renormalize)
        return self._ops.experts(x, routes, self._gate_up, self._down, self._activation)


MLP = GatedMLP | PlainMLP | SparseMLP
