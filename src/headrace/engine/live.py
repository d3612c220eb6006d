"""What may be read of a core while it runs in another thread: gauges and lives, never its queue."""

from __future__ import annotations

from typing import NamedTuple

from headrace.engine.core import EngineCore
from headrace.words.outputs import Move


class LiveChoice(NamedTuple):
    """One continuation as the scheduler has it."""

    status: str
    num_computed: int
    num_tokens: int
    num_preemptions: int
    gates: tuple[str, ...]
    timeline: tuple[Move, ...]


def live_choices(core: EngineCore, request_id: int) -> dict[int, LiveChoice]:
    """By choice; those that have ended, or were not read from the inbox yet, are not there."""
    sequences = core.scheduler.roster.requests.get(request_id)
    found: dict[int, LiveChoice] = {}
    for seq in list(sequences.values()) if sequences else ():
        status = "new" if seq.status is None else seq.status.value
        if seq.is_prefilling:
            status = "prefilling"
        found[seq.choice] = LiveChoice(
            status, seq.num_computed, len(seq.tokens), seq.num_preemptions, tuple(seq.gates), tuple(seq.timeline)
        )
    return found


def is_working(core: EngineCore) -> bool:
    """Whether a step runs or should: only then a core that stands still is a fault. Who stands before a gate waits for
    somebody else."""
    return not core.is_idle or core.num_queued > 0 or core.scheduler.num_running > 0
