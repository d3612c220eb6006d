"""Every request passes here first, as raw ASGI: its id, who may come in, whether there is room, and how it ended."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server import page
from headrace.server.errors import ApiError, Dialect, error_response, overloaded, told
from headrace.server.logs import log_response
from headrace.server.service import Service
from headrace.server.settings import LOOPBACK
from headrace.server.spans import PARENT, trace_headers

OPEN_PATHS = frozenset({"/health", "/ready"})
WORK_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/invocations")
"""What a server that is full or ending refuses."""
MAX_ID_CHARS = 128


class Gate:
    """Wraps the routes. Nothing that a route raises leaves it: one renderer writes every error."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = [key.encode() for key in service.settings.api_keys]
        self._hosts = {*LOOPBACK, service.settings.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope["headrace.request_id"] = request_id
        PARENT.set(trace_headers(headers))
        response = _Watched(send, request_id)
        started_s = time.monotonic()
        if scope["method"] == "POST":
            await self._service.take_turn()
        try:
            self._admit(scope, headers)
            with self._service.inside():
                await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            # A body that was still coming when the last grace was over.
            if not self._service.is_draining or response.status is not None:
                raise
            await self._tell(self._ending(), scope, receive, response)
        except Exception as error:
            await self._tell(error, scope, receive, response)
        finally:
            self._note(scope, response.status, time.monotonic() - started_s, request_id)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if self._keys:
            if path not in OPEN_PATHS and not page.is_open(path):
                self._check_key(headers)
        else:
            self._check_origin(headers)
        if scope["method"] == "POST" and path in WORK_PATHS:
            self._check_room()

    def _check_key(self, headers: Headers) -> None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1, which gives their bytes back whatever a client took for its characters.
        given = (token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")).encode("latin-1")
        # Every key is compared, so that time tells nothing.
        if not max([hmac.compare_digest(given, key) for key in self._keys]):
            message = "a valid API key is needed, as `Authorization: Bearer KEY`"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def _check_origin(self, headers: Headers) -> None:
        """Without a key only this machine may ask, and no web page of somebody else's through its browser."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not _is_one_of(f"//{hosts[0]}", self._hosts):
            raise ApiError(403, "the Host header must name this machine; set an API key to serve others")
        origin = headers.get("origin")
        if origin is not None and not _is_one_of(origin, self._hosts):
            raise ApiError(403, "requests from other origins are refused; set an API key to serve others")

    def _check_room(self) -> None:
        service = self._service
        if why := service.not_ready():
            raise overloaded(f"{why}; try again later", service.retry_after_s(), why.replace(" ", "_"))

    def _ending(self) -> ApiError:
        return overloaded("the server is shutting down", 1, "the_server_is_shutting_down")

    async def _tell(self, error: Exception, scope: Scope, receive: Receive, response: _Watched) -> None:
        known = told(error, f"{scope['method']} {scope['path']}", self._service.retry_after_s())
        if response.status is not None:
            raise error
        await error_response(known, dialect_of(scope["path"]), response.request_id)(scope, receive, response.send)

    def _note(self, scope: Scope, status: int | None, took_s: float, request_id: str) -> None:
        route = scope.get("route")
        name = getattr(route, "path", None) or "other"
        self._service.metrics.responded(name, status or 499)
        if status == 503 and scope["path"] in WORK_PATHS:
            self._service.metrics.rejected("overloaded")
        log_response(scope, status or 499, took_s, request_id)


class _Watched:
    """`send` that adds X-Request-Id and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode("latin-1"))]
            message = {**message, "headers": headers}
        await self._send(message)


def dialect_of(path: str) -> Dialect:
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def _request_id(headers: Headers) -> str:
    """The client's own where it is short and plain, else a new one."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _is_one_of(address: str, hosts: Iterable[str]) -> bool:
    try:
        return (urlsplit(address).hostname or "") in hosts
    except ValueError:
        return False
