"""The engine's streams behind one HTTP request, and what their ends mean to a client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.engine.host import AsyncLLM, Stream
from headrace.engine.inputs import Checked
from headrace.engine.output import Output, OutputKind
from headrace.server.body import ClientGone
from headrace.server.errors import ApiError
from headrace.words.errors import EngineDeadError
from headrace.words.outputs import GOOD_ENDS, EmbeddingOutput, FinishReason, RequestMetrics

News = list[tuple[int, Output]]
"""(number of the prompt, what is new about it)."""


class Generation:
    """One stream for each prompt, all with one reader. Whoever makes it closes it."""

    def __init__(
        self,
        llm: AsyncLLM,
        checked: Sequence[Checked],
        client_id: str,
        streams: bool,
        arrival_s: float | None = None,
    ) -> None:
        kind: OutputKind = "delta" if streams else "final"
        self.llm = llm
        self.news = asyncio.Event()
        self.streams: list[Stream] = []
        self.is_gone = False
        llm.check_room(checked)
        try:
            for each in checked:
                self.streams.append(llm.open(each, client_id, arrival_s, kind, self.news))
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """The client went away: whoever waits for news stops waiting."""
        self.is_gone = True
        self.news.set()

    def close(self) -> None:
        for stream in self.streams:
            self.llm.close(stream)

    @property
    def is_finished(self) -> bool:
        return all(stream.state.is_finished for stream in self.streams)

    async def take(self) -> News:
        """Waits for news and gives all there is. Raises ClientGone, and ApiError where a stream ended badly."""
        while True:
            await self.news.wait()
            self.news.clear()
            if self.is_gone:
                raise ClientGone
            if not self.is_finished:
                self._check_alive()
            found = [(number, stream.take()) for number, stream in enumerate(self.streams) if stream.has_news]
            for number, output in found:
                if failure := failure_of(output, self.streams[number].state.metrics):
                    raise failure
            if found:
                return found

    async def all(self) -> list[Output]:
        """The finished output of each prompt; for streams of the kind `final`."""
        outputs: dict[int, Output] = {}
        while len(outputs) < len(self.streams):
            outputs.update(await self.take())
        return [outputs[number] for number in range(len(self.streams))]

    def _check_alive(self) -> None:
        try:
            self.llm.check_alive()
        except EngineDeadError as error:
            raise ApiError(500, str(error), code="engine_dead") from error


def failure_of(output: Output, times: RequestMetrics) -> ApiError | None:
    """The error that an output's end stands for, None if it is none."""
    if isinstance(output, EmbeddingOutput):
        return _failure(output.finish_reason, output.finish_detail, times)
    for choice in output.outputs:
        if choice.finish_reason not in (None, *GOOD_ENDS):
            return _failure(choice.finish_reason, choice.finish_detail, times)
    return None


def _failure(reason: str | None, detail: str | None, times: RequestMetrics) -> ApiError | None:
    if reason is None or reason in GOOD_ENDS:
        return None
    said = f": {detail}" if detail else ""
    match FinishReason(reason):
        case FinishReason.ABORTED:
            return ApiError(499, f"the request was aborted{said}", code="aborted")
        case FinishReason.PROMPT_TOO_LONG:
            return ApiError(400, f"prompt: too long{said}", "prompt", "context_length_exceeded")
        case FinishReason.PREEMPTED:
            return ApiError(503, f"the cache ran out{said}", code="insufficient_system_resource", retry_after_s=1)
        case FinishReason.MEDIA_FAILED:
            return ApiError(400, f"an image could not be used{said}", "messages", "media_failed")
        case FinishReason.GRAMMAR_FAILED:
            return ApiError(400, f"the grammar could not be used{said}", "structured_outputs", "grammar_failed")
        case FinishReason.TIMED_OUT if times.first_scheduled_s is None:
            return ApiError(503, f"no place came free in time{said}", code="queue_timeout", retry_after_s=1)
        case FinishReason.TIMED_OUT:
            return ApiError(504, f"the request took too long{said}", code="timeout")
        case _:
            return ApiError(500, f"the request failed{said}", code="generation_failed")
