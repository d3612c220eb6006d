"""The executor of one device: plans run in the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from headrace.words.plan import StepPlan, StepResult
from headrace.worker.runner import Runner
from headrace.worker.verify import Masks

Half = Literal["forward", "sample"]
Fault = Callable[[Half, StepPlan], None]
"""Called before each half of a step; what it raises is as if the device had raised it."""


class DoneStep:
    """A step that has run: its result, or what it raised."""

    def __init__(self, step: int, outcome: StepResult | Exception) -> None:
        self.step = step
        self._outcome = outcome

    def result(self) -> StepResult:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def no_fault(half: Half, plan: StepPlan) -> None:
    pass


class LocalExecutor:
    """Runs one runner. What the first half of a step raises comes from `forward`, what the second raises comes from
    `result`, as on a device that works on its own; in either case the next plan may follow."""

    def __init__(self, runner: Runner, fault: Fault = no_fault) -> None:
        self._runner = runner
        self._fault = fault

    def forward(self, plan: StepPlan) -> None:
        self._fault("forward", plan)
        self._runner.forward(plan)

    def sample(self, plan: StepPlan, masks: object | None = None) -> DoneStep:
        """`masks` is a `worker.verify.Masks`."""
        try:
            self._fault("sample", plan)
            return DoneStep(plan.step, self._runner.sample(plan, cast("Masks | None", masks)))
        except Exception as error:
            return DoneStep(plan.step, error)

    def close(self) -> None:
        pass
