"""Requests at a rate (open loop, Poisson) or as many at once as allowed (closed loop), and what came of them."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.client import Target, Timed, run_one

FIRST_TOKEN_ID = 100
"""Below it vocabularies have their control tokens and bytes."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent. A rate of infinity sends everything at once, as far as `max_at_once` lets it."""

    model: str | None
    num_prompts: int = 100
    rate_per_s: float = math.inf
    max_at_once: int | None = None
    input_len: int = 128
    output_len: int = 64
    max_token_id: int = 1_000
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int = 0


def bodies(load: Load) -> Iterator[dict[str, Any]]:
    """Prompts of random token ids, the same for the same seed."""
    rng = random.Random(load.seed)
    for _ in range(load.num_prompts):
        body: dict[str, Any] = {
            "prompt": [rng.randrange(FIRST_TOKEN_ID, load.max_token_id) for _ in range(load.input_len)],
            "max_tokens": load.output_len,
            "temperature": load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield body | ({"model": load.model} if load.model else {}) | ({"ignore_eos": True} if load.ignore_eos else {})


def starts_s(load: Load) -> Iterator[float]:
    """When each request is sent, in seconds after the first."""
    rng = random.Random(load.seed + 1)
    at_s = 0.0
    for _ in range(load.num_prompts):
        yield at_s
        at_s += rng.expovariate(load.rate_per_s) if math.isfinite(load.rate_per_s) else 0.0


async def run(
    target: Target, load: Load, tell: Callable[[Timed], None] = lambda timed: None
) -> tuple[list[Timed], float]:
    """Every request and the seconds of the whole; a start that is late is not made up for."""
    places = asyncio.Semaphore(load.max_at_once or load.num_prompts)
    began_s = time.perf_counter()
    done: list[Timed] = []

    async def one(body: Mapping[str, Any]) -> None:
        async with places:
            timed = await run_one(target, body, began_s)
        done.append(timed)
        tell(timed)

    async with asyncio.TaskGroup() as group:
        for at_s, body in zip(starts_s(load), bodies(load), strict=True):
            wait_s = began_s + at_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(body))
    return done, time.perf_counter() - began_s


@dataclass(frozen=True, slots=True)
class Goals:
    """What makes a request a good one, in seconds; None asks for nothing."""

    first_s: float | None = None
    per_token_s: float | None = None
    whole_s: float | None = None

    def are_met(self, timed: Timed) -> bool:
        pairs = (
            (self.first_s, timed.first_s),
            (self.per_token_s, timed.per_token_s),
            (self.whole_s, timed.last_s),
        )
        return timed.error is None and all(goal is None or (got or 0.0) <= goal for goal, got in pairs)


def summary(done: Sequence[Timed], seconds: float, goals: Goals = Goals()) -> dict[str, Any]:
    """The run in numbers; times in milliseconds."""
    good = [timed for timed in done if timed.error is None]
    num_output = sum(timed.num_output_tokens for timed in good)
    num_prompt = sum(timed.num_prompt_tokens for timed in good)
    return {
        "completed": len(good),
        "failed": len(done) - len(good),
        "duration_s": seconds,
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        "request_goodput": sum(map(goals.are_met, done)) / seconds,
        "ttft_ms": spread([t.first_s for t in good]),
        "tpot_ms": spread([t.per_token_s for t in good]),
        "itl_ms": spread([gap for t in good for gap in t.gaps_s]),
        "e2el_ms": spread([t.last_s for t in good]),
        "errors": sorted({timed.error for timed in done if timed.error})[:5],
    }


def spread(seconds: Sequence[float | None]) -> dict[str, float]:
    """Mean and percentiles (nearest rank) in milliseconds; empty without a value."""
    values = sorted(1e3 * value for value in seconds if value is not None)
    if not values:
        return {}
    ranks = {f"p{share}": values[max(0, math.ceil(share / 100 * len(values)) - 1)] for share in (50, 90, 99)}
    return {"mean": math.fsum(values) / len(values), **ranks}
