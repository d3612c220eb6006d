"""The step loop: both orders give the same tokens, a failed step costs only itself, idleness costs nothing."""

import threading
import time

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.engine.core import describe
from headrace.engine.llm_engine import LLMEngine
from headrace.words.errors import EngineDeadError
from headrace.words.inbox import Abort, Add, GateFailed, GateReady
from headrace.words.outputs import FinishReason
from headrace.words.params import Request, Sampling, SamplingParams

OVERLAP = {"async_scheduling": True}
ORDERS = pytest.mark.parametrize("others", [{}, OVERLAP], ids=["in order", "overlap"])
PROMPTS = [bytes([65 + i] * (3 + 5 * i)) for i in range(8)]


def request(request_id=1, ids=b"hello", gates=(), **sampling) -> Request:
    sampling = {"max_tokens": 5, "temperature": 0.0} | sampling
    return Request(request_id, str(request_id), tuple(ids), sampling=Sampling(**sampling), gates=gates)


def run(engine, prompts=PROMPTS, max_steps=500, **params) -> list[tuple]:
    """(ids, reason) of each prompt, in their order, stepped to the end."""
    llm = LLMEngine(engine)
    for i, prompt in enumerate(prompts):
        llm.add_request(str(i), [*prompt], SamplingParams(**{"max_tokens": 9, "seed": i} | params))
    finals = {}
    for _ in range(max_steps):
        if not llm.has_unfinished_requests():
            break
        for output in llm.step():
            if output.finished:
                assert output.request_id not in finals, "a request ended twice"
                finals[output.request_id] = output
    return [(finals[str(i)].outputs[0].token_ids, finals[str(i)].outputs[0].finish_reason) for i in range(len(prompts))]


def greedy(prompt: bytes, num_tokens: int) -> list[int]:
    history = [*prompt]
    for _ in range(num_tokens):
        history.append(fakes.next_token(history))
    return history[len(prompt) :]


ORACLE = run(fakes.engine())


def test_the_oracle_is_the_toy_model_itself():
    history = [*PROMPTS[3]]
    for _ in range(9):
        history.append(fakes.next_token(history, seed=3))
    assert ORACLE[3] == (history[len(PROMPTS[3]) :], "length")


@pytest.mark.covers("I24")
@ORDERS
def test_both_orders_give_the_same_tokens_also_when_every_request_is_preempted(others):
    small = fakes.engine(num_blocks=16, others=others)
    assert run(small) == ORACLE
    assert small.core.scheduler.stats().preemptions > 0


@ORDERS
@pytest.mark.parametrize("budget", [8, 16, 64])
def test_chunks_do_not_change_tokens(others, budget):
    assert run(fakes.engine(others=others, max_num_batched_tokens=budget)) == ORACLE


def test_with_overlap_a_step_is_forwarded_before_the_one_before_is_committed():
    engine = fakes.engine(others=OVERLAP)
    order = []
    commit = engine.core.scheduler.commit
    engine.core.scheduler.commit = lambda result: (order.append(f"commit {result.step}"), commit(result))[1]
    engine.core.executor.on_forward = lambda plan: order.append(f"forward {plan.step}")
    engine.core.executor.on_sample = lambda plan: order.append(f"sample {plan.step}")
    run(engine, PROMPTS[:1], max_tokens=2)
    assert order[:5] == ["forward 1", "sample 1", "forward 2", "commit 1", "sample 2"]


def raise_once(step: int, kind=ValueError, message="out of memory"):
    """Something that raises the first time a given step runs."""

    def hook(plan):
        if plan.step == step:
            raise kind(message)

    return hook


FAULTS = {
    "forward": lambda step: {"on_forward": raise_once(step)},
    "sample": lambda step: {"on_sample": raise_once(step)},
    "result": lambda step: {"on_result": lambda plan: ValueError("late") if plan.step == step else None},
}


@pytest.mark.covers("D18", "I23")
@ORDERS
@pytest.mark.parametrize("where", FAULTS)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_step_that_raises_once_is_recomputed_and_nobody_notices(others, where, step):
    engine = fakes.engine(FakeExecutor(**FAULTS[where](step)), others=others)
    assert run(engine) == ORACLE
    assert engine.core.scheduler.stats().failed_steps == 1
    assert engine.core.scheduler.stats().preemptions == 0


@ORDERS
def test_a_request_whose_steps_keep_raising_ends_with_the_cause_and_the_others_run_on(others):
    def raises_beside_7(plan):
        if any(engine.core.executor.rows[s.row][0].token_ids[:1] == (72,) for s in plan.segments):
            raise ValueError("a kernel broke")

    engine = fakes.engine(FakeExecutor(on_sample=raises_beside_7), others=others, max_num_seqs=1)
    results = run(engine)
    assert results[:7] == ORACLE[:7]
    assert results[7] == ([], "error")


@pytest.mark.covers("T24")
@ORDERS
def test_a_row_whose_logits_are_not_finite_ends_alone(others):
    executor = FakeExecutor(poison=lambda admission: admission.token_ids[:1] == (68,))
    results = run(fakes.engine(executor, others=others))
    assert results[3] == ([], "error")
    assert [r for i, r in enumerate(results) if i != 3] == [r for i, r in enumerate(ORACLE) if i != 3]


