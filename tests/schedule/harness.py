"""Drives a scheduler over the fake device in either call order, and knows what each request must give."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from tests.schedule.device import EOS, DeviceFault, FakeDevice, next_token

from headrace.schedule.invariants import check, check_idle
from headrace.schedule.roster import MatcherFactory
from headrace.schedule.scheduler import Scheduler
from headrace.schedule.sequence import Sequence
from headrace.words.config import SchedulerConfig
from headrace.words.outputs import Finish, FinishReason, TokenLogprobs
from headrace.words.params import Pooling, Request, Sampling
from headrace.words.plan import CacheLayout, Emits, RowResult, StepPlan, StepResult, TokenEvent

CONFIG = SchedulerConfig(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, eos_token_ids=frozenset({EOS})
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Record:
    """What came out for one sequence."""

    request: Request
    choice: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)

    @property
    def finish(self) -> Finish | None:
        return self.events[-1].finish if self.events else None

    @property
    def reason(self) -> FinishReason | None:
        return self.finish.reason if self.finish else None

    def take(self, event: TokenEvent) -> None:
        assert self.finish is None, "I21: an event after the final one"
        self.events.append(event)
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        self.prompt_logprobs += event.prompt_logprobs


class Harness:
    """`overlap` runs forward(t) → commit(t − 1) → sample(t); else each step is committed before the next is planned."""

    def __init__(
        self,
        num_blocks: int = 32,
        block_size: int = 4,
        overlap: bool = False,
        ordered: bool = True,
        make_matcher: MatcherFactory = lambda request: None,
        **config: Any,
    ) -> None:
        self.config = replace(CONFIG, **config)
        self.clock = FakeClock()
        layout = CacheLayout(num_blocks + 1, block_size)
        self.scheduler = Scheduler(self.config, layout, self.clock, make_matcher, ordered)
        self.device = FakeDevice(num_blocks + 1, block_size, overlap)
        self.overlap = overlap
        self.records: dict[tuple[int, int], Record] = {}
        self.plans: list[StepPlan] = []
        self._previous: StepResult | None = None
        self._last_id = 0

    def add(self, prompt: Seq[int], max_tokens: int = 4, **options: Any) -> int:
        """Adds a request; options go to Sampling if it has the field, else to Request."""
        self._last_id += 1
        sampling = {k: options.pop(k) for k in list(options) if k in Sampling.__dataclass_fields__}
        pooling = options.pop("pooling", None)
        request = Request(
            request_id=self._last_id,
            client_id=f"r{self._last_id}",
            prompt_ids=tuple(prompt),
            sampling=None if pooling else Sampling(max_tokens=max_tokens, **sampling),
            pooling=Pooling(pooling) if pooling else None,
            arrival_s=self.clock(),
            **options,
        )
        for choice in range(request.n):
            self.records[request.request_id, choice] = Record(request, choice)
        self.scheduler.add(request)
        return request.request_id

    def record(self, request_id: int, choice: int = 0) -> Record:
        return self.records[request_id, choice]

    def sequence(self, request_id: int, choice: int = 0) -> Sequence:
        """The live sequence of a request."""
        return next(s for s in self.scheduler.roster.requests[request_id].values() if s.choice == choice)

    def steps(self, count: int) -> list[StepPlan]:
        return [self.step() for _ in range(count)]

    def step(self) -> StepPlan:
        """One turn of the loop, with the failures that the device was told to have."""
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        groups = {self.scheduler.roster.sequences[segment.seq_id].group for segment in plan.segments}
        assert len(groups) <= 1, "T23: a step holds suspects of two groups, or others beside them"
        previous, self._previous = self._previous, None
        try:
            if not plan.is_empty:
                self.device.forward(plan)
        except DeviceFault as fault:
            self._commit(previous)
            self._fail(plan, fault)
            self._commit(None)
            return plan
        self._commit(previous)
        result = None
        try:
            result = None if plan.is_empty else self.device.sample(plan)
        except DeviceFault as fault:
            self._fail(plan, fault)
        if self.overlap and not plan.has_drafts:
            self._previous = result
        else:
            self._commit(result)
        return plan

    def _fail(self, plan: StepPlan, fault: DeviceFault) -> None:
        sequences = self.scheduler.roster.sequences
        live = [s.seq_id for s in plan.segments if s.seq_id in sequences and sequences[s.seq_id].epoch == s.epoch]
        self.scheduler.fail(plan.step, str(fault))
        ended = [seq_id for seq_id in live if seq_id not in sequences]
        assert len(ended) <= (len(live) == 1), "T23: a failed step ended a row that was not alone in it"

    def _commit(self, result: StepResult | None) -> None:
        for event in self.scheduler.commit(result):
            self.records[event.request_id, event.choice].take(event)

    def run(self, max_steps: int = 2_000) -> Harness:
        """Steps until nobody is left (sequences behind gates excepted)."""
        for _ in range(max_steps):
            if not self.scheduler.num_running and not self.scheduler.num_waiting and self._previous is None:
                self._commit(None)
                return self
            self.step()
            check(self.scheduler)
        raise AssertionError(f"I14: no end after {max_steps} steps")

    def check_idle(self) -> None:
        check_idle(self.scheduler)
        assert all(record.finish is not None for record in self.records.values()), "I21: no final event"


    def check_as_alone(self) -> None:
        """Everybody got the tokens and the reason that the oracle gives."""
        for record in self.records.values():
            tokens, reason = expected(record.request, record.choice, self.config)
            assert (record.token_ids, record.reason) == (tokens, reason), f"{record.request.client_id}: not as alone"


def answer(plan: StepPlan, token_id: int = 1) -> StepResult:
    """The result of a device that draws the same token for everybody and accepts no drafts."""
    emitting = [segment for segment in plan.segments if segment.emits is Emits.TOKEN]
    return StepResult(plan.step, tuple(RowResult(segment.seq_id, segment.epoch, (token_id,)) for segment in emitting))


def expected(request: Request, choice: int, config: SchedulerConfig) -> tuple[list[int], FinishReason]:
    """What the toy model gives for a request alone: the oracle."""
    tokens, sampling = list(request.prompt_ids), request.sampling
    if sampling is None or sampling.max_tokens == 0:
        return [], FinishReason.LENGTH_CAPPED
    while True:
        tokens.append(next_token(tokens, request.seed, choice))
        num_outputs = len(tokens) - len(request.prompt_ids)
        is_eos = tokens[-1] in config.eos_token_ids and not sampling.ignore_eos
        if (is_eos or tokens[-1] in sampling.stop_token_ids) and num_outputs >= sampling.min_tokens:
            return tokens[len(request.prompt_ids) :], FinishReason.STOPPED
        if num_outputs >= sampling.max_tokens or len(tokens) >= config.max_model_len:
            return tokens[len(request.prompt_ids) :], FinishReason.LENGTH_CAPPED
