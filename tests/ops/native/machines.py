"""Machines of every instruction set that runs here, with 1 and 2 threads, and numbers in bfloat16."""

from __future__ import annotations

from functools import cache

import numpy as np

from headrace import _native
from headrace.ops.bfloat16 import to_bfloat16
from headrace.ops.cpu import CpuOps

ISAS = _native.isas()
KINDS = [(isa, threads) for isa in ISAS for threads in (1, 2)]


@cache
def ops_of(isa: str, threads: int, dtype: str) -> CpuOps:
    return CpuOps(dtype, threads, isa)


def numbers(dtype: str, *shape: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    values = (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)
    return to_bfloat16(values) if dtype == "bfloat16" else values


def assert_same_on_all(dtype: str, compute) -> np.ndarray:
    """`compute(ops)` has the same bits on every instruction set and number of threads; the fastest's result."""
    results = {kind: np.array(compute(ops_of(*kind, dtype))) for kind in KINDS}
    fastest = results[ISAS[-1], 2]
    for kind, result in results.items():
        assert result.tobytes() == fastest.tobytes(), f"{kind} differs from {ISAS[-1]}"
    return fastest
