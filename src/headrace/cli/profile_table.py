"""A profile for people: what each kind of op took, and how near it came to what the machine gives."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cli.report import plural

COLUMNS = ("op", "shape", "calls", "ms", "share", "GB/s", "GFLOP/s", "of the limit")
WIDTH = 100


def profile_table(profile: Mapping[str, Any]) -> str:
    """As text, so that it can stand behind a benchmark's other lines."""
    limits = profile["limits"]
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False)
    console.print(
        f"{plural(profile['num_steps'], 'step')} of {profile['step_ms']:.2f} ms: ops {profile['ops_share']:.1%}, "
        f"between them {profile['native_share'] - profile['ops_share']:.1%}, Python {profile['python_share']:.1%}"
    )
    read, computed = limits["read_gb_per_s"], limits["gflop_per_s"]
    console.print(f"the machine reads {read:.1f} GB/s and computes {computed:.0f} GFLOP/s")
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for op in profile["ops"]:
        table.add_row(*_cells(op, limits))
    console.print(table)
    if any(_reached(op, limits) > 1 for op in profile["ops"]):
        console.print("above 100%: what it reads lay in the processor's caches, not in memory")
    return out.getvalue().rstrip()


def _cells(op: Mapping[str, Any], limits: Mapping[str, float]) -> tuple[str, ...]:
    return (
        op["kind"],
        op["shape"],
        f"{op['calls']}",
        f"{op['ms']:.1f}",
        f"{op['share']:.1%}",
        f"{op['gb_per_s']:.1f}",
        f"{op['gflop_per_s']:.1f}",
        f"{_reached(op, limits):.0%}",
    )


def _reached(op: Mapping[str, Any], limits: Mapping[str, float]) -> float:
    """Of what memory gives or the cores compute, whichever an op came nearer to."""
    return float(max(op["gb_per_s"] / limits["read_gb_per_s"], op["gflop_per_s"] / limits["gflop_per_s"]))
