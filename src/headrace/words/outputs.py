"""What users get back, and the one list of reasons why a request ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class FinishReason(Enum):
    """Why a request ended; the value is the string that users see."""

    STOPPED = "stop"
    LENGTH_CAPPED = "length"
    ABORTED = "abort"
    PROMPT_TOO_LONG = "prompt_length_exceeded"
    PREEMPTED = "insufficient_system_resource"
    MEDIA_FAILED = "media_failed"
    GRAMMAR_FAILED = "grammar_failed"
    TIMED_OUT = "timeout"
    FAILED = "error"


GOOD_ENDS = (FinishReason.STOPPED.value, FinishReason.LENGTH_CAPPED.value)
"""Of a request that got what it asked for."""


class Finish(NamedTuple):
    """The end of one sequence: its reason, what stopped it, and what more can be said."""

    reason: FinishReason
    stop_reason: int | str | None = None
    detail: str | None = None


class Move(NamedTuple):
    """One change of status: monotonic seconds, both statuses (None: not added yet), and the code path that did it."""

    time_s: float
    source: str | None
    target: str
    where: str


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position: the emitted token first, then the most likely ones in falling order."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int
    """Place of the emitted token among all, 1 for the most likely."""
    sum_smaller_probs: float | None = None
    """Mass of the tokens less likely than the emitted one."""
    token_confidence: float | None = None
    """DeepConf: minus the mean log-probability of the 20 most likely tokens."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability (natural log), its rank from 1, and its text and bytes when detokenized."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    bytes: bytes | None = None


PositionLogprobs = Mapping[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One of the n continuations of a request."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    finish_detail: str | None = None
    sum_smaller_probs: list[float] | None = None
    token_confidence: list[float] | None = None
    num_preemptions: int = 0
    timeline: tuple[Move, ...] = ()
    seed: int | None = None
    """The seed that the draws were keyed by, also when the request named none."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request as it stands; final when `finished`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None

    @property
    def finish_detail(self) -> str | None:
        return self.outputs[0].finish_detail if self.outputs else None

    @property
    def num_preemptions(self) -> int:
        return sum(output.num_preemptions for output in self.outputs)

    @property
    def timeline(self) -> tuple[Move, ...]:
        return self.outputs[0].timeline if self.outputs else ()


@dataclass(slots=True)
class EmbeddingOutput:
    """One vector for a prompt: floats of the model's hidden size (or `dimensions`)."""

    request_id: str
    prompt_token_ids: Sequence[int]
    embedding: list[float]
    finished: bool
    finish_reason: str | None = None
    finish_detail: str | None = None
    num_cached_tokens: int = 0
    timeline: tuple[Move, ...] = ()


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in monotonic seconds."""

    arrival_s: float
    enqueued_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def queue_time_s(self) -> float | None:
        return None if self.first_scheduled_s is None else self.first_scheduled_s - self.enqueued_s
