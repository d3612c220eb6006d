"""Counters of what the scheduler decided; the engine's metrics are derived from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

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
