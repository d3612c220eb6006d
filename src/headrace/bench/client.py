"""One streamed completion over a plain socket, timed. Nothing between the socket and the clock but asyncio."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True)
class Timed:
    """What one request was like; seconds from when it was sent."""

    began_s: float = 0.0
    """Since the start of the run."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    first_s: float | None = None
    """To the first text."""
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between pieces of text."""
    error: str | None = None

    @property
    def per_token_s(self) -> float | None:
        """Mean time of an output token after the first."""
        if self.first_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1)


class Target:
    """A server: where it is and what it must be told."""

    def __init__(self, base_url: str, path: str, api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 80
        self._path = parts.path.rstrip("/") + path
        self._headers = f"Authorization: Bearer {api_key}\r\n" if api_key else ""

    def request(self, body: Mapping[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\n{self._headers}Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


async def run_one(target: Target, body: Mapping[str, Any], run_began_s: float) -> Timed:
    """Sends a body that asks for a stream with usage. What goes wrong is in `error`; nothing is raised."""
    sent_s = time.perf_counter()
    timed = Timed(began_s=sent_s - run_began_s)
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as error:
        timed.error = f"{type(error).__name__}: {error}"
        return timed
    try:
        writer.write(target.request(body))
        async for event in _events(reader):
            _note(timed, event, time.perf_counter() - sent_s)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        timed.error = f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    if timed.error is None and timed.first_s is None:
        timed.error = "no text came"
    return timed


def _note(timed: Timed, event: Mapping[str, Any], now_s: float) -> None:
    if "error" in event:
        timed.error = str(event["error"].get("message", event["error"]))
        return
    if usage := event.get("usage"):
        timed.num_prompt_tokens = usage["prompt_tokens"]
        timed.num_output_tokens = usage["completion_tokens"]
    for choice in event.get("choices", ()):
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            if timed.first_s is None:
                timed.first_s = now_s
            else:
                timed.gaps_s.append(now_s - timed.last_s)
            timed.last_s = now_s


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON of each event. An answer that is no stream is one event with its error."""
    status = (await reader.readline()).split(b" ")
    head = await reader.readuntil(b"\r\n\r\n")
    if len(status) < 2 or status[1] != b"200":
        text = (await reader.read()).decode("utf-8", "replace")
        yield {"error": {"message": f"HTTP {b' '.join(status).decode().strip()}: {text[:300]}"}}
        return
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    rest = b""
    async for part in _parts(reader, is_chunked):
        *blocks, rest = (rest + part).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: {"):
                yield json.loads(block[6:])


async def _parts(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    while is_chunked:
        length = int(await reader.readline(), 16)
        data = await reader.readexactly(length + 2)
        if not length:
            return
        yield data[:-2]
    while data := await reader.read(1 << 16):
        yield data
