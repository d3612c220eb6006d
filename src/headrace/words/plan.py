"""What the deciding side and the executing side say to each other: a plan of ints and deltas, and its result.

A step is a list of segments. A prompt chunk has length n and perhaps emits nothing, a decode has length 1, a
verification 1 + num_drafts. Nothing else tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from headrace.words.outputs import Finish, Move, TokenLogprobs
from headrace.words.params import MediaSpan, Pooling, Sampling

NULL_BLOCK = 0
"""Block that absorbs padding; never handed out."""
NULL_ROW = 0
"""Row that absorbs padding; never handed out."""


class Emits(IntEnum):
    """What a segment gives back."""

    NOTHING = 0
    TOKEN = 1
    """The token after its last position (and those after accepted drafts)."""
    LOGPROBS = 2
    """Prompt logprobs of every position, and the next token when it ends at the last known token."""
    HIDDEN = 3
    """The last hidden state (`last`) or the sum over the segment (`mean`)."""


class Segment(NamedTuple):
    """Positions [start, start + length) of one sequence, the last `num_drafts` of them guesses."""

    seq_id: int
    epoch: int
    row: int
    start: int
    length: int
    num_drafts: int
    emits: Emits


class Admission(NamedTuple):
    """A sequence takes a row: everything the worker must know of it from now on."""

    seq_id: int
    epoch: int
    row: int
    token_ids: tuple[int, ...]
    """All known tokens: the prompt, and what was generated before a preemption."""
    num_prompt_tokens: int
    block_ids: tuple[int, ...]
    sampling: Sampling | None
    pooling: Pooling | None
    seed: int
    choice: int
    state_slot: int | None = None
    spans: tuple[MediaSpan, ...] = ()
    adapter: str | None = None


class Growth(NamedTuple):
    """Blocks appended to a row's block table."""

    row: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Applied in this order: zero_blocks, retired_rows, admissions, growths, then the segments."""

    step: int
    segments: tuple[Segment, ...]
    admissions: tuple[Admission, ...] = ()
    growths: tuple[Growth, ...] = ()
    retired_rows: tuple[int, ...] = ()
    zero_blocks: tuple[int, ...] = ()
    """Blocks whose last owner ended non-finite; zeroed before anyone reads them."""
    loads: tuple[tuple[int, str], ...] = ()
    saves: tuple[tuple[int, str], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(segment.length for segment in self.segments)

    @property
    def is_empty(self) -> bool:
        return not self.segments

    @property
    def has_drafts(self) -> bool:
        """Such a step is committed before the next one is planned: how many drafts hold is not known before."""
        return any(segment.num_drafts for segment in self.segments)


class RowResult(NamedTuple):
    """What one segment gave. Addressed by (seq_id, epoch), never by position in the batch."""

    seq_id: int
    epoch: int
    token_ids: tuple[int, ...] = ()
    """Accepted drafts, then the drawn token."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry per token, when asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Entries for prompt positions start + 1 … of the segment."""
    hidden: tuple[float, ...] | None = None
    failure: str | None = None
    """Why this row alone failed (its logits were not finite)."""
    num_accepted: int = 0


class StepResult(NamedTuple):
    step: int
    rows: tuple[RowResult, ...]


class TokenEvent(NamedTuple):
    """What happened to one sequence in one step. Exactly one event of a sequence has `finish` set: its last."""

    request_id: int
    choice: int
    time_s: float
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    hidden: tuple[float, ...] | None = None
    """The pooled vector, before normalization; on the last event only."""
    finish: Finish | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    timeline: tuple[Move, ...] = ()
    """Every change of status so far; on the last event only."""


class CacheLayout(NamedTuple):
    """Measured by the worker: how many blocks there are (the null block included), of how many tokens each, and of how
    many bytes in all layers together."""

    num_blocks: int
    block_size: int
    block_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def capacity_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size


class PendingStep(Protocol):
    """A step whose tokens may not exist yet."""

    @property
    def step(self) -> int: ...

    def result(self) -> StepResult:
        """Waits for the step; raises what the device raised."""


class Executor(Protocol):
    """Runs plans in order. `forward` queues the model's work and returns; `sample` queues the draws."""

    def forward(self, plan: StepPlan) -> None: ...

    def sample(self, plan: StepPlan, masks: object | None = None) -> PendingStep: ...

    def close(self) -> None: ...


class StopMatcher(Protocol):
    """Watches one sequence's text for stop strings."""

    def push(self, token_id: int, active: bool) -> str | None:
        """Takes one token; gives the stop string it completed, if `active`."""
