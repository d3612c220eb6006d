"""The gated feed-forward layer (arXiv 2002.05202)."""

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
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation(name: str) -> Activation:
    """The op for config.json's `hidden_act`."""
    if name not in ACTIVATIONS:
        raise ModelError("config.json", f"hidden_act {name!r} is unknown; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class GatedMLP:
    """down(activation(gate(x)) × up(x)), [T, hidden] → [T, hidden]"""

    def __init__(
        self, ops: Ops, comm: Comm, weights: Weights, hidden: int, inner: int, act: str, has_bias: bool = False
    ) -> None:
        self._ops = ops
        self._activation = activation(act)
        self.gate_up = Linear(ops, weights, ["gate_proj", "up_proj"], [inner, inner], hidden, has_bias)
        self.down = RowLinear(ops, comm, weights, "down_proj", hidden, inner, has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._ops.glu(self.gate_up(x), self._activation))
