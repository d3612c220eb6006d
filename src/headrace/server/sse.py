"""A stream of server-sent events as raw ASGI: one message for all that is new, one error event at a bad end."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.server.body import ClientGone
from headrace.server.errors import ApiError, Dialect, error_response, told
from headrace.server.generation import Generation, News
from headrace.words.log import get_logger

log = get_logger(__name__)
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
START: Message = {"type": "http.response.start", "status": 200, "headers": HEADERS}
encode = msgspec.json.encode


def event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


class Writer(Protocol):
    """A protocol's events as bytes."""

    def write(self, news: News) -> bytes: ...

    def end(self) -> bytes:
        """The last events of a good end, `[DONE]` too where the protocol has it."""

    def fail(self, error: ApiError) -> bytes:
        """The last events of a bad end."""


class EventStream(Response):
    """Sends what a writer makes of a generation. Until the first news nothing is sent, so that what fails before a
    token exists has a status of its own. `sending_since_s` is set while the reader's buffers are full."""

    def __init__(
        self, generation: Generation, writer: Writer, senders: dict[EventStream, None], dialect: Dialect = "openai"
    ) -> None:
        self.background = None
        self.status_code = 200
        self.sending_since_s: float | None = None
        self._generation = generation
        self._writer = writer
        self._senders = senders
        self._dialect = dialect
        self._abort: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._abort = scope.get("extensions", {}).get("headrace.abort")
        watch = asyncio.create_task(_until_gone(receive, self._generation))
        self._senders[self] = None
        try:
            await self._run(scope, receive, send)
        except ClientGone:
            return
        finally:
            self._senders.pop(self, None)
            self._generation.close()
            watch.cancel()

    def cut(self) -> None:
        """Closes the connection of a reader that does not read."""
        log.warning("a reader left its stream full for too long; its connection is cut")
        self._generation.leave()
        if self._abort is not None:
            self._abort()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            news = await self._generation.take()
            body = self._writer.write(news)
        except ClientGone:
            raise
        except Exception as error:
            request_id = scope.get("headrace.request_id")
            await error_response(told(error, "a stream"), self._dialect, request_id)(scope, receive, send)
            return
        await send(START)
        is_last = False
        while not is_last:
            try:
                if is_last := self._generation.is_finished and not self._generation.news.is_set():
                    body += self._writer.end()
                await self._send(send, body, is_last)
                if not is_last:
                    body = self._writer.write(await self._generation.take())
            except ClientGone:
                raise
            except Exception as error:
                body, is_last = self._writer.fail(told(error, "a stream")), True
                await self._send(send, body, is_last)

    async def _send(self, send: Send, body: bytes, is_last: bool) -> None:
        self.sending_since_s = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self.sending_since_s = None


async def _until_gone(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.leave()


async def answer_or_leave(receive: Receive, generation: Generation) -> list[Any]:
    """The finished outputs of a request that does not stream; ClientGone when its client goes away first."""
    watch = asyncio.create_task(_until_gone(receive, generation))
    try:
        return await generation.all()
    finally:
        watch.cancel()
        generation.close()