@ORDERS
def test_a_failed_steps_detail_reaches_the_request_in_one_line(others):
    def always(plan):
        raise ValueError("shapes\n  do not match")

    llm = LLMEngine(fakes.engine(FakeExecutor(on_forward=always), others=others))
    llm.add_request("a", "hello", SamplingParams(max_tokens=3))
    outputs = [output for _ in range(5) for output in llm.step()]
    assert [(o.finished, o.finish_detail) for o in outputs] == [(True, "ValueError: shapes do not match")]
    assert not llm.has_unfinished_requests()


@ORDERS
def test_when_forward_raises_the_tokens_of_the_step_before_are_kept(others):
    engine = fakes.engine(FakeExecutor(on_forward=raise_once(3)), others=others)
    assert run(engine, PROMPTS[:1]) == ORACLE[:1]
    recomputed = engine.core.executor.plans[3].admissions[0]
    assert len(recomputed.token_ids) == len(PROMPTS[0]) + 2


@ORDERS
@pytest.mark.parametrize("kind", [KeyboardInterrupt, EngineDeadError])
def test_an_interrupt_and_a_dead_device_leave_the_step_which_is_void(others, kind):
    core = fakes.engine(FakeExecutor(on_forward=raise_once(2, kind)), others=others).core
    core.put(Add(request()))
    events = []
    with pytest.raises(kind):
        for _ in range(3):
            events += core.step()
    while core.has_unfinished:
        events += core.step()
    assert [i for event in events for i in event.token_ids] == greedy(b"hello", 5)


@ORDERS
def test_messages_are_obeyed_in_their_order(others):
    core = fakes.engine(others=others).core
    core.put(Add(request(1)))
    core.put(Abort(1, "by an operator"))
    core.put(Add(request(2, max_tokens=1)))
    events = [event for _ in range(3) for event in core.step()]
    assert [(e.request_id, e.finish.reason, e.finish.detail) for e in events if e.finish][0] == (
        1, FinishReason.ABORTED, "by an operator",
    )  # fmt: skip
    assert [e.request_id for e in events if e.token_ids] == [2]


@pytest.mark.covers("D4", "D14")
def test_only_what_is_behind_a_gate_waits_for_it():
    core = fakes.engine().core
    core.put(Add(request(1, gates=("image:slow",))))
    core.put(Add(request(2, max_tokens=1)))
    (event,) = core.step()
    assert event.request_id == 2 and event.finish.reason is FinishReason.LENGTH_CAPPED
    assert core.scheduler.num_blocked == 1


@pytest.mark.covers("D5", "D9", "T5", "T6")
def test_gates_open_and_fail_through_the_inbox():
    core = fakes.engine().core
    core.put(Add(request(1, gates=("grammar:a",), max_tokens=1)))
    core.put(GateReady(1, "grammar:a"))
    core.put(Add(request(2, gates=("image:b",))))
    core.put(GateFailed(2, "image:b", "not an image"))
    core.put(GateReady(3, "image:never"))
    ends = {e.request_id: e.finish for e in core.step() if e.finish}
    assert ends[1].reason is FinishReason.LENGTH_CAPPED
    assert (ends[2].reason, ends[2].detail) == (FinishReason.MEDIA_FAILED, "not an image")


@pytest.mark.covers("T27")
@ORDERS
def test_an_idle_core_sleeps_until_a_message_comes(others):
    core = fakes.engine(others=others).core
    assert core.step() == [] and core.is_idle
    threading.Timer(0.05, core.put, [Add(request())]).start()
    started = time.process_time(), time.monotonic()
    core.wait()
    assert time.monotonic() - started[1] >= 0.04
    assert time.process_time() - started[0] < 0.03
    assert core.has_unfinished and core.step()[0].token_ids if not others else core.has_unfinished


def test_an_idle_core_wakes_at_the_schedulers_next_deadline():
    engine = fakes.engine(others={"request_timeout_s": 0.05})
    core = engine.core
    blocked = Request(1, "a", (1,), sampling=Sampling(), gates=("image:x",), timeout_s=0.05, arrival_s=time.monotonic())
    core.put(Add(blocked))
    assert core.step() == [] and core.is_idle
    core.wait()
    (event,) = core.step()
    assert event.finish.reason is FinishReason.TIMED_OUT


def test_a_message_that_came_before_the_wait_is_not_slept_over():
    core = fakes.engine().core
    core.step()
    core.put(Add(request()))
    started = time.monotonic()
    core.wait(5)
    assert time.monotonic() - started < 1


def test_what_is_queued_is_counted_before_it_is_read():
    core = fakes.engine().core
    core.put(Add(request(1)))
    core.put(Add(request(2)))
    assert (core.num_queued, core.num_queued_tokens) == (2, 10)
    core.step()
    assert (core.num_queued, core.num_queued_tokens) == (0, 0)


def test_the_books_are_checked_as_often_as_the_environment_asks(monkeypatch):
    monkeypatch.setenv("HEADRACE_CHECK_INVARIANTS", "2")
    core = fakes.engine().core
    assert run_all(core, request(max_tokens=8)) == 8
    core.put(Add(request(2)))
    core.step()
    core.scheduler.running.popitem()
    with pytest.raises(AssertionError):
        for _ in range(2):
            core.step()


def run_all(core, *requests: Request) -> int:
    """The number of tokens that come of some requests."""
    for each in requests:
        core.put(Add(each))
    count = 0
    while core.has_unfinished:
        count += sum(len(event.token_ids) for event in core.step())
    return count


def test_an_error_is_described_in_one_line_without_traceback():
    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
