"""What a model's ops took in a benchmark, beside what the machine could give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.llm import LLM
from headrace.ops.profile import Limits, OpProfile, Profiler, StepProfile
from headrace.words.errors import ConfigError

Found = TypeVar("Found")


def profiler_of(llm: LLM) -> Profiler:
    profiler = llm.llm_engine.engine.profiler
    if profiler is None:
        raise ConfigError("profile", "only the native kernels are timed, and this engine does not run on them")
    return profiler


def profiled(llm: LLM, measure: Callable[[], tuple[Found, float]]) -> tuple[Found, float, dict[str, Any]]:
    """`measure` gives what it found and the seconds that the engine worked; the profile comes behind them."""
    profiler = profiler_of(llm)
    profiler.start()
    try:
        found, seconds = measure()
    finally:
        profile = profiler.stop()
    return found, seconds, summary(profile, seconds, profiler.limits())


def summary(profile: StepProfile, seconds: float, limits: Limits) -> dict[str, Any]:
    """All of it as numbers for JSON. What is not in the model's native call counts as Python."""
    timed_s = sum(op.seconds for op in profile.ops)
    return {
        "num_steps": profile.calls,
        "step_ms": 1e3 * seconds / max(profile.calls, 1),
        "python_share": 1 - profile.seconds / seconds,
        "native_share": profile.seconds / seconds,
        "ops_share": timed_s / seconds,
        "limits": {
            "read_gb_per_s": limits.read_bytes_per_s / 1e9,
            "gflop_per_s": limits.flops_per_s / 1e9,
        },
        "ops": [_row(op, seconds) for op in sorted(profile.ops, key=lambda op: -op.seconds)],
    }


def _row(op: OpProfile, seconds: float) -> dict[str, Any]:
    return {
        "kind": op.kind,
        "shape": op.shape,
        "calls": op.calls,
        "ms": 1e3 * op.seconds,
        "share": op.seconds / seconds,
        "bytes": op.bytes,
        "flops": op.flops,
        "gb_per_s": op.bytes / op.seconds / 1e9,
        "gflop_per_s": op.flops / op.seconds / 1e9,
    }
