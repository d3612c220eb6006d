"""Counters of what the scheduler decided; the engine's metrics are derived from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.schedule.sequence import Sequence
from headrace.words.outputs import FinishReason


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the start, but for the gauges in the first lines. Tokens are counted when they are scheduled."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocked: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    accepted: int = 0
    """Sequences added."""
    finished: Counter[FinishReason] = field(default_factory=Counter)
    steps: int = 0
    failed_steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens reached for the first time, computed or cached."""
    recomputed_tokens: int = 0
    """Tokens reached again after a preemption or a failed step, computed or cached."""
    computed_prefill_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    stale_segments: int = 0

    @property
    def cache_usage(self) -> float:
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0

    def count_lookup(self, seq: Sequence) -> None:
        """An admission: the cached positions of the sequence are reached without computing them."""
        if seq.request.reads_cache:
            self.prefix_queries += len(seq.tokens)
        self.cached_tokens += seq.num_computed
        self._reach(seq, 0, seq.num_computed)

    def count_segment(self, seq: Sequence, length: int, num_drafts: int) -> None:
        """The next `length` positions are going to be computed."""
        start = seq.num_computed
        self.draft_tokens += num_drafts
        if start < seq.num_prompt_tokens or start < seq.high_water:
            self.computed_prefill_tokens += self._reach(seq, start, start + length)

    def _reach(self, seq: Sequence, start: int, end: int) -> int:
        """Counts positions [start, end) as prompt tokens reached first, or as tokens reached again; gives their sum."""
        again = max(0, min(end, seq.high_water) - start)
        first = max(0, min(end, seq.num_prompt_tokens) - max(start, seq.high_water))
        self.recomputed_tokens += again
        self.prompt_tokens += first
        return again + first
