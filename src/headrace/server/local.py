"""The application called in this process: what comes in and goes out is what a client would see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp


class Answer(NamedTuple):
    status: int
    request_id: str
    body: Any


async def post(app: ASGIApp, path: str, body: Any, request_id: str) -> Answer:
    """One request and its whole answer. Cancelled, it leaves as a client does that goes away."""
    data = json.dumps(body).encode()
    start: MutableMapping[str, Any] = {}
    parts: list[bytes] = []
    sent = [{"type": "http.request", "body": data, "more_body": False}]
    is_gone = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        if sent:
            return sent.pop()
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await app(_scope(path, request_id), receive, send)
    return Answer(start["status"], request_id, json.loads(b"".join(parts)))


def _scope(path: str, request_id: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
        "extensions": {},
    }
