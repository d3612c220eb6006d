"""Engines on the same work in turn: medians of rounds, and ratios to the first.

Usage: python -m benchmarks.compare [--rounds 5] [--json FILE] [--plot PNG] NAME=COMMAND [NAME=COMMAND ...]
       python -m benchmarks.compare --read FILE [--plot PNG]      # the table and the picture of earlier figures

Each command runs one engine over all works and prints one JSON object as its last line: {"engine": ..., work:
{"s": seconds, "tok/s": rate}, ...}. Engines alternate, so that a machine that slows down slows all of them; before each
round a plain read of memory is timed, and rounds in which it took over 15 % longer than in the best are left out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROBE_BYTES, TOLERANCE = 256 << 20, 1.15
Round = dict[str, dict[str, float]]
"""Tokens per second by engine and work."""


def probe_s(values: np.ndarray) -> float:
    """Seconds of the best of five reads."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - start)
    return min(times)


def run(command: str) -> dict[str, float]:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {work: entry["tok/s"] for work, entry in found.items() if isinstance(entry, dict)}


def measure(engines: dict[str, str], num_rounds: int) -> list[Round]:
    """The rounds in which the machine was left alone."""
    values = np.ones(PROBE_BYTES // 8)
    rounds: list[tuple[float, Round]] = []
    for number in range(num_rounds):
        probe = probe_s(values)
        rounds.append((probe, {name: run(command) for name, command in engines.items()}))
        print(f"round {number + 1}: read {PROBE_BYTES / probe / 1e9:.1f} GB/s", file=sys.stderr, flush=True)
    best = min(probe for probe, _ in rounds)
    return [found for probe, found in rounds if probe <= best * TOLERANCE]


def table(rounds: list[Round]) -> str:
    """Markdown: a row per work, a column per engine with its median and the first's ratio to it."""
    names = list(rounds[0])
    first = names[0]
    lines = [f"| work | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for work in rounds[0][first]:
        medians = {name: statistics.median(found[name][work] for found in rounds) for name in names}
        cells = [f"{medians[first]:,.1f}"]
        cells += [f"{medians[name]:,.1f} ({medians[first] / medians[name]:.2f} ×)" for name in names[1:]]
        lines.append(f"| {work} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rounds: list[Round], path: Path) -> None:
    """Bars by work: each engine's median as a multiple of the first's, with its tokens per second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names, works = list(rounds[0]), list(rounds[0][next(iter(rounds[0]))])
    height = 0.8 / len(names)
    figure, axes = plt.subplots(figsize=(8, 0.9 * len(works) + 1), layout="constrained")
    for i, name in enumerate(names):
        medians = [statistics.median(found[name][work] for found in rounds) for work in works]
        firsts = [statistics.median(found[names[0]][work] for found in rounds) for work in works]
        places = [at + i * height for at in range(len(works))]
        bars = axes.barh(places, [m / f for m, f in zip(medians, firsts, strict=True)], height * 0.9, label=name)
        axes.bar_label(bars, [f"{median:,.0f}" for median in medians], padding=3, fontsize=8)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(works))], works)
    axes.invert_yaxis()
    axes.set_xlabel(f"tokens per second, as a multiple of {names[0]}'s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.1)
    figure.legend(loc="outside upper center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to keep all figures")
    parser.add_argument("--read", type=Path, help="figures that were kept, instead of engines")
    parser.add_argument("--plot", type=Path, help="where to draw them (takes the extra bench)")
    asked = parser.parse_args()
    if bool(asked.engines) == bool(asked.read):
        parser.error("name engines to run, or figures to read")
    if asked.read:
        rounds = json.loads(asked.read.read_text(encoding="utf-8"))
    else:
        rounds = measure(dict(engine.split("=", 1) for engine in asked.engines), asked.rounds)
        print(f"{len(rounds)} of {asked.rounds} rounds count; tokens per second\n")
    print(table(rounds))
    if asked.json:
        asked.json.write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    if asked.plot:
        plot(rounds, asked.plot)


if __name__ == "__main__":
    main()
