"""A plan while it is being made."""

from __future__ import annotations

from headrace.schedule.sequence import Sequence
from headrace.words.plan import Admission, Emits, Growth, Segment, StepPlan

NOTHING, TOKEN, LOGPROBS, HIDDEN = Emits


class PlanDraft:
    """Collects one step's segments and deltas, and counts its token budget down."""

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.may_admit = True
        self.segments: list[Segment] = []
        self.admissions: list[Admission] = []
        self.growths: list[Growth] = []

    def seal(self, retired_rows: tuple[int, ...], zero_blocks: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            step=self.step,
            segments=tuple(self.segments),
            admissions=tuple(self.admissions),
            growths=tuple(self.growths),
            retired_rows=retired_rows,
            zero_blocks=zero_blocks,
        )

    def admit(self, seq: Sequence) -> None:
        assert seq.row is not None
        request = seq.request
        self.admissions.append(
            Admission(
                seq_id=seq.seq_id,
                epoch=seq.epoch,
                row=seq.row,
                token_ids=tuple(seq.tokens),
                num_prompt_tokens=seq.num_prompt_tokens,
                block_ids=tuple(seq.block_ids),
                sampling=request.sampling,
                pooling=request.pooling,
                seed=request.seed,
                choice=seq.choice,
                spans=request.spans,
                adapter=request.adapter,
            )
        )

    def grow(self, seq: Sequence, block_ids: tuple[int, ...]) -> None:
        assert seq.row is not None
        self.growths.append(Growth(seq.row, block_ids))

    def compute(self, seq: Sequence, length: int, num_drafts: int) -> None:
        """Schedules the next `length` positions: `computed` moves now, tokens at commit."""
        assert seq.row is not None
        start = seq.num_computed
        ends_known = start + length - num_drafts == len(seq.tokens) + seq.pending
        emits = what_it_emits(seq, start, ends_known)
        self.segments.append(Segment(seq.seq_id, seq.epoch, seq.row, start, length, num_drafts, emits))
        self.budget -= length
        seq.num_computed = start + length
        seq.last_step = self.step
        if ends_known and seq.max_tokens:
            seq.pending += 1 + num_drafts


def what_it_emits(seq: Sequence, start: int, ends_known: bool) -> Emits:
    """What a segment from `start` must give back, `ends_known` when it reaches the last known token."""
    pooling = seq.request.pooling
    if pooling is not None:
        return HIDDEN if ends_known or pooling.pooling == "mean" else NOTHING
    if seq.is_scoring and len(seq.prompt_logprobs) < seq.num_prompt_tokens - 1 > start:
        return LOGPROBS
    return TOKEN if ends_known and seq.max_tokens else NOTHING
