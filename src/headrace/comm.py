"""What ranks of one model say to each other. Layers get it passed in; alone, nothing is said."""

from __future__ import annotations

from typing import Protocol

from headrace.ops.base import Tensor


class Comm(Protocol):
    """A group of `size` ranks, this one being `rank`."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, on every rank."""

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x behind one another along the last dimension, on every rank."""


class SoloComm:
    """The group of one."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x
