"""Linear layers by how their weight is cut over ranks: by output, by input, or whole heads of q, k and v."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.comm import Comm
from headrace.layers.weights import Weights
from headrace.ops.base import Ops, Tensor


class Linear:
    """[T, in] → [T, out]; one weight, or several with the same input below one another (`names`, `sizes`)."""

    def __init__(
        self, ops: Ops, weights: Weights, names: Sequence[str], sizes: Sequence[int], num_inputs: int, has_bias: bool
    ) -> None:
        self._ops = ops
        self.weight = ops.weight(weights.stack([f"{name}.weight" for name in names], sizes, num_inputs))
        self.bias = ops.weight(weights.stack([f"{name}.bias" for name in names], sizes)) if has_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self.weight, self.bias)


class RowLinear(Linear):
    """The input is cut over ranks: the parts are summed, and the bias is added once."""

    def __init__(
        self, ops: Ops, comm: Comm, weights: Weights, name: str, num_outputs: int, num_inputs: int, has_bias: bool
    ) -> None:
        super().__init__(ops, weights, [name], [num_outputs], num_inputs, has_bias)
        self._comm = comm

    def __call__(self, x: Tensor) -> Tensor:
        bias = self.bias if self._comm.rank == 0 else None
        return self._comm.all_reduce(self._ops.linear(x, self.weight, bias))


class RMSNorm:
    """x / rms(x) × weight over the last dimension (arXiv 1910.07467)."""

    def __init__(self, ops: Ops, weights: Weights, name: str, size: int, eps: float) -> None:
        self._ops = ops
        self._weight = ops.weight(weights.get(f"{name}.weight", size))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps)
