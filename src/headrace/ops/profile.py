"""What the ops of a model take, where a backend can time them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class OpProfile(NamedTuple):
    """All ops of one kind and shape, while they were timed; bytes and FLOPs are what their shapes make necessary."""

    kind: str
    shape: str
    calls: int
    seconds: float
    bytes: float
    flops: float


class StepProfile(NamedTuple):
    """Steps while they were timed: how many, what their calls took as a whole, and what of it their ops took."""

    calls: int
    seconds: float
    ops: tuple[OpProfile, ...]


class Limits(NamedTuple):
    """What the machine was measured to give on the threads of a backend."""

    read_bytes_per_s: float
    flops_per_s: float


class Profiler(Protocol):
    """Times the ops of a model's steps; nothing is timed before `start` nor after `stop`."""

    def start(self) -> None: ...

    def stop(self) -> StepProfile: ...

    def limits(self) -> Limits:
        """Measured now: seconds of full load, and a quarter of a gigabyte."""
