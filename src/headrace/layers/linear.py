"""Linear layers by how their weight is cut over ranks: by output, by input, or whole heads of q, k and v."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.comm import Comm
from headrace.layers.weights import Weights
from headrace.ops.base import Ops, QuantizedMatrix, Tensor

Array = NDArray[Any]
Matrix = Array | QuantizedMatrix


class Linear:
    """[T, in] → [T, out], weight [out, in], bias [out]"""

    def __init__(self, ops: Ops, weight: Matrix, bias: Array | None) -> None:
        self._ops = ops
        self.weight = ops.weight(weight)
        self.bias = None if bias is None else ops.weight(bias)

    @classmethod
    def read(
        cls, ops: Ops, weights: Weights, names: Sequence[str], sizes: Sequence[int], num_inputs: int, has_bias: bool
    ) -> Linear:
        """One weight, or several with the same input below one another."""
        matrix = weights.matrix([f"{name}.weight" for name in names], sizes, num_inputs)
        return cls(ops, matrix, weights.stack([f"{name}.bias" for name in names], sizes) if has_bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self.weight, self.bias)


class RowLinear:
    """The input is cut over ranks: the parts are summed, and the bias is added once."""

    def __init__(self, ops: Ops, comm: Comm, weight: Matrix, bias: Array | None) -> None:
        self._ops = ops
        self._comm = comm
        self.weight = ops.weight(weight)
        self.bias = None if bias is None or comm.rank else ops.weight(bias)

    @classmethod
    def read(
        cls, ops: Ops, comm: Comm, weights: Weights, name: str, num_outputs: int, num_inputs: int, has_bias: bool
    ) -> RowLinear:
        matrix = weights.matrix([f"{name}.weight"], [num_outputs], num_inputs)
        return cls(ops, comm, matrix, weights.get(f"{name}.bias", num_outputs) if has_bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        return self._comm.all_reduce(self._ops.linear(x, self.weight, self.bias, is_summand=True))
