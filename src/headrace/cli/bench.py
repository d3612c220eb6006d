"""`headrace bench serve`: load on a server, and what it did with it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.bench.client import Target, Timed
from headrace.bench.load import Goals, Load, run, summary
from headrace.words.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure servers.")
GOALS = {"ttft": "first_s", "tpot": "per_token_s", "e2el": "whole_s"}
ROWS = {
    "ttft_ms": "first token",
    "tpot_ms": "per token after it",
    "itl_ms": "between pieces",
    "e2el_ms": "whole request",
}


@app.callback()
def bench() -> None:
    """Measure servers."""


@app.command()
def serve(
    base_url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="What the server calls its model.")] = None,
    num_prompts: Annotated[int, typer.Option(help="Requests in all.", min=1)] = 100,
    request_rate: Annotated[float, typer.Option(help="Requests a second, Poisson; inf: all at once.")] = math.inf,
    max_concurrency: Annotated[int | None, typer.Option(help="Requests in flight at most.", min=1)] = None,
    random_input_len: Annotated[int, typer.Option(help="Tokens of a prompt.", min=1)] = 128,
    random_output_len: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 64,
    max_token_id: Annotated[int, typer.Option(help="Random ids stay below it.", min=101)] = 1_000,
    ignore_eos: Annotated[bool, typer.Option(help="Go on past the end-of-sequence token.")] = True,
    goodput: Annotated[list[str] | None, typer.Option(help="A goal in ms, as ttft:200, tpot:50 or e2el:2000.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed sends the same requests at the same times.")] = 0,
    api_key: Annotated[str | None, typer.Option(help="Key of the server; default OPENAI_API_KEY.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    save_result: Annotated[Path | None, typer.Option(help="File for the JSON.")] = None,
) -> int:
    """Send streamed completions to a server, ours or another one, and print throughput, latencies and goodput."""
    load = Load(
        model=model,
        num_prompts=num_prompts,
        rate_per_s=_rate(request_rate),
        max_at_once=max_concurrency,
        input_len=random_input_len,
        output_len=random_output_len,
        max_token_id=max_token_id,
        ignore_eos=ignore_eos,
        seed=seed,
    )
    target = Target(base_url, "/v1/completions", api_key or os.environ.get("OPENAI_API_KEY"))
    goals = read_goals(goodput or [])
    with Bar(num_prompts) as bar:
        done, seconds = asyncio.run(run(target, load, bar.tell))
    result = summary(done, seconds, goals)
    print(json.dumps(result) if as_json else table(result))
    if save_result is not None:
        save_result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["failed"] else 0


def _rate(value: float) -> float:
    if not value > 0:
        raise ConfigError("request_rate", f"must be above 0, got {value}")
    return value


def read_goals(texts: list[str]) -> Goals:
    """`ttft:200` is a first token within 200 ms."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            found[GOALS[name]] = float(limit) / 1e3
        except (KeyError, ValueError):
            raise ConfigError("goodput", f"must be NAME:MS with {', '.join(GOALS)}, got {text!r}") from None
    return Goals(**found)


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['completed']} requests in {result['duration_s']:.2f} s, {result['failed']} failed",
        f"{result['output_throughput']:.1f} output tokens/s, {result['total_token_throughput']:.1f} tokens/s in all, "
        f"{result['request_throughput']:.2f} requests/s, {result['request_goodput']:.2f} good ones",
        f"{'ms':<20}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for key, name in ROWS.items():
        values = result[key]
        lines.append(f"{name:<20}" + "".join(f"{values[k]:>10.1f}" for k in ("mean", "p50", "p90", "p99") if values))
    return "\n".join([*lines, *(f"error: {text}" for text in result["errors"])])


class Bar:
    """Requests done, on stderr if that is a terminal."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._bars = Progress(console=console, disable=not sys.stderr.isatty(), transient=True)
        self._task = self._bars.add_task("requests", total=total)

    def tell(self, timed: Timed) -> None:
        self._bars.advance(self._task)

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._bars.stop()
