"""OpenAI's batch files: requests as lines, answers as lines, and a second run that does only what is not done."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from starlette.types import ASGIApp

from headrace.server.local import Answer, post
from headrace.words.errors import ConfigError, brief

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
Tell = Callable[[int, int], None]
"""(requests done, requests failed)."""


@dataclass(slots=True)
class Counts:
    done: int = 0
    failed: int = 0
    skipped: int = 0
    """Done by an earlier run."""


def read_done(output: Path) -> set[str]:
    """The requests that an earlier run finished. What it left half written, or failed at by its own fault, is taken
    out of the file, to be done again."""
    if not output.exists():
        return set()
    done: dict[str, str] = {}
    with output.open(encoding="utf-8") as lines:
        for line in lines:
            if (name := _finished(line)) is not None:
                done[name] = line
    rest = output.with_name(output.name + ".part")
    rest.write_text("".join(done.values()), encoding="utf-8")
    os.replace(rest, output)
    return set(done)


def _finished(line: str) -> str | None:
    try:
        entry = json.loads(line)
        status = entry["response"]["status_code"]
        return entry["custom_id"] if line.endswith("\n") and status < 500 else None
    except (ValueError, TypeError, KeyError):
        return None


def read_lines(source: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(line number, request), or what is wrong with the line."""
    names: set[str] = set()
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _read_line(line, names)


def _read_line(line: str, names: set[str]) -> dict[str, Any] | str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return "is not valid JSON"
    if not isinstance(entry, dict) or not isinstance(entry.get("custom_id"), str):
        return "must be an object with a custom_id"
    if entry["custom_id"] in names:
        return f"the custom_id {brief(entry['custom_id'])} was used before"
    names.add(entry["custom_id"])
    if entry.get("method", "POST") != "POST" or entry.get("url") not in ROUTES:
        return f"method and url must be POST and one of {', '.join(ROUTES)}"
    if not isinstance(entry.get("body"), dict):
        return "needs a body, a JSON object"
    return "a batch has no streams; leave stream out" if entry["body"].get("stream") else entry


class Batch:
    """Runs the lines of a file through the application, `num_at_once` of them together."""

    def __init__(self, app: ASGIApp, source: Path, output: Path, num_at_once: int, tell: Tell) -> None:
        self._app = app
        self._source = source
        self._output = output
        self._places = asyncio.Semaphore(num_at_once)
        self._tell = tell
        self._counts = Counts()

    async def run(self) -> Counts:
        """Every answer is in the file as soon as it is there."""
        done = read_done(self._output)
        with self._output.open("a", encoding="utf-8") as sink:
            async with asyncio.TaskGroup() as group:
                for number, entry in read_lines(self._source):
                    if isinstance(entry, str):
                        self._write(sink, None, None, f"line {number}: {entry}")
                    elif entry["custom_id"] in done:
                        self._counts.skipped += 1
                    else:
                        await self._places.acquire()
                        group.create_task(self._one(sink, entry))
        return self._counts

    async def _one(self, sink: TextIO, entry: dict[str, Any]) -> None:
        try:
            answer = await post(self._app, entry["url"], entry["body"], uuid.uuid4().hex)
            self._write(sink, entry["custom_id"], answer, None)
        finally:
            self._places.release()

    def _write(self, sink: TextIO, name: str | None, answer: Answer | None, error: str | None) -> None:
        response = answer and {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
        shaped = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": name,
            "response": response,
            "error": error and {"code": "invalid_line", "message": error},
        }
        sink.write(json.dumps(shaped, ensure_ascii=False) + "\n")
        sink.flush()
        self._counts.done += 1
        self._counts.failed += answer is None or answer.status != 200
        self._tell(self._counts.done, self._counts.failed)


def check_files(source: Path, output: Path) -> None:
    if not source.is_file():
        raise ConfigError("input", f"{source.name!r} is no file")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ConfigError("output", f"{output.name!r} cannot be written there")
    if output.exists() and output.samefile(source):
        raise ConfigError("output", "must be another file than the input")
