"""A source whose matrices are made integers when they are read."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from numpy.typing import NDArray

from headrace.layers.weights import WeightSource
from headrace.ops.base import Floats, Part, Unrounded
from headrace.ops.rounding import rounded_values
from headrace.words.config import QUANTIZATIONS


class RoundedWeights:
    """What is asked for as a matrix comes in 8 or 4 bits; all else as it is."""

    def __init__(self, source: WeightSource, bits: int) -> None:
        self._source = source
        self._bits = bits

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def get(self, name: str) -> NDArray[Any]:
        return self._source.get(name)

    def blocks(self, name: str) -> Part | None:
        shape = tuple(self.shape(name))
        if len(shape) != 2:
            return None
        values = partial(self._source.get, name)
        return Unrounded(self._bits, (shape[0], shape[1]), values, partial(self._rounded, name))

    def _rounded(self, name: str) -> Floats:
        return rounded_values(self._source.get(name), self._bits)


def round_weights(source: WeightSource, quantization: str | None) -> WeightSource:
    """The source itself, or as `EngineConfig.quantization` asks."""
    return source if quantization is None else RoundedWeights(source, QUANTIZATIONS[quantization])
