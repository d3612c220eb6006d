"""What the ops of a program take, and what the machine could give."""

from __future__ import annotations

import time

import numpy as np

from headrace import _native
from headrace.ops.bfloat16 import to_bfloat16
from headrace.ops.profile import Limits, OpProfile, StepProfile

READ_BYTES = 256 << 20
ROWS, INNER, OUTER, ROUNDS = 768, 512, 256, 20


class ProgramProfiler:
    """See `headrace.ops.profile.Profiler`."""

    def __init__(self, program: _native.Program, machine: _native.Machine, is_bf16: bool) -> None:
        self._program = program
        self._machine = machine
        self._is_bf16 = is_bf16

    def start(self) -> None:
        self._program.start_profile()

    def stop(self) -> StepProfile:
        (_, _, calls, seconds, _, _), *ops = self._program.stop_profile()
        return StepProfile(calls, seconds, tuple(_gathered([OpProfile(*op) for op in ops])))

    def limits(self) -> Limits:
        return measure_limits(self._machine, self._is_bf16)


def _gathered(ops: list[OpProfile]) -> list[OpProfile]:
    """Ops of one kind and shape are one; those that were never called are left out."""
    found: dict[tuple[str, str], OpProfile] = {}
    for op in ops:
        before = found.get((op.kind, op.shape))
        sums = op[2:] if before is None else (a + b for a, b in zip(before[2:], op[2:], strict=True))
        found[op.kind, op.shape] = OpProfile._make((op.kind, op.shape, *sums))
    return [op for op in found.values() if op.calls]


def measure_limits(machine: _native.Machine, is_bf16: bool) -> Limits:
    """The best streaming read of 256 MB, and the best of fp32 multiply-adds in registers and of a product in the cache,
    which matrix units may make faster than those."""
    table = machine.pack(_matrix(READ_BYTES // (2 if is_bf16 else 4) // 1024, 1024, is_bf16))
    x, weight = _matrix(ROWS, INNER, is_bf16), machine.pack(_matrix(OUTER, INNER, is_bf16))
    y = np.empty((ROWS, OUTER), np.float32)
    best_s = min(_seconds(machine, x, weight, y) for _ in range(ROUNDS))
    return Limits(machine.read_rate(table), max(machine.fma_rate(), 2 * ROWS * INNER * OUTER / best_s))


def _matrix(rows: int, cols: int, is_bf16: bool) -> np.ndarray:
    half = to_bfloat16(np.array([0.5], np.float32)) if is_bf16 else np.array([0.5], np.float32)
    return np.full((rows, cols), half[0])


def _seconds(machine: _native.Machine, x: np.ndarray, weight: _native.Weight, y: np.ndarray) -> float:
    start_s = time.perf_counter()
    machine.linear(x, weight, None, y)
    return time.perf_counter() - start_s
