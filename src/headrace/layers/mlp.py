"""Feed-forward layers: gated (arXiv 2002.05202), plain, and mixtures of experts."""

from __future__ import annotations

from headrace.comm import Comm
from headrace.layers.linear import Linear, RowLinear
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


class SparseMLP:
    """Each token goes to the few experts that its router prefers (arXiv 2101.03961), [T, hidden] → [T, hidden]"""

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        hidden: int,
        inner: int,
        act: Activation,
        num_experts: int,
        num_chosen: int,
        renormalize: bool,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        self._ops = ops
        self._activation = act
        self._num_chosen = num_chosen
        self._renormalize = renormalize
        self._router = ops.weight(weights.get("gate.weight", num_experts, hidden))
        gate, up, down = (f"{name}.weight" for name in names)
        experts = [weights.at(f"experts.{i}.") for i in range(num_experts)]
        self._gate_up = [ops.weight(own.matrix([gate, up], [inner, inner], hidden)) for own in experts]
        self._down = [ops.weight(own.matrix([down], [hidden], inner)) for own in experts]

    def __call__(self, x: Tensor) -> Tensor:
        routes = self._ops.route(x, self._router, self._num_chosen, self._renormalize)
        return self._ops.experts(x, routes, self._gate_up, self._down, self._activation)


MLP = GatedMLP | PlainMLP | SparseMLP
