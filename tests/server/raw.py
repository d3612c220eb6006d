"""A client below HTTP: it sees every message of the application, may stop reading, and may go away at any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.server.inside import read_events


class RawClient:
    """One request as ASGI messages. `leave` closes the connection; `pause` makes the application wait at its next
    message until `resume`; `on_message` is called for each with the client itself."""

    def __init__(
        self, app: Any, path: str, body: Any, on_message: Callable[[RawClient], None] = lambda c: None
    ) -> None:
        self._app = app
        self._path = path
        self._data = json.dumps(body).encode()
        self._on_message = on_message
        self._gone = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._has_sent = False
        self.status: int | None = None
        self.chunks: list[bytes] = []
        self.is_complete = False
        self.num_cuts = 0
        self.holds_back = False
        """Its body never comes."""

    def leave(self) -> None:
        self._gone.set()

    def pause(self) -> None:
        self._reads.clear()

    def resume(self) -> None:
        self._reads.set()

    @property
    def events(self) -> list[Any]:
        return read_events(b"".join(self.chunks).decode())

    async def run(self) -> RawClient:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "headers": headers,
            "client": None,
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "root_path": "",
            "extensions": {"headrace.abort": self._cut},
        }
        await self._app(scope, self._receive, self._send)
        return self

    def _cut(self) -> None:
        self.num_cuts += 1
        self._gone.set()
        self._reads.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._has_sent and not self.holds_back:
            self._has_sent = True
            return {"type": "http.request", "body": self._data, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not self._gone.is_set():
            self.chunks.append(message["body"])
            self.is_complete = not message.get("more_body", False)
            self._on_message(self)
