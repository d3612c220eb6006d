"""The scheduler: decides each step's plan and takes its result back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.schedule import policy
from headrace.schedule.commit import judge
from headrace.schedule.deadlines import Limit
from headrace.schedule.draft import PlanDraft
from headrace.schedule.roster import MatcherFactory, Roster
from headrace.schedule.sequence import Sequence, Status
from headrace.schedule.stats import SchedulerStats
from headrace.schedule.suspects import Suspects
from headrace.words.config import SchedulerConfig
from headrace.words.log import get_logger
from headrace.words.outputs import Finish, FinishReason
from headrace.words.params import Request
from headrace.words.plan import CacheLayout, RowResult, Segment, StepPlan, StepResult, TokenEvent

log = get_logger(__name__)


class Scheduler:
    """One device's requests. Every call returns at once; events of everything that happened come with `commit`.

    `clock` gives monotonic seconds. `make_matcher` gives a watcher for the stop strings of a request's text.
    With `ordered_stream` False a step holds a lease on its blocks until it is committed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        layout: CacheLayout,
        clock: Callable[[], float] = time.monotonic,
        make_matcher: MatcherFactory = lambda request: None,
        ordered_stream: bool = True,
    ) -> None:
        self.config = config
        self.clock = clock
        self.roster = Roster(config, layout, clock, make_matcher)
        self.cache = self.roster.cache
        self.queue = self.roster.queue
        self.running = self.roster.running
        self.suspects = Suspects()
        self.in_flight: dict[int, StepPlan] = {}
        self._ordered_stream = ordered_stream
        self._zero_again: tuple[int, ...] = ()
        self._is_short = False
        self._next_step = 1
        self._attempts = policy.AttemptPoints(
            config.attempt_max_steps, config.attempt_max_wait_s, config.attempt_target_tokens
        )

    def add(self, request: Request) -> None:
        """Takes a validated request: n sequences that wait, are blocked behind gates, or are refused for ever."""
        assert request.request_id not in self.roster.requests, f"request {request.request_id} exists"
        refusal = policy.refusal(request, self.config, self.cache.pool.num_blocks - 1, self.cache.block_size)
        for seq in [self.roster.enter(request, choice) for choice in range(request.n)]:
            if refusal is not None:
                self.roster.finish(seq, Finish(FinishReason.PROMPT_TOO_LONG, None, refusal), "add: can never fit")
            elif request.gates:
                self.roster.block(seq, "add: gates are closed")
            else:
                self.roster.wait(seq, "add")

    def abort(self, request_id: int, detail: str | None = None) -> None:
        """Ends a request in whatever state it is; an unknown or finished one is no error."""
        for seq in list(self.roster.requests.get(request_id, {}).values()):
            self.roster.finish(seq, Finish(FinishReason.ABORTED, None, detail), "abort")

    def gate_ready(self, request_id: int, gate: str) -> bool:
        """Opens one gate; with the last one the sequences wait. False: nobody waits for it, its result is void."""
        seqs = self._behind(request_id, gate)
        for seq in seqs:
            self.roster.open_gate(seq, gate)
        return bool(seqs)

    def gate_fail(self, request_id: int, gate: str, detail: str, reason: FinishReason | None = None) -> bool:
        """What stands behind a gate cannot be had: the request ends. False: nobody waits for it."""
        seqs = self._behind(request_id, gate)
        for seq in seqs:
            finish = Finish(reason or policy.gate_reason(gate), None, detail)
            self.roster.finish(seq, finish, f"gate failed: {gate}")
        return bool(seqs)

    def _behind(self, request_id: int, gate: str) -> list[Sequence]:
        return [seq for seq in self.roster.requests.get(request_id, {}).values() if gate in seq.gates]

    def schedule(self) -> StepPlan:
        """The next step's plan; empty when there is nothing to compute. An empty plan is not to be executed."""
        self._expire()
        draft = PlanDraft(self._next_step, self.config.max_num_batched_tokens)
        self._fill(draft)
        if not draft.segments:
            return draft.seal((), ())
        retired_rows = tuple(dict.fromkeys(self.roster.retired_rows))
        plan = draft.seal(retired_rows, self._zero_again + self.cache.take_zero_blocks())
        self.roster.retired_rows.clear()
        self._zero_again = ()
        self._next_step += 1
        self.in_flight[plan.step] = plan
        self.roster.counters.steps += 1
        if not self._ordered_stream:
            self._lease_step(plan)
        return plan

    def _expire(self) -> None:
        for seq, limit in self.roster.deadlines.due(self.clock()):
            request = seq.request
            if limit is Limit.GATE:
                gate = next(iter(seq.gates))
                detail = f"{gate} was not ready within {request.gate_timeout_s} s"
                finish = Finish(policy.gate_reason(gate), None, detail)
            elif limit is Limit.QUEUE:
                detail = f"waited longer than the queue timeout of {request.queue_timeout_s} s"
                finish = Finish(FinishReason.TIMED_OUT, None, detail)
            else:
                finish = Finish(FinishReason.TIMED_OUT, None, f"took longer than its timeout of {request.timeout_s} s")
            self.roster.finish(seq, finish, f"deadline: {limit.value}")

    def _fill(self, draft: PlanDraft) -> None:
        """The step of those whom nobody suspects or of a group of suspects, whoever's turn it is and has work."""
        was_short, self._is_short = self._is_short, False
        for group in self.suspects.turns(self.running.values(), self.queue.head, is_repeated=was_short):
            if not draft.segments:
                self._fill_with(draft, group, was_short)

    def _fill_with(self, draft: PlanDraft, group: int, was_short: bool) -> None:
        """Running sequences first, then waiting ones while budget lasts; none is admitted in a step that preempted."""
        keep = policy.keep_order(self.running.values(), self.config.victim_policy)
        seqs = self.suspects.members(keep, group)
        if self.config.prefill_policy == "first" and not was_short:
            self._extend(draft, [seq for seq in seqs if seq.num_uncomputed > 1], list(keep))
            self._admit(draft, group)
            if not draft.segments:
                self._extend(draft, seqs, list(keep))
            return
        may_prefill = self.config.prefill_policy != "attempt" or group > 0 or self._is_attempt_point()
        self._extend(draft, seqs, list(keep))
        if may_prefill:
            self._admit(draft, group)

    def _is_attempt_point(self) -> bool:
        num_prefilling = sum(seq.num_uncomputed > 1 for seq in self.running.values())
        num_decoding = len(self.running) - num_prefilling
        return self._attempts.is_due(
            self.clock(), len(self.queue), self.queue.num_tokens, num_decoding, num_prefilling
        )

    def _extend(self, draft: PlanDraft, order: list[Sequence], keep: list[Sequence]) -> None:
        """One token for each decode, prompt chunks from what the decodes leave. The last of `keep` is the victim."""
        needs = [seq.num_uncomputed for seq in order]
        num_decodes = needs.count(1)
        for seq, need in zip(order, needs, strict=True):
            if need <= 0 or seq.status is not Status.RUNNING or draft.budget <= 0:
                continue
            if need == 1:
                num_decodes -= 1
                if seq.pending and self._surely_ends(seq):
                    continue
                num_drafts = self._drafts_for(seq, draft.budget - num_decodes) if self.config.num_drafts else 0
                self._extend_by(draft, seq, 1 + num_drafts, num_drafts, keep)
            elif (length := policy.chunk_length(seq, draft.budget - num_decodes)) > 0:
                self._extend_by(draft, seq, length, 0, keep)
            elif draft.budget > num_decodes:
                draft.may_admit = False  # an atomic span needs a larger share, which newcomers would take for ever

    def _surely_ends(self, seq: Sequence) -> bool:
        """The token in flight is the last that the limits allow: another step would be wasted."""
        num_known = len(seq.tokens) + seq.pending
        return num_known - seq.num_prompt_tokens >= seq.max_tokens or num_known >= self.config.max_model_len

    def _drafts_for(self, seq: Sequence, budget: int) -> int:
        """Drafts stand only behind known tokens (nothing is in flight), never beyond the sequence's end, and take no
        block that is not free."""
        if self.in_flight:
            return 0
        room = min(seq.max_tokens - seq.num_output_tokens, self.config.max_model_len - len(seq.tokens))
        num_drafts = max(0, min(self.config.num_drafts, room - 1, budget - 1))
        return num_drafts if self.cache.has_room(seq, seq.num_computed + 1 + num_drafts) else 0

    def _extend_by(
        self, draft: PlanDraft, seq: Sequence, length: int, num_drafts: int, keep: list[Sequence]
    ) -> None:
        """Schedules `length` more positions, with blocks taken from the least worth keeping if need be."""
        end = seq.num_computed + length
        if end <= len(seq.block_ids) * self.cache.block_size or self._grow(draft, seq, end, keep):
            self._compute(draft, seq, length, num_drafts)

    def _grow(self, draft: PlanDraft, seq: Sequence, num_tokens: int, keep: list[Sequence]) -> bool:
        while (new := self.cache.grow(seq, num_tokens)) is None:
            if len(self.running) == 1:
                self._give_up(seq)
                return False
            victim = self._pop_victim(keep)
            self._preempt(victim, draft)
            if victim is seq:
                return False
        draft.grow(seq, new)
        return True

    def _pop_victim(self, keep: list[Sequence]) -> Sequence:
        while (seq := keep.pop()).status is not Status.RUNNING:
            pass
        return seq

    def _give_up(self, seq: Sequence) -> None:
        """Nobody is left to preempt: unless a lease will give blocks back, this sequence can never go on.

        What a lease gives back is for this sequence: until it has got it, nobody is admitted.
        """
        if self.cache.pool.has_leases:
            self._is_short = True
            return
        blocks = self.roster.counters.num_blocks
        detail = f"the sequence alone needs more than the {blocks} cache blocks there are; raise kv_cache_memory_bytes"
        self.roster.finish(seq, Finish(FinishReason.PREEMPTED, None, detail), "schedule: nobody left to preempt")

    def _preempt(self, seq: Sequence, draft: PlanDraft) -> None:
        draft.may_admit = False
        self.roster.counters.preemptions += 1
        seq.num_preemptions += 1
        limit = self.config.max_preemptions
        if self.config.preemption_policy == "recompute" and (limit is None or seq.num_preemptions <= limit):
            log.info("request %s preempted and will be recomputed", seq.request.client_id)
            self.roster.send_back(seq, "schedule: preempted for blocks")
            return
        log.warning("request %s preempted and stops", seq.request.client_id)
        detail = f"preempted for want of cache blocks (time {seq.num_preemptions}); raise kv_cache_memory_bytes"
        self.roster.finish(seq, Finish(FinishReason.PREEMPTED, None, detail), "schedule: preempted and stops")

    def _admit(self, draft: PlanDraft, group: int) -> None:
        while draft.may_admit and draft.budget > 0 and len(self.running) < self.config.max_num_seqs:
            seq = self.queue.head()
            if seq is None or seq.group != group or not self._take_place(seq, draft):
                return

    def _take_place(self, seq: Sequence, draft: PlanDraft) -> bool:
        """WAITING to RUNNING if its blocks fit now; else nothing is taken."""
        if not self.cache.admit(seq):
            return False
        if (length := policy.chunk_length(seq, draft.budget)) <= 0:
            self.cache.release(seq)
            return False
        self.roster.run(seq, "schedule: admitted")
        self.roster.counters.count_lookup(seq)
        draft.admit(seq)
        self._compute(draft, seq, length, 0)
        return True

    def _compute(self, draft: PlanDraft, seq: Sequence, length: int, num_drafts: int) -> None:
        self.roster.counters.count_segment(seq, length, num_drafts)
        draft.compute(seq, length, num_drafts)
        self.cache.publish(seq)

    def _lease_step(self, plan: StepPlan) -> None:
        sequences = self.roster.sequences
        held = [block for segment in plan.segments for block in sequences[segment.seq_id].block_ids]
        self.cache.pool.lease(("step", plan.step), held)

    def commit(self, result: StepResult | None) -> list[TokenEvent]:
        """Takes a step's result and hands over all events since the last call. Rows of a stale epoch change nothing."""
        plan = None if result is None else self.in_flight.pop(result.step, None)
        if plan is not None and result is not None:
            rows = {row.seq_id: row for row in result.rows}
            for segment in plan.segments:
                self._commit_segment(segment, rows.get(segment.seq_id))
            self.cache.confirm(plan.step)
            self._close_step(plan)
        return self.flush()

    def _commit_segment(self, segment: Segment, row: RowResult | None) -> None:
        seq = self.roster.sequences.get(segment.seq_id)
        if seq is None or seq.epoch != segment.epoch:
            self.roster.counters.stale_segments += 1
            return
        if row is not None and row.epoch != segment.epoch:
            row = None
        outcome = judge(seq, segment, row, self.config)
        if outcome is None:
            self.suspects.acquit(seq, segment.start + segment.length)
            return
        told, end = outcome
        counters = self.roster.counters
        counters.generated_tokens += len(told.token_ids)
        counters.accepted_tokens += told.num_accepted
        self.suspects.acquit(seq, segment.start + segment.length)
        if told.failure is None:
            self.cache.publish(seq)
        else:
            self.cache.condemn(seq)
        if end is None:
            self.roster.emit(seq, told)
        else:
            finish, where = end
            self.roster.finish(seq, finish, where, told)

    def fail(self, step: int, detail: str, is_fault: bool = True) -> None:
        """A step raised: its rows are recomputed, apart from others; one that fails again and alone ends. Later steps
        are void too. Of what is no fault (an interrupt) no row is suspected."""
        if step not in self.in_flight:
            return
        self.roster.counters.failed_steps += 1
        log.error("step %d failed and its rows are recomputed: %s", step, detail)
        for number in sorted(s for s in self.in_flight if s >= step):
            plan = self.in_flight.pop(number)
            self.cache.revoke(number)
            self._zero_again += plan.zero_blocks
            self.roster.retired_rows.extend(plan.retired_rows)
            rows = self._live_rows(plan)
            culprits = self.suspects.blame(rows) if is_fault and number == step else ()
            for seq, _ in rows:
                self._retry(seq, detail, seq in culprits)
            self._close_step(plan)

    def _live_rows(self, plan: StepPlan) -> list[tuple[Sequence, Segment]]:
        """The sequences of a plan for which it is not void, each with its segment."""
        found = [(self.roster.sequences.get(segment.seq_id), segment) for segment in plan.segments]
        return [(seq, segment) for seq, segment in found if seq is not None and seq.epoch == segment.epoch]

    def _retry(self, seq: Sequence, detail: str, is_culprit: bool) -> None:
        self.cache.pool.soil(seq.block_ids)
        if is_culprit:
            self.roster.finish(seq, Finish(FinishReason.FAILED, None, detail), "fail: failed again, alone")
        else:
            self.roster.send_back(seq, "fail: step failed, to be recomputed")

    def _close_step(self, plan: StepPlan) -> None:
        if not self._ordered_stream:
            self.cache.pool.end_lease(("step", plan.step))

    def flush(self) -> list[TokenEvent]:
        """Events that no step will bring: aborts, refusals, timeouts."""
        events, self.roster.events = self.roster.events, []
        return events

    def has_unfinished(self) -> bool:
        """Whether a sequence lives or an event has not been handed over."""
        return bool(self.roster.sequences) or bool(self.roster.events)

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `schedule` must be called at the latest, if anything has a time limit."""
        return self.roster.deadlines.next_s()

    def stats(self) -> SchedulerStats:
        """A copy of the counters with the gauges filled in."""
        counters = self.roster.counters
        return replace(
            counters,
            finished=counters.finished.copy(),
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocked=self.num_blocked,
            num_used_blocks=self.cache.pool.num_used,
        )

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def num_blocked(self) -> int:
        return len(self.roster.blocked)

    def live(self) -> Iterable[Sequence]:
        """Every sequence that is not finished."""
        return self.roster.sequences.values()
