"""The scheduler: decides each step's plan, takes its result back, and is the only one who changes a status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.schedule import policy
from headrace.schedule.cache_manager import CacheManager
from headrace.schedule.commit import Outcome, judge
from headrace.schedule.deadlines import Deadlines, Limit
from headrace.schedule.draft import PlanDraft
from headrace.schedule.queue import WaitingQueue
from headrace.schedule.sequence import Sequence, Status
from headrace.schedule.stats import SchedulerStats
from headrace.words.config import SchedulerConfig
from headrace.words.log import get_logger
from headrace.words.outputs import Finish, FinishReason
from headrace.words.params import Request
from headrace.words.plan import CacheLayout, RowResult, Segment, StepPlan, StepResult, StopMatcher, TokenEvent

log = get_logger(__name__)
MatcherFactory = Callable[[Request], StopMatcher | None]


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
        self.cache = CacheManager(layout, config.enable_prefix_caching)
        self.queue = WaitingQueue(config.scheduling_policy, config.max_overtakes)
        self.running: dict[int, Sequence] = {}
        self.blocked: dict[int, Sequence] = {}
        self.sequences: dict[int, Sequence] = {}
        self.requests: dict[int, dict[int, Sequence]] = {}
        self.counters = SchedulerStats(num_blocks=layout.num_blocks - 1)
        self._make_matcher = make_matcher
        self._ordered_stream = ordered_stream
        self._free_rows = list(range(config.max_num_seqs, 0, -1))
        self._retired_rows: list[int] = []
        self._zero_again: tuple[int, ...] = ()
        self._in_flight: dict[int, StepPlan] = {}
        self._deadlines = Deadlines()
        self._attempts = policy.AttemptPoints(
            config.attempt_max_steps, config.attempt_max_wait_s, config.attempt_target_tokens
        )
        self._events: list[TokenEvent] = []
        self._next_seq_id = 1
        self._next_admission = 1
        self._next_step = 1

    # Front door

    def add(self, request: Request) -> None:
        """Takes a validated request: n sequences that wait, are blocked behind gates, or are refused for ever."""
        assert request.request_id not in self.requests, f"request {request.request_id} exists"
        refusal = policy.refusal(request, self.config, self.cache.pool.num_blocks - 1, self.cache.block_size)
        self.requests[request.request_id] = {}
        for choice in range(request.n):
            seq = self._enter(request, choice)
            if refusal is not None:
                self._finish(seq, Finish(FinishReason.PROMPT_TOO_LONG, None, refusal), "add: can never fit")
            elif request.gates:
                seq.gates = dict.fromkeys(request.gates)
                seq.move(Status.BLOCKED, self.clock, "add: gates are closed")
                self.blocked[seq.seq_id] = seq
            else:
                self._wait(seq, "add")

    def _enter(self, request: Request, choice: int) -> Sequence:
        seq_id, self._next_seq_id = self._next_seq_id, self._next_seq_id + 1
        seq = Sequence(seq_id, request, choice, arrival=seq_id, enqueued_s=self.clock())
        seq.tokens = list(request.prompt_ids)
        seq.matcher = self._make_matcher(request)
        self.sequences[seq_id] = seq
        self.requests[request.request_id][seq_id] = seq
        self.counters.accepted += 1
        self._deadlines.add(seq)
        return seq

    def _wait(self, seq: Sequence, where: str) -> None:
        seq.move(Status.WAITING, self.clock, where)
        self.queue.push(seq)

    def abort(self, request_id: int, detail: str | None = None) -> None:
        """Ends a request in whatever state it is; an unknown or finished one is no error."""
        for seq in list(self.requests.get(request_id, {}).values()):
            self._finish(seq, Finish(FinishReason.ABORTED, None, detail), "abort")

    def gate_ready(self, request_id: int, gate: str) -> bool:
        """Opens one gate; with the last one the sequences wait. False when nobody waits for it (then its result is void)."""
        seqs = [seq for seq in self.requests.get(request_id, {}).values() if gate in seq.gates]
        for seq in seqs:
            del seq.gates[gate]
            if not seq.gates:
                del self.blocked[seq.seq_id]
                self._wait(seq, f"gate ready: {gate}")
        return bool(seqs)

    def gate_fail(self, request_id: int, gate: str, detail: str, reason: FinishReason | None = None) -> bool:
        """What stands behind a gate cannot be had: the request ends. False when nobody waits for it."""
        seqs = [seq for seq in self.requests.get(request_id, {}).values() if gate in seq.gates]
        for seq in seqs:
            self._finish(seq, Finish(reason or policy.gate_reason(gate), None, detail), f"gate failed: {gate}")
        return bool(seqs)

    # One step

    def schedule(self) -> StepPlan:
        """The next step's plan; empty when there is nothing to compute. An empty plan is not to be executed."""
        self._expire()
        draft = PlanDraft(self._next_step, self.config.max_num_batched_tokens)
        self._fill(draft)
        if not draft.segments:
            return draft.seal((), ())
        plan = draft.seal(tuple(self._retired_rows), self._zero_again + self.cache.take_zero_blocks())
        self._retired_rows, self._zero_again = [], ()
        self._next_step += 1
        self._in_flight[plan.step] = plan
        self.counters.steps += 1
        if not self._ordered_stream:
            self._lease_step(plan)
        return plan

    def _fill(self, draft: PlanDraft) -> None:
        """Running sequences first, then waiting ones while the budget lasts; nobody is admitted in a step that preempted."""
        seqs = policy.keep_order(self.running.values(), self.config.victim_policy)
        if self.config.prefill_policy == "first":
            self._extend(draft, [seq for seq in seqs if seq.num_uncomputed > 1])
            if not draft.has_preempted:
                self._admit(draft)
            if not draft.segments:
                self._extend(draft, seqs)
            return
        if self.config.prefill_policy == "attempt" and not self._is_attempt_point():
            self._extend(draft, seqs)
            return
        self._extend(draft, seqs)
        if not draft.has_preempted:
            self._admit(draft)

    def _is_attempt_point(self) -> bool:
        num_prefilling = sum(seq.num_uncomputed > 1 for seq in self.running.values())
        num_decoding = len(self.running) - num_prefilling
        return self._attempts.is_due(
            self.clock(), len(self.queue), self.queue.num_tokens, num_decoding, num_prefilling
        )

    def _extend(self, draft: PlanDraft, order: list[Sequence]) -> None:
        """One token for each decode, chunks of prompts from what the decodes leave. `order` ends with the first victim."""
        keep = list(order)
        num_decodes = sum(seq.num_uncomputed == 1 for seq in order)
        for seq in order:
            need = seq.num_uncomputed
            if seq.status is not Status.RUNNING or need <= 0:
                continue
            if need == 1:
                num_decodes -= 1
                if self._surely_ends(seq):
                    continue
                length, num_drafts = 1, self._drafts_for(seq, draft.budget - num_decodes)
            else:
                length, num_drafts = policy.chunk_length(seq, draft.budget - num_decodes), 0
            if draft.budget <= 0 or length <= 0:
                continue
            if num_drafts and not self._has_room(seq, length + num_drafts):
                num_drafts = 0
            if self._make_room(seq, length + num_drafts, draft, keep):
                self._compute(draft, seq, length + num_drafts, num_drafts)

    def _surely_ends(self, seq: Sequence) -> bool:
        """The token in flight is the last that the limits allow: another step would be wasted."""
        num_outputs = seq.num_output_tokens + seq.pending
        return seq.pending > 0 and (
            num_outputs >= seq.request.max_tokens or seq.num_known >= self.config.max_model_len
        )

    def _drafts_for(self, seq: Sequence, budget: int) -> int:
        """Drafts only beside known tokens: never while a token is in flight, never beyond the sequence's end."""
        if not self.config.num_drafts or self._in_flight:
            return 0
        room = min(seq.request.max_tokens - seq.num_output_tokens, self.config.max_model_len - len(seq.tokens))
        return max(0, min(self.config.num_drafts, room - 1, budget - 1))

    def _has_room(self, seq: Sequence, length: int) -> bool:
        num_new = self.cache.blocks_for(seq.num_computed + length) - len(seq.block_ids)
        return num_new <= self.cache.pool.num_free

    def _make_room(self, seq: Sequence, length: int, draft: PlanDraft, keep: list[Sequence]) -> bool:
        """Blocks for the next `length` positions, taken from the least worth keeping if need be; False when `seq` is the victim."""
        while (new := self.cache.grow(seq, seq.num_computed + length)) is None:
            victim = self._pop_victim(keep)
            if victim is seq and len(self.running) == 1:
                detail = f"the sequence alone needs more cache blocks than the pool of {self.counters.num_blocks} can give"
                self._finish(seq, Finish(FinishReason.PREEMPTED, None, detail), "schedule: nobody left to preempt")
                return False
            self._preempt(victim, draft)
            if victim is seq:
                return False
        if new:
            draft.grow(seq, new)
        return True

    def _pop_victim(self, keep: list[Sequence]) -> Sequence:
        while keep:
            if (seq := keep.pop()).status is Status.RUNNING:
                return seq
        raise AssertionError("a sequence that needs blocks is running, so somebody can be preempted")

    def _preempt(self, seq: Sequence, draft: PlanDraft) -> None:
        draft.has_preempted = True
        limit = self.config.max_preemptions
        self.counters.preemptions += 1
        seq.num_preemptions += 1
        if self.config.preemption_policy == "stop" or (limit is not None and seq.num_preemptions > limit):
            log.warning("request %s preempted and stops", seq.request.client_id)
            detail = f"preempted {seq.num_preemptions} times for want of cache blocks"
            self._finish(seq, Finish(FinishReason.PREEMPTED, None, detail), "schedule: preempted and stops")
            return
        log.warning("request %s preempted and will be recomputed", seq.request.client_id)
        self._send_back(seq, "schedule: preempted for blocks")

    def _send_back(self, seq: Sequence, where: str) -> None:
        """RUNNING to the front of the waiting: owns nothing, keeps its tokens; what is in flight is void."""
        self._release(seq)
        seq.was_preempted = True
        self._wait(seq, where)

    def _admit(self, draft: PlanDraft) -> None:
        while draft.budget > 0 and len(self.running) < self.config.max_num_seqs:
            seq = self.queue.head()
            if seq is None or not self._take_place(seq, draft):
                return

    def _take_place(self, seq: Sequence, draft: PlanDraft) -> bool:
        """WAITING to RUNNING if its blocks fit now; else nothing is taken."""
        if not self.cache.admit(seq):
            return False
        if (length := policy.chunk_length(seq, draft.budget)) <= 0:
            self.cache.release(seq)
            return False
        self.queue.admit(seq)
        seq.row = self._free_rows.pop()
        seq.admission, self._next_admission = self._next_admission, self._next_admission + 1
        seq.move(Status.RUNNING, self.clock, "schedule: admitted")
        self.running[seq.seq_id] = seq
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = seq.num_computed
        if seq.request.reads_cache:
            self.counters.prefix_queries += len(seq.tokens)
        self.counters.cached_tokens += seq.num_computed
        self._count(seq, 0, seq.num_computed)
        draft.admit(seq)
        self._compute(draft, seq, length, 0)
        return True

    def _compute(self, draft: PlanDraft, seq: Sequence, length: int, num_drafts: int) -> None:
        start = seq.num_computed
        if start < seq.num_prompt_tokens or start < seq.high_water:
            self.counters.computed_prefill_tokens += self._count(seq, start, start + length)
        draft.compute(seq, length, num_drafts)
        self.counters.draft_tokens += num_drafts
        self.cache.publish(seq)

    def _count(self, seq: Sequence, start: int, end: int) -> int:
        """Counts positions [start, end) as prompt tokens reached first, or as tokens reached again; gives their sum."""
        again = max(0, min(end, seq.high_water) - start)
        first = max(0, min(end, seq.num_prompt_tokens) - max(start, seq.high_water))
        self.counters.recomputed_tokens += again
        self.counters.prompt_tokens += first
        return again + first

    def _lease_step(self, plan: StepPlan) -> None:
        held = [block for segment in plan.segments for block in self.sequences[segment.seq_id].block_ids]
        self.cache.pool.lease(("step", plan.step), held)

    # The way back

    def commit(self, result: StepResult | None) -> list[TokenEvent]:
        """Takes a step's result and hands over all events since the last call. Rows of a stale epoch change nothing."""
        plan = None if result is None else self._in_flight.pop(result.step, None)
        if plan is not None and result is not None:
            rows = {(row.seq_id, row.epoch): row for row in result.rows}
            for segment in plan.segments:
                self._commit_segment(segment, rows.get((segment.seq_id, segment.epoch)))
            self._close_step(plan)
            self.cache.confirm(plan.step)
        return self.flush()

    def _commit_segment(self, segment: Segment, row: RowResult | None) -> None:
        seq = self.sequences.get(segment.seq_id)
        if seq is None or seq.epoch != segment.epoch:
            self.counters.stale_segments += 1
            return
        outcome = judge(seq, segment, row, self.config)
        if outcome is None:
            return
        self.counters.generated_tokens += len(outcome.token_ids)
        self.counters.accepted_tokens += outcome.num_accepted
        self.cache.publish(seq)
        if outcome.finish is None:
            self._emit(seq, outcome)
        else:
            if outcome.is_poisoned:
                self.cache.condemn(seq)
            self._finish(seq, outcome.finish, outcome.where, outcome)

    def fail(self, step: int, detail: str) -> None:
        """A step raised: its rows are recomputed once, a second failure of a row ends it. Steps behind it are void too."""
        failed = self._in_flight.get(step)
        if failed is None:
            return
        self.counters.failed_steps += 1
        log.error("step %d failed and its rows are recomputed: %s", step, detail)
        for number in sorted(s for s in self._in_flight if s >= step):
            plan = self._in_flight.pop(number)
            self.cache.revoke(number)
            self._zero_again += plan.zero_blocks
            for segment in plan.segments:
                seq = self.sequences.get(segment.seq_id)
                if seq is not None and seq.epoch == segment.epoch:
                    self._retry(seq, detail, is_guilty=number == step)
            self._close_step(plan)

    def _retry(self, seq: Sequence, detail: str, is_guilty: bool) -> None:
        seq.num_failures += is_guilty
        self.cache.pool.soil(seq.block_ids)
        if seq.num_failures > 1:
            self._finish(seq, Finish(FinishReason.FAILED, None, detail), "fail: second failed step")
        else:
            self._send_back(seq, "fail: step failed, recomputed once")

    def _close_step(self, plan: StepPlan) -> None:
        if not self._ordered_stream:
            self.cache.pool.end_lease(("step", plan.step))

    # Ends

    def _expire(self) -> None:
        for seq, limit in self._deadlines.due(self.clock()):
            if limit is Limit.GATE:
                gate = next(iter(seq.gates))
                finish = Finish(policy.gate_reason(gate), None, f"{gate} was not ready within {seq.request.gate_timeout_s} s")
            else:
                timeout_s = seq.request.queue_timeout_s if limit is Limit.QUEUE else seq.request.timeout_s
                place = "in the queue" if limit is Limit.QUEUE else "in all"
                finish = Finish(FinishReason.TIMED_OUT, None, f"{timeout_s} s {place} were not enough")
            self._finish(seq, finish, f"deadline: {limit.value}")

    def _finish(self, seq: Sequence, finish: Finish, where: str, outcome: Outcome | None = None) -> None:
        """The one place where a sequence ends: exactly one final event, everything it owned is free."""
        if seq.status is Status.WAITING:
            self.queue.remove(seq)
        elif seq.status is Status.BLOCKED:
            del self.blocked[seq.seq_id]
        elif seq.status is Status.RUNNING:
            self._release(seq)
        seq.gates.clear()
        seq.epoch += 1
        seq.finish = finish
        seq.move(Status.FINISHED, self.clock, where)
        self.counters.finished[finish.reason] += 1
        del self.sequences[seq.seq_id]
        siblings = self.requests[seq.request.request_id]
        del siblings[seq.seq_id]
        if not siblings:
            del self.requests[seq.request.request_id]
        self._emit(seq, outcome or Outcome())

    def _release(self, seq: Sequence) -> None:
        """Gives back row and blocks and voids what is in flight."""
        del self.running[seq.seq_id]
        assert seq.row is not None
        self._free_rows.append(seq.row)
        self._retired_rows.append(seq.row)
        seq.row = None
        seq.high_water = max(seq.high_water, min(seq.num_computed, len(seq.tokens)))
        self.cache.release(seq)
        seq.pending = 0
        seq.pooled = None
        seq.epoch += 1

    def _emit(self, seq: Sequence, outcome: Outcome) -> None:
        is_last = seq.finish is not None
        self._events.append(
            TokenEvent(
                seq.request.request_id,
                seq.choice,
                self.clock(),
                outcome.token_ids,
                outcome.logprobs,
                outcome.prompt_logprobs,
                tuple(seq.pooled) if outcome.is_pooled and seq.pooled is not None else None,
                seq.finish,
                seq.num_cached_tokens or 0,
                seq.num_preemptions,
                tuple(seq.timeline) if is_last else (),
            )
        )

    # What others may know

    def flush(self) -> list[TokenEvent]:
        """Events that no step will bring: aborts, refusals, timeouts."""
        events, self._events = self._events, []
        return events

    def has_unfinished(self) -> bool:
        return bool(self.sequences) or bool(self._events)

    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `schedule` must be called at the latest, if anything has a time limit."""
        return self._deadlines.next_s()

    def stats(self) -> SchedulerStats:
        """A copy of the counters with the gauges filled in."""
        return replace(
            self.counters,
            finished=self.counters.finished.copy(),
            num_running=len(self.running),
            num_waiting=len(self.queue),
            num_blocked=len(self.blocked),
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
        return len(self.blocked)

    def live(self) -> Iterable[Sequence]:
        """Every sequence that is not finished."""
        return self.sequences.values()
