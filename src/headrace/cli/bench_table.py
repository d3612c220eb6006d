"""What a benchmark found, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.report import plural
from headrace.words.errors import ConfigError

ROWS = {
    "ttft_ms": "first token (TTFT)",
    "tpot_ms": "per token after it (TPOT)",
    "itl_ms": "between pieces (ITL)",
    "e2el_ms": "whole request",
}
SHARES = ("mean", "p50", "p90", "p99")


WIDTH = 27
"""Of what a row is called."""


def table(result: dict[str, Any], has_goals: bool = False) -> str:
    """A summary of requests, and how many met the goals where there are any."""
    good = f", {result['request_goodput']:.2f} good ones" if has_goals else ""
    lines = [
        f"{plural(result['completed'], 'request')} in {result['duration_s']:.2f} s, {result['failed']} failed",
        f"{result['output_throughput']:.1f} output tokens/s, {result['total_token_throughput']:.1f} tokens/s in all, "
        f"{result['request_throughput']:.2f} requests/s{good}",
        head(),
    ]
    return "\n".join([*lines, *times(result, ROWS), *(f"error: {text}" for text in result["errors"])])


def head() -> str:
    return f"{'ms':<{WIDTH}}" + "".join(f"{share:>10}" for share in SHARES)


def times(result: Mapping[str, Any], rows: Mapping[str, str]) -> list[str]:
    """One line for each measure that was made: what it is, its mean and its percentiles."""
    return [
        f"{name:<{WIDTH}}" + "".join(f"{result[key][share]:>10.1f}" for share in SHARES)
        for key, name in rows.items()
        if result[key]
    ]


def writable(path: Path | None) -> Path | None:
    """The file of a result, refused before anything is measured where it could not be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError("save_result", f"{str(path)!r} is no file in a folder that is there")
    return path


SaveOption = Annotated[Path | None, typer.Option(help="File for the JSON.", callback=writable)]


def finish(result: dict[str, Any], text: str, as_json: bool, save_result: Path | None) -> int:
    """Prints a result, and keeps it; gives the exit code."""
    print(json.dumps(result) if as_json else text)
    if save_result is not None:
        save_result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result.get("failed") else 0
