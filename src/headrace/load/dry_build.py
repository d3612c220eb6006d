"""A model built without reading a weight: whether all are there and shaped as they must be, and what it will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headrace.comm import SoloComm
from headrace.models.registry import family
from headrace.ops.base import Ops, Part
from headrace.words.cache_spec import CacheSpec
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError


class Plan(NamedTuple):
    """`weight_bytes` in the dtype that was asked for, however they are stored; one spec per layer."""

    weight_bytes: int
    cache_specs: tuple[CacheSpec | None, ...]


class Shaped(NamedTuple):
    """As much of an array as models ask for before they hand it to their ops."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def T(self) -> Shaped:
        return Shaped(self.shape[::-1])

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: int) -> Shaped:
        known = -math.prod(shape)
        return Shaped(tuple(self.size // known if size == -1 else size for size in shape))

    def swapaxes(self, first: int, second: int) -> Shaped:
        shape = list(self.shape)
        shape[first], shape[second] = shape[second], shape[first]
        return Shaped(tuple(shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint8]:
        """For what asks for an array in any case: one byte, again and again."""
        return np.broadcast_to(np.zeros((), np.uint8), self.shape)

    def __array_function__(self, function: Callable[..., Any], types: Any, given: Any, named: Any) -> Any:
        if function is not np.concatenate:
            return NotImplemented
        parts = given[0]
        return Shaped((sum(part.shape[0] for part in parts), *parts[0].shape[1:]))


class ShapesOf:
    """A source of weights that gives their shapes in place of their values."""

    def __init__(self, source: Any) -> None:
        self.names: Callable[[], Collection[str]] = source.names
        self.shape: Callable[[str], tuple[int, ...]] = source.shape
        self._blocks: Callable[[str, bool], Part | None] = source.blocks

    def get(self, name: str) -> Any:
        return Shaped(tuple(self.shape(name)))

    def blocks(self, name: str, is_turned: bool = False) -> Part | None:
        if (part := self._blocks(name, is_turned)) is None:
            return None
        shaped: Callable[[], Any] = partial(Shaped, part.shape)
        return part._replace(dequantize=shaped)


class NoOps:
    """Ops that keep nothing."""

    def __init__(self, dtype: str, keeps_blocks: bool) -> None:
        self.dtype = dtype
        self.keeps_blocks = keeps_blocks

    def weight(self, array: object) -> None:
        return None


def dry_build(
    config: ModelConfig, weights: Any, dtype: str = "float32", keeps_blocks: bool = False, file: str = "checkpoint"
) -> Plan:
    """ModelError names a tensor that is missing, misshapen, or has no place in the model, and the `file` that says so.
    `dtype` and `keeps_blocks` are those of the ops that will run it."""
    ops = cast(Ops, NoOps(dtype, keeps_blocks))
    try:
        model = family(config.architecture).build(config, ShapesOf(weights), ops, SoloComm(), 1)
    except ModelError as error:
        raise ModelError(file if error.file == "checkpoint" else error.file, error.cause) from None
    return Plan(model.weight_bytes, model.cache_specs())
