"""Norms over the last dimension."""

from __future__ import annotations

from headrace.layers.weights import Weights
from headrace.ops.base import Ops, Tensor


class RMSNorm:
    """x / rms(x) × weight (arXiv 1910.07467)."""

    def __init__(self, ops: Ops, weights: Weights, name: str, size: int, eps: float) -> None:
        self._ops = ops
        self._weight = ops.weight(weights.get(f"{name}.weight", size))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps)


class UnitRMSNorm(RMSNorm):
    """x / rms(x) × (1 + weight): weights are stored as what differs from one."""

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps, 1.0)


class LayerNorm:
    """(x − mean) / deviation × weight + bias (arXiv 1607.06450)."""

    def __init__(self, ops: Ops, weights: Weights, name: str, size: int, eps: float) -> None:
        self._ops = ops
        self._weight = ops.weight(weights.get(f"{name}.weight", size))
        self._bias = ops.weight(weights.get(f"{name}.bias", size))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps)


Norm = RMSNorm | LayerNorm
