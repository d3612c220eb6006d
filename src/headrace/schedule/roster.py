"""Who is where: the sequences, their rows, blocks and queue places, and every change of status."""

from __future__ import annotations

from collections.abc import Callable

from headrace.schedule.cache_manager import CacheManager
from headrace.schedule.commit import NOTHING_TOLD
from headrace.schedule.deadlines import Deadlines
from headrace.schedule.queue import WaitingQueue
from headrace.schedule.sequence import Sequence, Status
from headrace.schedule.stats import SchedulerStats
from headrace.words.config import SchedulerConfig
from headrace.words.outputs import Finish
from headrace.words.params import Request
from headrace.words.plan import CacheLayout, RowResult, StopMatcher, TokenEvent

MatcherFactory = Callable[[Request], StopMatcher | None]


class Roster:
    """The books behind the scheduler. `sequences` owns membership; the queue, `running` (in order of admission) and
    `blocked` are views of it. All changes of status happen here, along MOVES."""

    def __init__(
        self, config: SchedulerConfig, layout: CacheLayout, clock: Callable[[], float], make_matcher: MatcherFactory
    ) -> None:
        self.clock = clock
        self.cache = CacheManager(layout, config.enable_prefix_caching)
        self.queue = WaitingQueue(config.scheduling_policy, config.max_overtakes)
        self.running: dict[int, Sequence] = {}
        self.blocked: dict[int, Sequence] = {}
        self.sequences: dict[int, Sequence] = {}
        self.requests: dict[int, dict[int, Sequence]] = {}
        self.counters = SchedulerStats(num_blocks=layout.num_blocks - 1)
        self.deadlines = Deadlines(self.sequences)
        self.events: list[TokenEvent] = []
        self.retired_rows: list[int] = []
        self.free_rows = list(range(config.max_num_seqs, 0, -1))
        self._make_matcher = make_matcher
        self._next_seq_id = 1
        self._next_admission = 1

    def enter(self, request: Request, choice: int) -> Sequence:
        """A new sequence, known by its id before anything else can happen to it."""
        seq_id, self._next_seq_id = self._next_seq_id, self._next_seq_id + 1
        seq = Sequence(seq_id, request, choice, arrival=seq_id, enqueued_s=self.clock())
        seq.tokens = list(request.prompt_ids)
        seq.matcher = self._make_matcher(request)
        self.sequences[seq_id] = seq
        self.requests.setdefault(request.request_id, {})[seq_id] = seq
        self.counters.accepted += 1
        self.deadlines.add(seq)
        return seq

    def block(self, seq: Sequence, where: str) -> None:
        """It stands before its gates, in no queue, so that nobody waits behind it."""
        seq.gates = dict.fromkeys(seq.request.gates)
        seq.move(Status.BLOCKED, self.clock, where)
        self.blocked[seq.seq_id] = seq

    def open_gate(self, seq: Sequence, gate: str) -> None:
        """One gate less; with the last one the sequence waits at the place of its arrival."""
        del seq.gates[gate]
        if not seq.gates:
            del self.blocked[seq.seq_id]
            self.wait(seq, f"gate ready: {gate}")

    def wait(self, seq: Sequence, where: str) -> None:
        seq.move(Status.WAITING, self.clock, where)
        self.queue.push(seq)

    def run(self, seq: Sequence, where: str) -> None:
        """WAITING to RUNNING on a row of its own; its blocks are granted already."""
        self.queue.admit(seq)
        seq.row = self.free_rows.pop()
        seq.admission, self._next_admission = self._next_admission, self._next_admission + 1
        seq.move(Status.RUNNING, self.clock, where)
        self.running[seq.seq_id] = seq
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = seq.num_computed

    def send_back(self, seq: Sequence, where: str) -> None:
        """RUNNING to the front of the waiting: it owns nothing and keeps its tokens; what is in flight is void."""
        self._release(seq)
        seq.was_preempted = True
        self.wait(seq, where)

    def finish(self, seq: Sequence, finish: Finish, where: str, told: RowResult = NOTHING_TOLD) -> None:
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
        self.emit(seq, told)

    def _release(self, seq: Sequence) -> None:
        """Gives back row and blocks and voids what is in flight."""
        del self.running[seq.seq_id]
        assert seq.row is not None
        self.free_rows.append(seq.row)
        self.retired_rows.append(seq.row)
        seq.row = None
        seq.high_water = max(seq.high_water, min(seq.num_computed, len(seq.tokens)))
        self.cache.release(seq)
        seq.pending = 0
        seq.pooled = None
        seq.epoch += 1

    def emit(self, seq: Sequence, told: RowResult) -> None:
        """Tells what happened to a sequence; the last event carries its end and its whole timeline."""
        is_last = seq.finish is not None
        self.events.append(
            TokenEvent(
                seq.request.request_id,
                seq.choice,
                self.clock(),
                told.token_ids,
                told.logprobs,
                told.prompt_logprobs,
                told.hidden,
                seq.finish,
                seq.num_cached_tokens or 0,
                seq.num_preemptions,
                tuple(seq.timeline) if is_last else (),
            )
        )
