"""A step that raises costs that step; the next plan finds a worker that works."""

import pytest
from tests.worker.toy import Toy, Worker

from headrace.words.errors import EngineError
from headrace.words.params import Sampling
from headrace.words.plan import StepPlan

SEEDED = Sampling(temperature=1.0, repetition_penalty=1.2, min_tokens=3)


class FailsOnce:
    """Raises at one half of one step."""

    def __init__(self, half: str, step: int) -> None:
        self.place = (half, step)

    def __call__(self, half: str, plan: StepPlan) -> None:
        if (half, plan.step) == self.place:
            raise RuntimeError("the device broke")


@pytest.mark.covers("D18")
@pytest.mark.parametrize("half", ["forward", "sample"])
def test_rows_of_a_failed_step_are_recomputed_and_their_neighbours_go_on(half):
    """A is in the failed step and comes back by a new admission; B is not in it and goes on from where it was."""
    a, b = Toy(1, (1, 2, 3), SEEDED, seed=1), Toy(2, (4, 5), SEEDED, seed=2)
    worker = Worker(fault=FailsOnce(half, 3))
    first = worker.run(a.prefill(), b.prefill(), admissions=(a.admission(), b.admission()))
    second = worker.run(a.decode(1), b.decode(1))
    with pytest.raises(RuntimeError, match="the device broke"):
        worker.run(a.decode(2))
    done = [*first[1].token_ids, *second[1].token_ids]
    again = Toy(1, a.prompt, SEEDED, row=3, epoch=1, seed=1)
    found = worker.run(again.segment(0, 5), b.decode(2), retired_rows=(1,), admissions=(again.admission(output=done),))
    assert [*done, *found[1].token_ids] == Worker().generate(a, 3)
    text = [*first[2].token_ids, *second[2].token_ids, *found[2].token_ids]
    assert text == Worker().generate(b, 3)


def test_an_error_of_the_second_half_comes_from_result_so_that_it_may_come_late():
    seq = Toy(1, (1, 2, 3))
    worker = Worker(fault=FailsOnce("sample", 1))
    plan = StepPlan(1, (seq.prefill(),), admissions=(seq.admission(),))
    worker.executor.forward(plan)
    pending = worker.executor.sample(plan)
    assert pending.step == 1
    with pytest.raises(RuntimeError):
        pending.result()


@pytest.mark.covers("I19")
def test_a_step_planned_on_one_that_failed_is_refused_and_harms_nobody():
    """With overlap the next forward is queued before the failure is known; its input token does not exist."""
    seq, other = Toy(1, (1, 2, 3)), Toy(2, (7, 7))
    worker = Worker(fault=FailsOnce("sample", 2))
    worker.run(other.prefill(), admissions=(other.admission(),))
    plan = StepPlan(2, (seq.prefill(),), admissions=(seq.admission(),))
    worker.executor.forward(plan)
    pending = worker.executor.sample(plan)
    with pytest.raises(EngineError, match="does not exist"):
        worker.executor.forward(StepPlan(3, (seq.decode(1),)))
    with pytest.raises(RuntimeError):
        pending.result()
    worker.step = 3
    again = Toy(1, (1, 2, 3), row=1, epoch=1)
    found = worker.run(again.prefill(), other.decode(1), retired_rows=(1,), admissions=(again.admission(),))
    assert list(found[1].token_ids) == Worker().generate(seq, 1)
    assert list(found[2].token_ids) == Worker().generate(other, 2)[1:]


def test_results_are_kept_while_the_next_step_is_computed():
    """The order of calls under overlap: forward(t + 1) reads the token of sample(t) before anyone asks for it."""
    seq, worker = Toy(1, (1, 2, 3), SEEDED, seed=5), Worker()
    plans = [StepPlan(1, (seq.prefill(),), admissions=(seq.admission(),))]
    plans += [StepPlan(n + 1, (seq.decode(n),)) for n in range(1, 5)]
    text, previous = [], None
    for plan in plans:
        worker.executor.forward(plan)
        text += previous.result().rows[0].token_ids if previous else ()
        previous = worker.executor.sample(plan)
    assert previous is not None
    text += previous.result().rows[0].token_ids
    assert text == Worker().generate(seq, 5)


def test_an_interrupt_is_not_taken_for_an_error_of_the_step():
    def interrupt(half: str, plan: StepPlan) -> None:
        if half == "sample":
            raise KeyboardInterrupt

    seq, worker = Toy(1, (1, 2)), Worker(fault=interrupt)
    plan = StepPlan(1, (seq.prefill(),), admissions=(seq.admission(),))
    worker.executor.forward(plan)
    with pytest.raises(KeyboardInterrupt):
        worker.executor.sample(plan)
