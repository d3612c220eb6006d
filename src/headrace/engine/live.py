"""What may be read of a core while it runs in another thread: gauges and lives, never its queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.engine.core import EngineCore
from headrace.words.outputs import Move
from headrace.words.plan import Segment, StepPlan


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


class Prefill(NamedTuple):
    """A part of a plan that computes what is known already: a prompt, or what a preemption lost."""

    request_id: int
    choice: int
    segment: Segment


def prefills(core: EngineCore, plan: StepPlan) -> Iterator[Prefill]:
    """In the core's thread."""
    for segment in plan.segments:
        seq = core.scheduler.roster.sequences.get(segment.seq_id)
        if seq is not None and (is_chunk(segment) or segment.start < len(seq.request.prompt_ids)):
            yield Prefill(seq.request.request_id, seq.choice, segment)


def is_chunk(segment: Segment) -> bool:
    """More than one token that is no guess."""
    return segment.length - segment.num_drafts > 1


def is_alive(core: EngineCore, seq_id: int) -> bool:
    """Whether the sequence has not ended; in the core's thread."""
    return seq_id in core.scheduler.roster.sequences


def is_working(core: EngineCore) -> bool:
    """Whether a step runs or should: only then a core that stands still is a fault. Who stands before a gate waits for
    somebody else."""
    return not core.is_idle or core.num_queued > 0 or core.scheduler.num_running > 0
