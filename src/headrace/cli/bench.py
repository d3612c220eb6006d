"""`headrace bench`: load on a server, and what it did with it; the engine's benchmarks beside it."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Annotated

import typer

from headrace.bench.client import Target
from headrace.bench.load import Goals, Load, run, summary
from headrace.cli.bar import Bar
from headrace.cli.bench_engine import latency, startup, throughput
from headrace.cli.bench_table import SaveOption, finish, table
from headrace.words.errors import ConfigError, EngineError

app = typer.Typer(no_args_is_help=True, help="Measure engines and servers.")
URL = "http://127.0.0.1:8000"
KEYS = ("HEADRACE_API_KEY", "OPENAI_API_KEY")
GOALS = {"ttft": "first_s", "tpot": "per_token_s", "e2el": "whole_s"}


@app.callback()
def bench() -> None:
    """Measure engines and servers."""


app.command()(throughput)
app.command()(latency)
app.command()(startup)


@app.command()
def serve(
    base_url: Annotated[str, typer.Option("--base-url", "--url", help="Where the server is.")] = URL,
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
    api_key: Annotated[str | None, typer.Option(help=f"Key of the server; default: {' or '.join(KEYS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    save_result: SaveOption = None,
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
    target = Target(base_url, "/v1/completions", api_key or next(filter(None, map(os.environ.get, KEYS)), None))
    goals = read_goals(goodput or [])
    with Bar(num_prompts) as bar:
        done, seconds = asyncio.run(run(target, load, bar.tell))
    result = summary(done, seconds, goals)
    if not result["completed"] and not as_json:
        raise EngineError(f"{base_url} answered none of {num_prompts} requests: {result['errors'][0]}")
    return finish(result, table(result, has_goals=bool(goodput)), as_json, save_result)


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
