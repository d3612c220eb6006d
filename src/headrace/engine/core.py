"""The step loop: messages in by the front door, one plan at a time through the executor, events out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.schedule.invariants import check
from headrace.schedule.scheduler import Scheduler
from headrace.words.errors import EngineDeadError
from headrace.words.inbox import Abort, Add, GateFailed, GateReady, Message
from headrace.words.log import get_logger
from headrace.words.plan import Executor, PendingStep, StepPlan, StepResult, TokenEvent

log = get_logger(__name__)
FOR_EVER_S = 86_400.0


class EngineCore:
    """Runs steps for one scheduler and one executor, in whichever thread calls `step`; `put` may be called from any.

    In order: each step's tokens are committed before the next plan is made. With `overlap` the commit of a step waits
    behind the forward of the next one, so that the host's work hides behind the device's.

    An exception of a step costs that step only: its rows are computed once more, then in halves, and who fails alone
    ends FAILED. What the scheduler raises, EngineDeadError, and what is no Exception (an interrupt) leave `step` as
    they are.
    `check_every` steps the scheduler's books are checked (0: never); a broken invariant is an AssertionError.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        overlap: bool = False,
        clock: Callable[[], float] = time.monotonic,
        check_every: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.is_idle = True
        """The last step had nothing to compute; until a message or a deadline comes the next one has not either."""
        self.busy_s = 0.0
        self.last_step_s = clock()
        """When the core was last seen alive, in monotonic seconds."""
        self._overlap = overlap
        self._check_every = check_every
        self._clock = clock
        self._previous: PendingStep | None = None
        self._fatal: BaseException | None = None
        self._untold: list[TokenEvent] = []
        self._inbox: deque[Message] = deque()
        self._wake = threading.Event()
        self._tokens_put = 0
        self._tokens_read = 0

    def put(self, message: Message) -> None:
        if isinstance(message, Add):
            self._tokens_put += len(message.request.prompt_ids) * message.request.n
        self._inbox.append(message)
        self._wake.set()

    def wake(self) -> None:
        """Ends a `wait`, though there is no message."""
        self._wake.set()

    @property
    def has_unfinished(self) -> bool:
        """Whether a request lives, or an event or a message has not been handed over."""
        return bool(self._inbox) or bool(self._untold) or self._previous is not None or self.scheduler.has_unfinished()

    @property
    def num_queued(self) -> int:
        """Sequences that wait, and messages not read yet."""
        return self.scheduler.num_waiting + len(self._inbox)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that wait, in the queue or not read yet."""
        return self.scheduler.queue.num_tokens + self._tokens_put - self._tokens_read

    def wait(self, timeout_s: float = FOR_EVER_S) -> None:
        """Sleeps until a message comes, a deadline of the scheduler, or `timeout_s`."""
        deadline_s = self.scheduler.next_deadline()
        if deadline_s is not None:
            timeout_s = min(timeout_s, deadline_s - self._clock())
        if timeout_s > 0:
            self._wake.wait(min(timeout_s, FOR_EVER_S))

    def step(self) -> list[TokenEvent]:
        """Reads the messages, runs one step, and gives all events since the last call that did not raise."""
        started_s = self._clock()
        self._read_inbox()
        plan = self.scheduler.schedule()
        events = self._overlapped(plan) if self._overlap else self._in_order(plan)
        self.is_idle = plan.is_empty and self._previous is None
        self.last_step_s = self._clock()
        if not plan.is_empty:
            self.busy_s += self.last_step_s - started_s
        if self._check_every and plan.step % self._check_every == 0:
            check(self.scheduler)
        self._untold += events
        if self._fatal is not None:
            error, self._fatal = self._fatal, None
            raise error
        return self._tell()

    def settle(self) -> list[TokenEvent]:
        """Reads the messages and gives the events there are, computing nothing."""
        self._read_inbox()
        self._untold += self.scheduler.flush()
        return self._tell()

    def close(self) -> None:
        self.executor.close()

    def _tell(self) -> list[TokenEvent]:
        events, self._untold = self._untold, []
        return events

    def _read_inbox(self) -> None:
        self._wake.clear()
        while self._inbox:
            self._obey(self._inbox.popleft())

    def _obey(self, message: Message) -> None:
        match message:
            case Add(request):
                self._tokens_read += len(request.prompt_ids) * request.n
                self.scheduler.add(request)
            case Abort(request_id, detail):
                self.scheduler.abort(request_id, detail)
            case GateReady(request_id, gate):
                self.scheduler.gate_ready(request_id, gate)
            case GateFailed(request_id, gate, detail, reason):
                self.scheduler.gate_fail(request_id, gate, detail, reason)

    def _in_order(self, plan: StepPlan) -> list[TokenEvent]:
        if plan.is_empty:
            return self.scheduler.flush()
        try:
            self.executor.forward(plan)
            result = self.executor.sample(plan).result()
        except BaseException as error:
            return self._fail(plan.step, error)
        return self.scheduler.commit(result)

    def _overlapped(self, plan: StepPlan) -> list[TokenEvent]:
        """forward(t), commit(t − 1), sample(t). When forward raises, commit(t − 1) comes before fail(t)."""
        raised = None
        if not plan.is_empty:
            try:
                self.executor.forward(plan)
            except BaseException as error:
                raised = error
        events = self._commit_previous()
        if raised is None and not plan.is_empty:
            try:
                self._previous = self.executor.sample(plan)
            except BaseException as error:
                raised = error
        return events if raised is None else events + self._fail(plan.step, raised)

    def _commit_previous(self) -> list[TokenEvent]:
        pending, self._previous = self._previous, None
        if pending is None:
            return self.scheduler.flush()
        try:
            result: StepResult = pending.result()
        except BaseException as error:
            return self._fail(pending.step, error)
        return self.scheduler.commit(result)

    def _fail(self, step: int, error: BaseException) -> list[TokenEvent]:
        log.debug("step %d raised", step, exc_info=error)
        is_fault = isinstance(error, Exception)
        self.scheduler.fail(step, describe(error), is_fault)
        if isinstance(error, EngineDeadError) or not is_fault:
            self._fatal = error
        return self.scheduler.flush()


def describe(error: BaseException) -> str:
    """An exception in one line, without traceback."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
