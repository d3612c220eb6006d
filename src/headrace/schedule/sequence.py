"""One continuation of one request: its tokens, its place, and the table of moves it may make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from headrace.words.outputs import Finish, Move, TokenLogprobs
from headrace.words.params import Request
from headrace.words.plan import StopMatcher


class Status(Enum):
    """Where a sequence stands. Two names are derived: PREFILLING is RUNNING with more than one known token to compute,
    PREEMPTED is WAITING after having run, owning nothing."""

    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


MOVES: dict[Status | None, frozenset[Status]] = {
    None: frozenset({Status.BLOCKED, Status.WAITING, Status.FINISHED}),
    Status.BLOCKED: frozenset({Status.WAITING, Status.FINISHED}),
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.WAITING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}
"""Every change of status there is (None: not added yet)."""


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is the prompt and what was committed; `num_computed` positions have been scheduled for computation.

    `pending` counts tokens that are being drawn by steps in flight. `epoch` is raised whenever what is in flight
    becomes void. `entries` are the prefix entries of the first `len(entries)` blocks. What every step asks of the
    request, which never changes, is kept here.
    """

    seq_id: int
    request: Request
    choice: int
    arrival: int
    enqueued_s: float
    tokens: list[int] = field(default_factory=list)
    matcher: StopMatcher | None = None
    status: Status | None = None
    epoch: int = 0
    gates: dict[str, None] = field(default_factory=dict)
    row: int | None = None
    admission: int = 0
    block_ids: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    memo: list[int] = field(default_factory=list)
    num_computed: int = 0
    pending: int = 0
    last_step: int = 0
    num_cached_tokens: int | None = None
    high_water: int = 0
    num_preemptions: int = 0
    num_failures: int = 0
    group: int = 0
    suspect_until: int = 0
    was_preempted: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[float] | None = None
    finish: Finish | None = None
    timeline: list[Move] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)
    max_tokens: int = field(init=False)
    is_scoring: bool = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.num_prompt_tokens = len(self.request.prompt_ids)
        self.max_tokens = self.request.max_tokens
        self.is_scoring = sampling is not None and sampling.prompt_logprobs is not None

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_known(self) -> int:
        """Tokens that exist or are being drawn."""
        return len(self.tokens) + self.pending

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) + self.pending - self.num_computed

    @property
    def is_prefilling(self) -> bool:
        return self.status is Status.RUNNING and self.num_uncomputed > 1

    def move(self, target: Status, clock: Callable[[], float], where: str) -> None:
        """Changes the status along MOVES and notes it; only the scheduler calls this."""
        assert target in MOVES[self.status], f"sequence {self.seq_id}: {self.status} -> {target} at {where}"
        source = None if self.status is None else self.status.value
        self.timeline.append(Move(clock(), source, target.value, where))
        self.status = target
