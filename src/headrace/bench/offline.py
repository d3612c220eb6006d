"""An engine in this process under load: all prompts at once, or the same few again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.bench.client import Timed
from headrace.bench.load import FIRST_TOKEN_ID, spread, summary
from headrace.bench.profile import profiled, profiler_of
from headrace.llm import LLM
from headrace.words.errors import ConfigError
from headrace.words.outputs import GOOD_ENDS, RequestOutput
from headrace.words.params import SamplingParams

Tell = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of the engine: prompts of random ids, other ones in each round, so that no prefix repeats."""

    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 64
    seed: int = 0

    def prompts(self, vocab_size: int, round_number: int = 0) -> list[dict[str, list[int]]]:
        rng = random.Random(f"{self.seed} {round_number}")
        first = min(FIRST_TOKEN_ID, vocab_size - 1)
        return [
            {"prompt_token_ids": [rng.randrange(first, vocab_size) for _ in range(self.input_len)]}
            for _ in range(self.num_prompts)
        ]

    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.output_len, temperature=0.0, ignore_eos=True, seed=self.seed)


def check(llm: LLM, work: Work, with_profile: bool) -> None:
    """ConfigError when a sequence cannot be as long as asked, or nothing times the ops."""
    if with_profile:
        profiler_of(llm)
    longest = llm.llm_engine.engine.resolved.scheduler.max_model_len
    if work.input_len + work.output_len > longest:
        raise ConfigError(
            "input_len",
            f"{work.input_len} tokens and {work.output_len} of output do not fit max_model_len ({longest}); lower them",
        )


def run(llm: LLM, work: Work, round_number: int, shows: bool = False) -> tuple[list[Timed], float]:
    """One round: every request, and the seconds of the whole."""
    prompts = work.prompts(llm.llm_engine.engine.model.vocab_size, round_number)
    began_s = time.perf_counter()
    outputs = llm.generate(prompts, work.params(), use_tqdm=shows)
    return [timed(output) for output in outputs], time.perf_counter() - began_s


def timed(output: RequestOutput) -> Timed:
    """A request of an engine, told as one of a server is."""
    times, choice = output.metrics, output.outputs[0]
    assert times is not None
    return Timed(
        began_s=times.arrival_s,
        num_prompt_tokens=len(output.prompt_token_ids),
        num_output_tokens=len(choice.token_ids),
        first_s=times.time_to_first_token_s,
        last_s=(times.finished_s or times.arrival_s) - times.arrival_s,
        gaps_s=[after - before for before, after in pairwise(times.token_times_s)],
        error=None if choice.finish_reason in GOOD_ENDS else f"ended with {choice.finish_reason}",
    )


def throughput(llm: LLM, work: Work, num_warmups: int = 1, with_profile: bool = False) -> dict[str, Any]:
    """All prompts at once, after as many small rounds; in the words of a server's summary."""
    check(llm, work, with_profile)
    small = Work(1, work.input_len, min(work.output_len, 4), work.seed)
    for i in range(num_warmups):
        run(llm, small, -1 - i)
    done, seconds, profile = _measure(llm, lambda: run(llm, work, 0, shows=True), with_profile)
    return {**about(llm), **summary(done, seconds), **profile}


def latency(
    llm: LLM,
    work: Work,
    num_rounds: int = 10,
    num_warmups: int = 2,
    tell: Tell = lambda done: None,
    with_profile: bool = False,
) -> dict[str, Any]:
    """A small batch in many rounds: how long each takes, and how its requests fare."""
    check(llm, work, with_profile)
    for i in range(num_warmups):
        run(llm, work, -1 - i)
        tell(i)
    rounds_s: list[float] = []

    def rounds() -> tuple[list[Timed], float]:
        done: list[Timed] = []
        for i in range(num_rounds):
            found, seconds = run(llm, work, i)
            done += found
            rounds_s.append(seconds)
            tell(i)
        return done, sum(rounds_s)

    done, seconds, profile = _measure(llm, rounds, with_profile)
    return {**about(llm), "rounds": num_rounds, "batch_ms": spread(rounds_s), **summary(done, seconds), **profile}


def _measure(
    llm: LLM, work: Callable[[], tuple[list[Timed], float]], with_profile: bool
) -> tuple[list[Timed], float, dict[str, Any]]:
    """What the work gave, its seconds, and what there is to add of a profile."""
    if not with_profile:
        return *work(), {}
    done, seconds, profile = profiled(llm, work)
    return done, seconds, {"profile": profile}


def about(llm: LLM) -> dict[str, Any]:
    """What ran."""
    resolved = llm.llm_engine.engine.resolved
    return {
        "model": resolved.model,
        "backend": resolved.backend,
        "dtype": resolved.dtype,
        "kv_cache_dtype": resolved.kv_cache_dtype,
        "num_threads": resolved.num_threads,
        "max_num_seqs": resolved.scheduler.max_num_seqs,
    }
