"""A hub on loopback: repositories from memory, as much of the hub's API as its own library asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Repository(NamedTuple):
    """`commits` are files by name, by commit; `branches` name commits. `token` is who may read it."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    token: str | None = None
    is_gated: bool = False


class Hub:
    """Repositories by name, and what was asked for."""

    def __init__(self, repositories: Mapping[str, Repository], port: int) -> None:
        self.repositories = dict(repositories)
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []

    def downloads(self) -> list[str]:
        """The files that were given out whole."""
        return sorted(path.rsplit("/", 1)[1] for path in self.asked if path.startswith("GET") and "/resolve/" in path)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(f"{self.command} {path}")
        is_api = path.startswith("api/models/")
        marks = ("/revision/", "/tree/") if is_api else ("/resolve/",)
        mark = next((mark for mark in marks if mark in path), None)
        name, _, rest = path.removeprefix("api/models/").partition(mark or "\0")
        if not is_api and mark is None:
            return self.send(404, b"")
        repository = self.hub.repositories.get(name)
        if repository is None or self.is_foreign(repository):
            return self.fail(401, "RepoNotFound")
        if repository.is_gated and not is_api:
            return self.fail(403, "GatedRepo")
        revision, _, file = rest.partition("/")
        commit = repository.branches.get(revision or "main", revision)
        if commit not in repository.commits:
            return self.fail(404, "RevisionNotFound")
        files = repository.commits[commit]
        if mark == "/resolve/":
            return self.send_file(commit, file, files)
        self.send_json(tree(files) if mark == "/tree/" else {"id": name, "sha": commit, "siblings": []})

    def is_foreign(self, repository: Repository) -> bool:
        return repository.token is not None and self.headers.get("Authorization") != f"Bearer {repository.token}"

    def send_file(self, commit: str, name: str, files: Mapping[str, bytes]) -> None:
        if name not in files:
            return self.fail(404, "EntryNotFound")
        etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
        self.send(200, files[name], {"ETag": etag, "X-Repo-Commit": commit})

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def fail(self, status: int, code: str) -> None:
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def tree(files: Mapping[str, bytes]) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for name, data in files.items()
    ]


@contextmanager
def serving(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnHandler", (Handler,), {}))
    server.daemon_threads = True
    hub = server.RequestHandlerClass.hub = Hub(repositories, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
