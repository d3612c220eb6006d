"""uvicorn's HTTP protocol with limits that it does not have: bytes, fields and seconds of a request's head, and the
number of connections. The only HTTP code of ours."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.server.errors import ApiError, error_body
from headrace.server.settings import Settings
from headrace.server.sse import encode

SEND_BUFFER_BYTES = 1 << 18


def bounded_protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """The protocol class for these limits; uvicorn makes one object of it for each connection."""

    class Bounded(BoundedProtocol):
        limits = settings

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    limits: Settings
    _head_timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # The system would let it grow to megabytes for a reader that does not read.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        limit = self.limits.max_connections
        if limit is not None and len(self.connections) > limit:
            self._refuse(ApiError(503, "too many connections; try again later", retry_after_s=1))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(ApiError(431, f"the headers may have at most {self.limits.max_header_bytes} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_in_head:
            self._await_head()
        self.scope["extensions"] = {"headrace.abort": self.transport.abort}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_headers:
            raise _TooMuch(f"at most {self.limits.max_headers} header fields are read")

    def on_headers_complete(self) -> None:
        if self._sum_of_head() > self.limits.max_header_bytes:
            raise _TooMuch(f"the headers may have at most {self.limits.max_header_bytes} bytes")
        self._head_is_done()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        error = self._raised()
        self._refuse(error or ApiError(400, "the request is not valid HTTP"))

    def _sum_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _await_head(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._head_is_late)

    def _head_is_done(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_in_head and not self.transport.is_closing():
            self._refuse(ApiError(408, f"the headers did not come within {self.limits.header_timeout_s:g} s"))

    def _raised(self) -> ApiError | None:
        """httptools wraps what a callback raised."""
        error = sys.exc_info()[1]
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        return ApiError(431, str(cause)) if isinstance(cause, _TooMuch) else None

    def _refuse(self, error: ApiError) -> None:
        self._head_is_done()
        body = encode(error_body(error))
        lines = [STATUS_LINE[error.status], b"content-type: application/json\r\nconnection: close\r\n"]
        lines += [f"{name}: {value}\r\n".encode() for name, value in error.headers.items()]
        lines += [b"content-length: %d\r\n\r\n" % len(body), body]
        self.transport.write(b"".join(lines))
        self.transport.close()


class _TooMuch(Exception):
    pass
