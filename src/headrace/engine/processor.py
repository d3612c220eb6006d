"""The open requests of an engine: events find their request here, clients find theirs by the id they chose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from headrace.engine.detokenize import TokenTexts
from headrace.engine.output import RequestState
from headrace.words.params import Request
from headrace.words.plan import TokenEvent


class OutputProcessor:
    """Used by one thread. `on_finish` hears of every request that ended."""

    def __init__(
        self,
        texts: TokenTexts | None,
        on_finish: Callable[[RequestState], None] = lambda state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._texts = texts
        self._on_finish = on_finish
        self._clock = clock
        self._states: dict[int, RequestState] = {}
        self._clients: dict[str, dict[int, None]] = {}

    def add(self, request: Request) -> RequestState:
        """Opens a request; done before its Add is sent, so that no event comes too early."""
        state = RequestState(request, self._texts, enqueued_s=self._clock())
        self._states[request.request_id] = state
        self._clients.setdefault(request.client_id, {})[request.request_id] = None
        return state

    def take(self, events: Iterable[TokenEvent]) -> list[RequestState]:
        """Gives each event to its request; returns those touched, each once. A finished one is closed."""
        touched: dict[int, RequestState] = {}
        for event in events:
            state = self._states.get(event.request_id)
            if state is None:
                continue
            state.take(event)
            touched[event.request_id] = state
            if state.is_finished:
                self.close(event.request_id)
                self._on_finish(state)
        return list(touched.values())

    def close(self, request_id: int) -> None:
        """Forgets a request; what still comes for it is dropped."""
        state = self._states.pop(request_id, None)
        if state is not None:
            ids = self._clients[state.request.client_id]
            del ids[request_id]
            if not ids:
                del self._clients[state.request.client_id]

    def find(self, client_id: str) -> list[int]:
        """Our ids of every open request that a client called so."""
        return list(self._clients.get(client_id, ()))

    @property
    def num_open(self) -> int:
        return len(self._states)
