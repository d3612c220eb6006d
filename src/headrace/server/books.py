"""The open requests and the last finished ones, each with its life: what /v1/requests tells."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headrace.engine.core import EngineCore
from headrace.engine.host import Stream
from headrace.engine.live import LiveChoice, live_choices
from headrace.engine.output import Life, RequestState
from headrace.server.flight import Chunk, FlightRecorder
from headrace.server.histogram import gap_s
from headrace.words.outputs import Move

LINE = (
    "id kind status finish_reason num_prompt_tokens num_output_tokens num_cached_tokens n age_s took_s queue_s "
    "time_to_first_token_s"
).split()
"""What a list tells of a request."""
PREFIXES = ("chatcmpl-", "cmpl-", "embd-", "msg_")
NEW = LiveChoice("new", 0, 0, 0, (), ())


class Finished(NamedTuple):
    """What is kept of a request when its tokens are gone."""

    arrival_s: float
    page: dict[str, Any]


class Books:
    """Keeps the lives of the last `num_remembered` finished requests; what is open is read from the engine."""

    def __init__(self, core: EngineCore, num_remembered: int, flight: FlightRecorder) -> None:
        self._core = core
        self._flight = flight
        self._finished: deque[Finished] = deque(maxlen=num_remembered)

    def finished(self, state: RequestState) -> None:
        self._finished.append(Finished(state.request.arrival_s, self._page(state)))
        self._flight.forget(state.request.request_id)

    def lines(self, streams: Iterable[Stream]) -> list[dict[str, Any]]:
        """One line for each, the open ones first, then the finished from the latest."""
        lines = [self._line(stream.state) for stream in streams if not stream.state.is_finished]
        return lines + [{name: page[name] for name in LINE} for page in self._past()]

    def find(self, client_id: str, streams: Iterable[Stream]) -> list[dict[str, Any]]:
        """Whole lives of every request that has this id, with or without its protocol's prefix."""
        states = [stream.state for stream in streams if not stream.state.is_finished]
        pages = [self._page(state) for state in states if is_called(state.request.client_id, client_id)]
        return pages + [page for page in self._past() if is_called(page["id"], client_id)]

    def _past(self) -> Iterator[dict[str, Any]]:
        now_s = time.monotonic()
        for record in reversed(self._finished):
            yield {**record.page, "age_s": round(now_s - record.arrival_s, 4)}

    def _line(self, state: RequestState) -> dict[str, Any]:
        request = state.request
        ends = sorted({life.finish.reason.value for life in state.lives() if life.finish})
        times = state.metrics
        until_s = times.finished_s if state.is_finished and times.finished_s else time.monotonic()
        return {
            "id": request.client_id,
            "kind": "generate" if request.sampling else "embed",
            "status": "finished" if state.is_finished else self._status(state),
            "finish_reason": ", ".join(ends) if state.is_finished else None,
            "num_prompt_tokens": len(request.prompt_ids),
            "num_output_tokens": state.num_output_tokens,
            "num_cached_tokens": state.num_cached_tokens,
            "n": request.n,
            "age_s": round(time.monotonic() - request.arrival_s, 4),
            "took_s": round(until_s - request.arrival_s, 4),
            "queue_s": times.queue_time_s,
            "time_to_first_token_s": times.time_to_first_token_s,
        }

    def _status(self, state: RequestState) -> str:
        live = live_choices(self._core, state.request.request_id)
        return next((choice.status for choice in live.values()), "new")

    def _page(self, state: RequestState) -> dict[str, Any]:
        request = state.request
        live = live_choices(self._core, request.request_id)
        start_s = request.arrival_s
        sampling, times = request.sampling, state.metrics
        chunks = self._flight.chunks(request.request_id)
        return {
            **self._line(state),
            "prefill_s": gap_s(times.first_scheduled_s, times.first_token_s),
            "decode_s": gap_s(times.first_token_s, times.last_token_s),
            "priority": request.priority,
            "max_tokens": request.max_tokens,
            "temperature": None if sampling is None else sampling.temperature,
            "choices": [_choice(life, live.get(life.choice, NEW), chunks, start_s) for life in state.lives()],
        }


def _choice(life: Life, live: LiveChoice, chunks: Iterable[Chunk], start_s: float) -> dict[str, Any]:
    finish = life.finish
    return {
        "index": life.choice,
        "status": "finished" if finish else live.status,
        "finish_reason": finish and finish.reason.value,
        "stop_reason": finish and finish.stop_reason,
        "finish_detail": finish and finish.detail,
        "num_tokens": life.num_tokens,
        "num_preemptions": max(life.num_preemptions, live.num_preemptions),
        "gates": list(live.gates),
        "seed": life.seed,
        "timeline": [_move(move, start_s) for move in life.timeline or live.timeline],
        "prefill_chunks": [_chunk(chunk, start_s) for chunk in chunks if chunk.choice == life.choice],
    }


def _chunk(chunk: Chunk, start_s: float) -> dict[str, Any]:
    return {
        "at_s": round(chunk.began_s - start_s, 6),
        "took_s": round(chunk.took_s, 6),
        "start": chunk.start,
        "length": chunk.length,
    }


def _move(move: Move, start_s: float) -> dict[str, Any]:
    """`at_s` counts from the request's arrival."""
    return {"at_s": round(move.time_s - start_s, 6), "from": move.source, "to": move.target, "where": move.where}


def is_called(client_id: str, name: str) -> bool:
    return client_id == name or client_id in [prefix + name for prefix in PREFIXES]
