"""An engine driven step by step by its caller."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

from headrace.engine import checks
from headrace.engine.build import Engine, build_engine
from headrace.engine.core import describe
from headrace.engine.inputs import Checked, Params, Prompt
from headrace.engine.metrics import Metrics
from headrace.engine.output import Output, RequestState
from headrace.engine.tokenizer import Tokenizer
from headrace.words.config import EngineConfig
from headrace.words.errors import EngineDeadError, EngineError, RequestError
from headrace.words.inbox import Abort, Add
from headrace.words.plan import TokenEvent

STALL_S = 0.05
"""How long a step waits for a message when everything unfinished is behind a gate."""


class LLMEngine:
    """Requests in, one step at a time, outputs out.

    One call at a time: while one runs, other threads are refused with EngineError (aborts are not) and nothing is
    disturbed. A process forked from the one that built the engine is refused as well. Internal ids are unique whatever
    ids the callers choose; an abort by the caller's id ends every request called so.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._news: dict[int, RequestState] = {}
        self._death: str | None = None
        self._turn = threading.RLock()
        self._process = os.getpid()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The engine is this thread's until the block ends; raises EngineError where it is another's."""
        self._check_alive()
        if not self._turn.acquire(blocking=False):
            raise EngineError("another thread uses this engine; call it from one thread at a time, or use AsyncLLM")
        try:
            yield
        finally:
            self._turn.release()

    @classmethod
    def from_engine_args(cls, asked: EngineConfig) -> LLMEngine:
        return cls(build_engine(asked))

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: Params,
        arrival_time: float | None = None,
        priority: int | None = None,
    ) -> None:
        """Checks and queues a request; raises RequestError and changes nothing if it is bad. Monotonic seconds."""
        with self.turn():
            self.submit(self.engine.inputs.check(prompt, params, priority), request_id, arrival_time)

    def submit(self, checked: Checked, client_id: str | None = None, arrival_s: float | None = None) -> int:
        """Queues a checked request and gives our id of it."""
        with self.turn():
            request = self.engine.inputs.admit(checked, client_id, arrival_s)
            self.engine.outputs.add(request)
            self.engine.core.put(Add(request))
            return request.request_id

    def step(self) -> list[Output]:
        """One step; the requests that have news as they stand now. Nothing to do gives an empty list."""
        with self.turn():
            self.advance()
            return [state.output() for state in self.take_news()]

    def advance(self) -> None:
        """One step; what it brought waits for `take_news`."""
        with self.turn():
            core = self.engine.core
            try:
                events = core.step()
            except Exception as error:
                self._death = describe(error)
                raise EngineDeadError(f"the engine stopped: {self._death}") from error
            self._note(events)
            if core.is_idle and core.has_unfinished:
                core.wait(STALL_S)

    def take_news(self, wanted: Container[int] | None = None) -> list[RequestState]:
        """The requests that events came for since they were last asked for: all, or those of the wanted ids."""
        ids = [request_id for request_id in self._news if wanted is None or request_id in wanted]
        return [self._news.pop(request_id) for request_id in ids]

    def abort_request(self, request_id: str | Sequence[str]) -> None:
        """Ends every request of that name, with one final output at the next step; an unknown one is no error."""
        if not isinstance(request_id, str | list | tuple | set):
            raise RequestError("request_id", f"must be a text or a list of texts, got {checks.shown(request_id)}")
        for client_id in [request_id] if isinstance(request_id, str) else request_id:
            for ours in self.engine.outputs.find(client_id):
                self.engine.core.put(Abort(ours))

    def abort(self, request_id: int) -> None:
        """Ends one request by our id of it, with one final output at the next step."""
        self.engine.core.put(Abort(request_id))

    def discard(self, request_ids: Iterable[int]) -> None:
        """Aborts requests whose outputs nobody will ask for."""
        ids = list(request_ids)
        for request_id in ids:
            self.engine.core.put(Abort(request_id))
        if self._death is None:
            self._note(self.engine.core.settle())
        for request_id in ids:
            self._news.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._news) or (self._death is None and self.engine.core.has_unfinished)

    def get_num_unfinished_requests(self) -> int:
        return self.engine.outputs.num_open

    def get_metrics(self) -> Metrics:
        return self.engine.metrics.snapshot()

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def close(self) -> None:
        """Gives back memory and threads; twice is once."""
        self._death = self._death or "it was closed"
        self.engine.close()

    def _note(self, events: Iterable[TokenEvent]) -> None:
        for state in self.engine.outputs.take(events):
            self._news[state.request.request_id] = state

    def _check_alive(self) -> None:
        if self._process != os.getpid():
            raise EngineDeadError(f"the engine lives in process {self._process} and not in this fork; build one here")
        if self._death is not None:
            raise EngineDeadError(f"the engine stopped: {self._death}")
