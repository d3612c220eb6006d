"""What OpenAI's two streams of chunks share: the head of every chunk, usage as far as it is wanted, and the ends."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.server.errors import ApiError, error_body
from headrace.server.generation import Generation
from headrace.server.protocol.fields import StreamOptions
from headrace.server.sse import DONE, encode, event
from headrace.server.usage import usage_now


class ChunkJob(Protocol):
    """What every chunk repeats."""

    @property
    def answer_id(self) -> str: ...

    @property
    def created_s(self) -> int: ...

    @property
    def model(self) -> str: ...


class ChunkWriter:
    """The ends of a `headrace.server.sse.Writer`, and what its chunks begin and end with."""

    def __init__(self, job: ChunkJob, kind: str, options: StreamOptions | None, generation: Generation) -> None:
        """`kind` is the chunks' `object`."""
        self._generation = generation
        self._wants_usage = bool(options and options.include_usage)
        self._counts_on = bool(options and options.continuous_usage_stats)
        head: dict[str, Any] = {"id": job.answer_id, "object": kind, "created": job.created_s, "model": job.model}
        self._head = b"data: " + encode(head)[:-1]
        self._tail = b',"usage":null}\n\n' if self._wants_usage else b"}\n\n"

    def _end_of_chunk(self) -> bytes:
        return self._usage() if self._counts_on else self._tail

    def _usage(self) -> bytes:
        return b',"usage":' + encode(usage_now(self._generation)) + b"}\n\n"

    def end(self) -> bytes:
        return self._head + b',"choices":[]' + self._usage() + DONE if self._wants_usage else DONE

    def fail(self, error: ApiError) -> bytes:
        return event(error_body(error)) + DONE
