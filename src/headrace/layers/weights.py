"""A checkpoint's tensors as a model reads them: each asked for by name and shape, and what nobody asked for named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Part, QuantizedMatrix
from headrace.words.cache_spec import ITEM_BYTES
from headrace.words.errors import ModelError


class WeightSource(Protocol):
    """Tensors by name; float32, float16, or bfloat16 held as uint16."""

    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def get(self, name: str) -> NDArray[Any]: ...

    def blocks(self, name: str, is_turned: bool = False) -> Part | None:
        """A quantized matrix as it is stored, or one that is to be quantized; None if the tensor is neither. Its rows
        are the tensor's columns if it `is_turned`."""


@dataclass
class Tally:
    """What was read of a source."""

    names: set[str] = field(default_factory=set)
    num_parameters: int = 0
    block_bytes: int = 0


class Weights:
    """Reads from a source below a prefix; all parts of one source count together in one tally."""

    def __init__(
        self, source: WeightSource, prefix: str = "", keeps_blocks: bool = False, tally: Tally | None = None
    ) -> None:
        self._source = source
        self._prefix = prefix
        self._keeps_blocks = keeps_blocks
        self._tally = tally or Tally()

    def at(self, prefix: str) -> Weights:
        return Weights(self._source, self._prefix + prefix, self._keeps_blocks, self._tally)

    def num_bytes(self, dtype: str) -> int:
        """Bytes that what was read so far takes: blocks as they are stored, all else in `dtype`."""
        return self._tally.num_parameters * ITEM_BYTES[dtype] + self._tally.block_bytes

    def has(self, name: str) -> bool:
        return self._prefix + name in self._source.names()

    def get(self, name: str, *shape: int) -> NDArray[Any]:
        """The tensor, whose shape must be `shape`; ModelError names it otherwise."""
        array = self._source.get(self._find(name, shape))
        self._tally.num_parameters += array.size
        return array

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        full = self._prefix + name
        if not self.has(name):
            raise ModelError("checkpoint", f"the tensor {full} is missing")
        if (found := tuple(self._source.shape(full))) != shape:
            raise ModelError("checkpoint", f"the tensor {full} has the shape {list(found)} instead of {list(shape)}")
        self._tally.names.add(full)
        return full

    def matrix(
        self, names: Sequence[str], sizes: Sequence[int], num_inputs: int, is_turned: bool = False
    ) -> NDArray[Any] | QuantizedMatrix:
        """Matrices [size, num_inputs], or as many that are turned [num_inputs, size], below one another for a product:
        [sum of sizes, num_inputs], quantized if all of them are and can stay so together."""
        shapes = [(num_inputs, size) if is_turned else (size, num_inputs) for size in sizes]
        found = [self._find(name, shape) for name, shape in zip(names, shapes, strict=True)]
        parts = [self._source.blocks(name, is_turned) for name in found]
        quantized = QuantizedMatrix(tuple(part for part in parts if part is not None))
        if self._keeps_blocks and len(quantized.parts) == len(parts) and (num_bytes := quantized.num_bytes) is not None:
            self._tally.block_bytes += num_bytes
            return quantized
        self._tally.num_parameters += sum(sizes) * num_inputs
        arrays = [
            part.dequantize() if part is not None else self._whole(name, is_turned)
            for name, part in zip(found, parts, strict=True)
        ]
        return np.concatenate(arrays)

    def _whole(self, name: str, is_turned: bool) -> NDArray[Any]:
        array = self._source.get(name)
        return array.T if is_turned else array

    def stack(self, names: Iterable[str], sizes: Iterable[int], *rest: int) -> NDArray[Any]:
        """Tensors [size, *rest] below one another."""
        return np.concatenate([self.get(name, size, *rest) for name, size in zip(names, sizes, strict=True)])

    def check_all_read(self, ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)) -> None:
        """ModelError when the checkpoint holds tensors that the model has no place for: it is another model then."""
        unread = sorted(n for n in self._source.names() if n not in self._tally.names and not n.endswith(ignored))
        if unread:
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise ModelError("checkpoint", f"the model has no place for the tensor {unread[0]}{more}")
