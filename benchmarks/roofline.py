"""Draws the ops of a profile under the machine's roof: FLOP/s over FLOPs per byte, log by log (Williams et al. 2009).

Usage: headrace bench throughput --profile --json > profile.json
       python benchmarks/roofline.py profile.json [more.json …] --out roofline.png

Several files are several colours. The slope is the measured streaming read, the ceiling the measured rate of
arithmetic; both are the first file's. A point's area is its share of the time; those that do nothing but move bytes
stand at the left edge, by their GB/s. What lies above the slope was read from the caches.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

COLOURS = ("#1f5fa8", "#c8501e", "#3a7d44", "#7a3e9d")
LEAST_SHARE, LEAST_LABELLED = 0.001, 0.01
EDGE = 0.02
"""FLOPs per byte at which an op is drawn that has fewer, or none."""
BACKGROUND = {"boxstyle": "square,pad=0", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
LABEL_STEP, LABEL_WIDTH, LABEL_GAP, POINT = 0.035, 0.14, 0.035, 0.02
"""Of the picture: a label's height, its width, how far it stands from its point, and a point's width."""


def intensity(op: dict[str, Any]) -> float:
    return max(op["flops"] / op["bytes"], EDGE)


def rate(op: dict[str, Any]) -> float:
    """GFLOP/s; of an op at the edge those that its GB/s are worth there."""
    return max(op["gflop_per_s"], op["gb_per_s"] * EDGE)


def draw_roof(axes: Axes, limits: dict[str, float], reach: tuple[float, float]) -> None:
    read, flops = limits["read_gb_per_s"], limits["gflop_per_s"]
    x = np.geomspace(*reach, 200)
    axes.plot(x, np.minimum(x * read, flops), color="#222222", linewidth=1.6)
    ridge = flops / read
    axes.text(reach[1] * 0.9, flops * 1.12, f"{flops:.0f} GFLOP/s", ha="right", fontsize=9)
    low = (reach[0] * ridge) ** 0.5
    place = {"xytext": (-6, 8), "textcoords": "offset points", "ha": "right"}
    axes.annotate(f"{read:.1f} GB/s", (low, low * read), fontsize=9, **place)


def draw_ops(axes: Axes, ops: list[dict[str, Any]], colour: str) -> None:
    for op in ops:
        axes.scatter(intensity(op), rate(op), s=25 + 900 * op["share"], color=colour, alpha=0.55, edgecolor="white")


def label(axes: Axes, points: list[tuple[dict[str, Any], str]]) -> None:
    """Names right of the points, moved down, where the roof is not, until none stands on another or on a point."""
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = [(*to_axes.transform((intensity(op), rate(op))), op, colour) for op, colour in points]
    taken = [(x - POINT / 2, x + POINT / 2, y) for x, y, _, _ in placed]
    for x, y, op, colour in sorted(placed, key=lambda each: -each[1]):
        height, left, right = y, x + LABEL_GAP, x + LABEL_GAP + LABEL_WIDTH
        while any(left < end and start < right and abs(height - other) < LABEL_STEP for start, end, other in taken):
            height -= LABEL_STEP / 4
        taken.append((left, right, height))
        name = f"{op['kind']} {op['shape']}, {op['share']:.0%}"
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkA": 1}
        axes.annotate(
            name, (x, y), xytext=(x + LABEL_GAP, height), xycoords="axes fraction", textcoords="axes fraction",
            fontsize=8, va="center", color=colour, arrowprops=arrow, bbox=BACKGROUND,
        )


def picture(profiles: dict[str, dict[str, Any]]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(11, 6.5), layout="constrained")
    shown = {
        name: [op for op in result["profile"]["ops"] if op["share"] >= LEAST_SHARE] for name, result in profiles.items()
    }
    every = [op for ops in shown.values() for op in ops]
    limits = next(iter(profiles.values()))["profile"]["limits"]
    reach = (EDGE / 1.5, max(4 * limits["gflop_per_s"] / limits["read_gb_per_s"], 12 * max(map(intensity, every))))
    axes.set(xscale="log", yscale="log", xlim=reach, ylim=(min(map(rate, every)) / 2, 2.5 * limits["gflop_per_s"]))
    axes.set(xlabel="FLOPs per byte, by shape", ylabel="GFLOP/s")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    draw_roof(axes, limits, reach)
    points = []
    for (_, ops), colour in zip(shown.items(), COLOURS, strict=False):
        draw_ops(axes, ops, colour)
        points += [(op, colour) for op in ops if op["share"] >= LEAST_LABELLED]
    figure.canvas.draw()
    label(axes, points)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=caption(name, result))
        for (name, result), colour in zip(profiles.items(), COLOURS, strict=False)
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=9, frameon=False)
    return figure


def caption(name: str, result: dict[str, Any]) -> str:
    profile = result["profile"]
    return f"{name}: steps of {profile['step_ms']:.1f} ms, {profile['python_share']:.1%} Python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("roofline.png"))
    asked = parser.parse_args()
    profiles = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in asked.files[: len(COLOURS)]}
    picture(profiles).savefig(asked.out, dpi=130)
    print(asked.out)


if __name__ == "__main__":
    main()
