"""One step on one device: the plan's deltas, the model once over all segments, then the draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.ops.base import Computed, KVCache, Ops, StepModel, Wanted
from headrace.sampling.step import draws_of, wanted_of
from headrace.words.errors import EngineError
from headrace.words.plan import Emits, RowResult, StepPlan, StepResult
from headrace.worker.drafter import Drafter, NoDrafter
from headrace.worker.inputs import InputBuffers
from headrace.worker.rows import Rows
from headrace.worker.scores import pool, score_prompt
from headrace.worker.verify import Emitting, Masks, emitting, grammar_bits, verify

FILLER = (0,)
"""What a row that failed gets, and nobody will hear of: a step planned before the failure is known reads it."""
_, _, LOGPROBS, HIDDEN = Emits


class _Forwarded(NamedTuple):
    """A step between its two halves."""

    step: int
    emitted: Emitting
    wanted: Wanted
    computed: Computed


class Runner:
    """Runs plans in order, each by `forward`, then `sample`. A step that raised is forgotten: the next plan's
    admissions say all there is to know of its sequences."""

    def __init__(
        self,
        model: StepModel,
        ops: Ops,
        rows: Rows,
        caches: Sequence[KVCache | None],
        max_num_tokens: int,
        drafter: Drafter | None = None,
    ) -> None:
        self.rows = rows
        self._model = model
        self._ops = ops
        self._caches = caches
        self._buffers = InputBuffers(rows, max_num_tokens)
        self._drafter = drafter or NoDrafter()
        self._forwarded: _Forwarded | None = None

    def forward(self, plan: StepPlan) -> None:
        """Applies the plan's deltas, computes all its tokens, and draws where that takes nothing but the logits: what
        comes between this and `sample` changes none of it."""
        self._forwarded = None
        self._zero(plan)
        self.rows.apply(plan)
        self._guess(plan)
        inputs = self._buffers.fill(plan)
        emitted = emitting(plan.segments, self.rows)
        has_scores = any(segment.emits >= LOGPROBS for segment in plan.segments)
        wanted = wanted_of(emitted.inputs, emitted.places, self.rows.sampling, has_scores)
        computed = self._model.run(inputs, self._caches, wanted)
        self._forwarded = _Forwarded(plan.step, emitted, wanted, computed)

    def _zero(self, plan: StepPlan) -> None:
        if plan.zero_blocks:
            for cache in self._caches:
                if cache is not None:
                    self._ops.zero_blocks(cache, plan.zero_blocks)

    def _guess(self, plan: StepPlan) -> None:
        for segment in plan.segments:
            if segment.num_drafts:
                text = self.rows.tokens[segment.row, : self.rows.lengths[segment.row]]
                self.rows.guess(segment, self._drafter.propose(segment, text))

    def sample(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Draws what is not drawn yet, appends the tokens to their rows, and gives the results of those segments that
        have one."""
        step, self._forwarded = self._forwarded, None
        if step is None or step.step != plan.step:
            raise EngineError(f"step {plan.step} is to be sampled, but it was not computed")
        results = self._scores(plan, step)
        self._draw(plan, step, masks or {}, results)
        return StepResult(plan.step, tuple(results[i] for i in sorted(results)))

    def _scores(self, plan: StepPlan, step: _Forwarded) -> dict[int, RowResult]:
        """Results of segments that give more than tokens, by index among the plan's segments."""
        results, hidden, end = {}, step.computed.hidden, 0
        for i, segment in enumerate(plan.segments):
            first, end = end, end + segment.length
            if segment.emits == HIDDEN:
                results[i] = pool(self._ops, hidden, segment, first, self.rows)
            elif segment.emits == LOGPROBS:
                results[i] = score_prompt(self._ops, self._model, hidden, segment, first, self.rows)
        return results

    def _draw(self, plan: StepPlan, step: _Forwarded, masks: Masks, results: dict[int, RowResult]) -> None:
        """Adds the drawn tokens to the results and to the rows."""
        emitted = step.emitted
        if not emitted.which:
            return
        bits = grammar_bits(emitted, plan.segments, masks)
        drawn = draws_of(
            self._ops, step.computed, step.wanted, emitted.places, self.rows.sampling, self.rows.tokens, bits
        )
        for i, first in zip(emitted.which, emitted.firsts, strict=True):
            segment = plan.segments[i]
            row = verify(segment, drawn, first, self.rows)
            self.rows.append(segment.row, row.token_ids or FILLER)
            before = results.get(i)
            if before is None or before.failure is None:
                results[i] = row if before is None else row._replace(prompt_logprobs=before.prompt_logprobs)
