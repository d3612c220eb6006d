"""What commands print about outputs: the speed for people, everything for machines."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from headrace.words.outputs import GOOD_ENDS, CompletionOutput, Logprob, RequestOutput


def plural(number: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def read(self) -> float:
        return time.monotonic() - self._started_s


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """Of one command: tokens are summed over requests, the first token is the earliest."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    seconds: float
    tokens_per_s: float
    time_to_first_token_s: float | None

    def line(self) -> str:
        cached = f" ({self.num_cached_tokens} cached)" if self.num_cached_tokens else ""
        first = self.time_to_first_token_s
        return (
            f"{plural(self.num_prompt_tokens, 'prompt token')}{cached}, "
            f"{plural(self.num_output_tokens, 'output token')}, "
            f"{self.tokens_per_s:.1f} tok/s"
            + (f", time to first token {first:.3f} s" if first is not None else "")
        )


def speed(outputs: Sequence[RequestOutput], seconds: float) -> Speed:
    """Output tokens per second of the whole, prompts included."""
    num_outputs = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    firsts = [output.metrics.time_to_first_token_s for output in outputs if output.metrics]
    return Speed(
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        num_output_tokens=num_outputs,
        seconds=seconds,
        tokens_per_s=num_outputs / seconds if seconds > 0 else 0.0,
        time_to_first_token_s=min((first for first in firsts if first is not None), default=None),
    )


def bad_ends(outputs: Sequence[RequestOutput]) -> list[str]:
    """One line for each continuation that did not end as it should."""
    return [
        f"request {output.request_id} ended with {choice.finish_reason}"
        + (f": {choice.finish_detail}" if choice.finish_detail else "")
        for output in outputs
        for choice in output.outputs
        if choice.finish_reason not in GOOD_ENDS
    ]


def as_json(model: str, outputs: Sequence[RequestOutput], seconds: float) -> dict[str, Any]:
    return {
        "model": model,
        "results": [_request(output) for output in outputs],
        "speed": dataclasses.asdict(speed(outputs, seconds)),
    }


def _request(output: RequestOutput) -> dict[str, Any]:
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
        "outputs": [_choice(choice) for choice in output.outputs],
    }


def _choice(choice: CompletionOutput) -> dict[str, Any]:
    shaped = {
        "index": choice.index,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "finish_detail": choice.finish_detail,
        "num_preemptions": choice.num_preemptions,
        "seed": choice.seed,
        "timeline": [move._asdict() for move in choice.timeline],
    }
    if choice.logprobs is not None:
        shaped["cumulative_logprob"] = choice.cumulative_logprob
        shaped["logprobs"] = [{str(i): _logprob(p) for i, p in position.items()} for position in choice.logprobs]
    return shaped


def _logprob(entry: Logprob) -> dict[str, Any]:
    return {
        "logprob": entry.logprob,
        "rank": entry.rank,
        "token": entry.decoded_token,
        "bytes": None if entry.bytes is None else list(entry.bytes),
    }
