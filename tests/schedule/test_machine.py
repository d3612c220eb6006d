"""The state machine of LIFECYCLE section 7: any mix of events, both call orders, invariants after every event, and in
the end every sequence equals what it would have been alone."""

from __future__ import annotations

import logging
import math
import os

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.schedule.device import score
from tests.schedule.harness import Harness, Record, expected

from headrace.schedule.invariants import check
from headrace.words.outputs import FinishReason

EVENTS = int(os.environ.get("HEADRACE_FUZZ_EVENTS", "40000"))
SHRINKS = "HEADRACE_FUZZ_EVENTS" in os.environ
STEPS = 60
COUNTS = dict.fromkeys(["events", "preemptions", "stale", "failed_steps", "culprits", "drafts", "cached"], 0)
BASE = (1, 2, 3, 4, 5, 6, 7, 8, 9)

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(4, 12),
        "block_size": st.sampled_from([2, 4]),
        "overlap": st.booleans(),
        "ordered": st.sampled_from([True, True, False]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 16),
        "max_model_len": st.sampled_from([8, 15, 40]),
        "enable_prefix_caching": st.sampled_from([True, True, False]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority", "fair"]),
        "prefill_policy": st.sampled_from(["mixed", "first", "attempt"]),
        "victim_policy": st.sampled_from(["latest", "most_output"]),
        "preemption_policy": st.sampled_from(["recompute", "recompute", "recompute", "stop"]),
        "max_preemptions": st.sampled_from([None, None, 2]),
        "num_drafts": st.sampled_from([0, 0, 1, 3]),
        "max_overtakes": st.sampled_from([3, 256]),
        "attempt_target_tokens": st.integers(4, 40),
    }
)
requests = st.fixed_dictionaries(
    {
        "shared": st.integers(0, len(BASE)),
        "own": st.lists(st.integers(1, 12), min_size=1, max_size=4),
        "max_tokens": st.sampled_from([1, 2, 8, 14, 20]),
        "n": st.sampled_from([1, 1, 1, 2]),
        "seed": st.integers(0, 3),
        "ignore_eos": st.sampled_from([True, True, False]),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "stop_token_ids": st.sampled_from([(), (), (5,), (3, 7)]),
        "priority": st.sampled_from([0, 0, 1, -1]),
        "user": st.sampled_from([None, "a", "b"]),
        "cache_salt": st.sampled_from([None, None, "salt"]),
        "kind": st.sampled_from(["text", "text", "text", "scored", "scores", "last", "mean"]),
        "gates": st.sampled_from([(), (), (), ("image:0",), ("image:0", "grammar")]),
        "timeout_s": st.sampled_from([None, None, None, 2.0]),
        "queue_timeout_s": st.sampled_from([None, None, None, 1.0]),
        "gate_timeout_s": st.sampled_from([None, 1.5]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Each rule is one event of LIFECYCLE section 2."""

    @initialize(config=configs)
    def start(self, config: dict) -> None:
        self.harness = Harness(**config)
        self.leases = 0
        self.passed: dict[int, int] = {}

    def teardown(self) -> None:
        """Whatever happened: the rest finishes, nothing is lost, and everybody got what he would have got alone."""
        if not hasattr(self, "harness"):
            return
        for holder in range(self.leases):
            self.harness.scheduler.cache.pool.end_lease(("transfer", holder))
        for seq in list(self.harness.scheduler.roster.blocked.values()):
            for gate in list(seq.gates):
                self.harness.scheduler.gate_ready(seq.request.request_id, gate)
                check(self.harness.scheduler)
        self.harness.run()
        self.harness.check_idle()
        for record in self.harness.records.values():
            check_record(record, self.harness)
        check_metrics(self.harness)
        stats = self.harness.scheduler.stats()
        COUNTS["preemptions"] += stats.preemptions
        COUNTS["stale"] += stats.stale_segments
        COUNTS["failed_steps"] += stats.failed_steps
        COUNTS["culprits"] += sum(record.finish.detail == "cursed" for record in self.harness.records.values())
        COUNTS["drafts"] += stats.accepted_tokens
        COUNTS["cached"] += stats.cached_tokens

    @rule(request=requests)
    def add(self, request: dict) -> None:
        request = dict(request)
        prompt = [*BASE[: request.pop("shared")], *request.pop("own")]
        kind = request.pop("kind")
        if kind in ("last", "mean"):
            for name in ("max_tokens", "ignore_eos", "min_tokens", "stop_token_ids"):
                del request[name]
            request |= {"pooling": kind, "n": 1}
        elif kind in ("scored", "scores"):
            request |= {"prompt_logprobs": 1} | ({"max_tokens": 0, "min_tokens": 0} if kind == "scores" else {})
        self.harness.add(prompt, **request)

    @rule()
    def step(self) -> None:
        self._checked_step()

    @rule(turns=st.integers(2, 9))
    def steps(self, turns: int) -> None:
        for _ in range(turns):
            self._checked_step()
            check(self.harness.scheduler)

    def _checked_step(self) -> None:
        """I12, I13, I14: the plan is within bounds, passes nobody it must not, and is never idle over ready work."""
        scheduler = self.harness.scheduler
        first = next(iter(scheduler.running.values()), None)
        finished = sum(scheduler.roster.counters.finished.values())
        is_ready = bool(scheduler.num_running or scheduler.num_waiting)
        plan = self.harness.step()
        assert plan.num_tokens <= self.harness.config.max_num_batched_tokens, "I12: over the budget"
        ids = [segment.seq_id for segment in plan.segments]
        assert len(set(ids)) == len(ids), "I12: a sequence is twice in a plan"
        if first is not None:
            assert first.finish is not None or first.row is not None or plan.step not in scheduler.in_flight, "I14"
        if is_ready and not plan.segments and not self.leases and not self.harness.overlap:
            assert sum(scheduler.roster.counters.finished.values()) > finished, "I14: ready work, and nothing done"
        self._check_order(plan)

    def _check_order(self, plan) -> None:
        """I13: first come, first served passes nobody who is ready; others pass at most `max_overtakes` times."""
        scheduler, waiting = self.harness.scheduler, self.harness.scheduler.queue.members()
        for admission in plan.admissions:
            for seq in waiting:
                is_back_now = seq.timeline[-1].time_s == self.harness.clock()
                if seq.seq_id >= admission.seq_id or is_back_now:
                    continue
                assert self.harness.config.scheduling_policy != "fcfs", "I13: a later request passed a ready one"
                self.passed[seq.seq_id] = self.passed.get(seq.seq_id, 0) + 1
                assert self.passed[seq.seq_id] <= self.harness.config.max_overtakes, "I13: passed too often"
        for seq in scheduler.running.values():
            self.passed.pop(seq.seq_id, None)
        self.harness.clock.now += 0.001

    @precondition(lambda self: self.harness.scheduler.running)
    @rule(fault=st.sampled_from(["fail_forward", "fail_result"]))
    def fail(self, fault: str) -> None:
        setattr(self.harness.device, fault, True)
        self.harness.step()
        setattr(self.harness.device, fault, False)

    @precondition(lambda self: len(self.harness.scheduler.running) > 1)
    @rule(data=st.data())
    def poison(self, data: st.DataObject) -> None:
        self.harness.device.poisoned.add(data.draw(st.sampled_from(list(self.harness.scheduler.running))))

    @precondition(lambda self: len(self.harness.scheduler.running) > 1)
    @rule(data=st.data())
    def curse(self, data: st.DataObject) -> None:
        """Every step that holds this sequence raises: it ends alone."""
        self.harness.device.cursed.add(data.draw(st.sampled_from(list(self.harness.scheduler.running))))

    @precondition(lambda self: self.harness.records)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(1, max(i for i, _ in self.harness.records) + 1))
        self.harness.scheduler.abort(request_id)
        self.harness.scheduler.abort(request_id)

    @precondition(lambda self: self.harness.records)
    @rule(data=st.data(), gate=st.sampled_from(["image:0", "grammar"]), fails=st.sampled_from([False, False, True]))
    def gate(self, data: st.DataObject, gate: str, fails: bool) -> None:
        request_id = data.draw(st.integers(1, max(i for i, _ in self.harness.records) + 1))
        scheduler = self.harness.scheduler
        had = any(gate in s.gates for s in scheduler.roster.requests.get(request_id, {}).values())
        done = scheduler.gate_fail(request_id, gate, "broken") if fails else scheduler.gate_ready(request_id, gate)
        assert done == had, "a gate answered for nobody, or nobody for a gate"
        assert not scheduler.gate_ready(request_id, gate), "I22: a gate opens twice"

    @rule(seconds=st.sampled_from([0.06, 0.3, 1.2]))
    def wait(self, seconds: float) -> None:
        self.harness.clock.now += seconds

    @precondition(lambda self: self.harness.scheduler.running and self.leases < 3)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        """A transfer holds a sequence's full blocks beyond the sequence's life."""
        seq = data.draw(st.sampled_from(list(self.harness.scheduler.running.values())))
        full = min(seq.num_computed, len(seq.tokens)) // self.harness.scheduler.cache.block_size
        self.harness.scheduler.cache.pool.lease(("transfer", self.leases), seq.block_ids[:full])
        self.leases += 1

    @rule()
    def end_leases(self) -> None:
        for holder in range(self.leases):
            self.harness.scheduler.cache.pool.end_lease(("transfer", holder))
        self.leases = 0

    @invariant()
    def books_agree(self) -> None:
        COUNTS["events"] += 1
        if hasattr(self, "harness"):
            check(self.harness.scheduler)


def check_record(record: Record, harness: Harness) -> None:
    """I17, I18, I20–I25, I29: one final event, the oracle's tokens (all, or the first ones), aligned logprobs."""
    tokens, reason = expected(record.request, record.choice, harness.config)
    finals = [event for event in record.events if event.finish is not None]
    assert len(finals) == 1 and record.events[-1] is finals[0], "I21: not exactly one final event, at the end"
    if record.reason in (FinishReason.STOPPED, FinishReason.LENGTH_CAPPED):
        assert (record.token_ids, record.reason) == (tokens, reason), "I24: other tokens than alone"
    else:
        assert record.token_ids == tokens[: len(record.token_ids)], "I23: other tokens than alone"
    history = list(record.request.prompt_ids)
    for token, entry in zip(record.token_ids, record.logprobs, strict=True):
        assert entry.token_ids == (token,), "I29: another token's logprobs"
        assert math.isclose(entry.logprobs[0], score(history, token)), "I29: another position's logprobs"
        history.append(token)
    check_scores(record)
    check_pooled(record)


def check_scores(record: Record) -> None:
    """E7: each prompt position is scored once, in order, whatever chunks and preemptions did."""
    sampling, prompt = record.request.sampling, record.request.prompt_ids
    if sampling is None or sampling.prompt_logprobs is None:
        assert not record.prompt_logprobs
        return
    wanted = [score(prompt[: i + 1], token) for i, token in enumerate(prompt[1:])]
    got = [entry.logprobs[0] for entry in record.prompt_logprobs]
    is_whole = record.reason in (FinishReason.STOPPED, FinishReason.LENGTH_CAPPED)
    assert got == (wanted if is_whole else wanted[: len(got)]), "E7: prompt logprobs"


def check_pooled(record: Record) -> None:
    if record.request.pooling is None or record.reason is not FinishReason.LENGTH_CAPPED:
        assert record.events[-1].hidden is None
        return
    prompt = record.request.prompt_ids
    whole = sum(prompt) if record.request.pooling.pooling == "last" else sum(prompt) / len(prompt)
    assert record.events[-1].hidden == (whole,), "the pooled vector"


def check_metrics(harness: Harness) -> None:
    """I30: reasons add up to what was accepted; computed and cached tokens to prompt and recomputed ones."""
    stats = harness.scheduler.stats()
    assert sum(stats.finished.values()) == stats.accepted == len(harness.records)
    assert stats.computed_prefill_tokens + stats.cached_tokens == stats.prompt_tokens + stats.recomputed_tokens
    assert stats.generated_tokens == sum(len(record.token_ids) for record in harness.records.values())


def run_machine(max_examples: int, steps: int = STEPS) -> None:
    """Runs the machine; raises what an example found."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    phases = tuple(Phase) if SHRINKS else (Phase.generate,)
    options = settings(
        max_examples=max_examples, stateful_step_count=steps, phases=phases, report_multiple_bugs=False
    )
    run_state_machine_as_test(SchedulerMachine, settings=options)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.covers(*(f"I{i}" for i in range(1, 25) if i not in (10, 15)), "I27", "I29", "I30")
def test_every_mix_of_events_keeps_the_books_and_the_tokens():
    run_machine(max_examples=EVENTS // 50)
    assert COUNTS["events"] >= 0.9 * EVENTS, COUNTS
    assert all(count > 0 for count in COUNTS.values()), f"the machine never came to some of {COUNTS}"


def test_the_toy_model_ends_some_sequences_by_itself_and_some_by_length():
    harness = Harness()
    requests = [harness.record(harness.add([1, 2, 3], max_tokens=9, seed=seed)).request for seed in range(20)]
    reasons = {expected(request, 0, harness.config)[1] for request in requests}
    assert reasons == {FinishReason.STOPPED, FinishReason.LENGTH_CAPPED}
