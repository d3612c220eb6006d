"""The server as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

START_S = 60
PROGRAM = "from headrace.cli import main; raise SystemExit(main())"


class ServerProcess:
    """`headrace serve` on a free port, its output in files; `stop` leaves nothing of it."""

    def __init__(
        self, model: str, folder: Path, *flags: str, env: dict[str, str] | None = None, limits: str = ""
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-c", PROGRAM, "serve", model, "--port", str(self.port), *flags]
        if limits:
            command = ["bash", "-c", f'{limits}; exec "$@"', "bash", *command]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, env={**os.environ, **(env or {})}, start_new_session=True
            )

    def __enter__(self) -> ServerProcess:
        return self.wait_until_ready()

    def __exit__(self, *args: object) -> None:
        self.stop()

    def wait_until_ready(self) -> ServerProcess:
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.err.read_text()[-2000:]}")
            if "headrace is ready" in self.out.read_text():
                return self
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"the server was not ready in {START_S} s")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit code; TimeoutExpired when it is not there in time."""
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)

    def is_port_free(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) != 0


class SseReader:
    """A raw reader of one stream: writes the request, reads when told, closes when told."""

    def __init__(
        self, port: int, body: dict[str, Any], path: str = "/v1/completions", receive_bytes: int | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", port))
        data = json.dumps({"stream": True, **body}).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""])
        self.socket.sendall(head.encode() + data)
        self.data = b""

    def read_some(self) -> bytes:
        part = self.socket.recv(65536)
        self.data += part
        return part

    def read_all(self) -> str:
        """Until the last event, or until the server closes; then closes too."""
        with self.socket:
            while b"data: [DONE]" not in self.data and b"\r\n0\r\n" not in self.data and self.read_some():
                pass
        return self.data.decode()

    def close(self) -> None:
        self.socket.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
