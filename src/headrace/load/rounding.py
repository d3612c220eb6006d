"""A source whose matrices are made integers when they are read."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from numpy.typing import NDArray

from headrace.layers.weights import WeightSource
from headrace.ops.base import Part, Unrounded
from headrace.ops.rounding import rounded_values
from headrace.words.config import QUANTIZATIONS

VOCABULARY_BITS = 8
"""Of the embedding and the head, least: in 4 bits they cost far more than all layers."""


class RoundedWeights:
    """What is asked for as a matrix comes in 8 or 4 bits, with `vocab_size` rows in 8 bits; all else as it is."""

    def __init__(self, source: WeightSource, bits: int, vocab_size: int) -> None:
        self._source = source
        self._bits = bits
        self._vocab_size = vocab_size

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def get(self, name: str) -> NDArray[Any]:
        return self._source.get(name)

    def blocks(self, name: str, is_turned: bool = False) -> Part | None:
        shape = tuple(self.shape(name))
        if len(shape) != 2:
            return None
        rows, columns = shape[::-1] if is_turned else shape
        bits = VOCABULARY_BITS if rows == self._vocab_size else self._bits
        values = partial(self._values, name, is_turned)
        return Unrounded(bits, (rows, columns), values, lambda: rounded_values(values(), bits))

    def _values(self, name: str, is_turned: bool) -> NDArray[Any]:
        array = self._source.get(name)
        return array.T if is_turned else array


def round_weights(source: WeightSource, quantization: str | None, vocab_size: int) -> WeightSource:
    """The source itself, or as `EngineConfig.quantization` asks."""
    return source if quantization is None else RoundedWeights(source, QUANTIZATIONS[quantization], vocab_size)
