"""How many tokens a second the server can send: many streams, and a core that only says that there are tokens.

Usage: python -m benchmarks.streams [--streams 1000] [--tokens 1000] [--offered 130000]

One process is the server with everything but the model: HTTP, JSON, detokenizing, events. Another one reads raw bytes
and checks every stream. Reported are the tokens per second between the first and the last byte, and the processor
seconds of the server per million tokens.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import selectors
import socket
import time
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from tests.engine import fakes

from headrace.schedule.stats import SchedulerStats
from headrace.server.loop import run
from headrace.server.ports import bind, listen
from headrace.server.settings import Settings
from headrace.words.inbox import Add
from headrace.words.outputs import Finish, FinishReason
from headrace.words.plan import TokenEvent

PROMPT = 20
LENGTH_CAPPED = Finish(FinishReason.LENGTH_CAPPED)


class MockCore:
    """Gives every open request one token a step, all steps at the offered rate, once all requests are there."""

    def __init__(self, num_streams: int, tokens_per_s: float) -> None:
        self.is_idle = True
        self.last_step_s = self.busy_s = 0.0
        self.num_queued = self.num_queued_tokens = 0
        self.scheduler = SimpleNamespace(
            stats=SchedulerStats, num_running=0, num_waiting=0, roster=SimpleNamespace(requests={}, sequences={})
        )
        self.executor: Any = None
        self._num_streams = num_streams
        self._tokens_per_s = tokens_per_s
        self._inbox: deque[Any] = deque()
        self._open: dict[int, list[int]] = {}
        self._next_s = 0.0

    def put(self, message: Any) -> None:
        self._inbox.append(message)

    def wake(self) -> None: ...

    def close(self) -> None: ...

    def wait(self, timeout_s: float = 0.0) -> None:
        time.sleep(0.005)

    def step(self) -> list[TokenEvent]:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Add):
                self._open[message.request.request_id] = [0, message.request.max_tokens]
            else:
                self._open.pop(message.request_id, None)
        if len(self._open) < self._num_streams and not self._next_s:
            return []
        self.is_idle = not self._open
        if self.is_idle:
            self._next_s = 0.0
            return []
        return self._emit()

    def _emit(self) -> list[TokenEvent]:
        now_s = time.monotonic()
        self._next_s = max(self._next_s, now_s - 0.1) + len(self._open) / self._tokens_per_s
        if self._next_s > now_s:
            time.sleep(self._next_s - now_s)
        now_s, events = time.monotonic(), []
        for request_id, progress in list(self._open.items()):
            progress[0] += 1
            is_last = progress[0] == progress[1]
            letter = (97 + (request_id + progress[0]) % 26,)
            events.append(TokenEvent(request_id, 0, now_s, letter, finish=LENGTH_CAPPED if is_last else None))
            if is_last:
                del self._open[request_id]
        return events


def serve(num_streams: int, tokens_per_s: float, pipe: Connection) -> None:
    engine = fakes.engine(max_model_len=1 << 20, max_num_seqs=num_streams, num_blocks=1 << 19)
    engine = replace(engine, core=MockCore(num_streams, tokens_per_s))
    settings = Settings(model_names=("mock",), port=0)
    sock = bind("127.0.0.1", 0)
    listen(sock)
    pipe.send(sock.getsockname()[1])
    run(engine, settings, sock, "")
    used = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send(used.ru_utime + used.ru_stime)


class Reader:
    """One stream: its bytes as they come."""

    def __init__(self, port: int, num_tokens: int) -> None:
        self.parts: list[bytes] = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        body = json.dumps({"prompt": [65] * PROMPT, "max_tokens": num_tokens, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.socket.setblocking(False)

    def read(self) -> bool:
        """Whether the end has come."""
        part = self.socket.recv(1 << 18)
        self.parts.append(part)
        return not part or part.endswith(b"0\r\n\r\n")

    def text(self) -> str:
        events = [line[6:] for line in b"".join(self.parts).split(b"\n") if line.startswith(b"data: {")]
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)

    def num_events(self) -> int:
        return b"".join(self.parts).count(b"data: {")


def read_all(port: int, num_streams: int, num_tokens: int) -> tuple[list[Reader], float]:
    """All streams to their ends, and the seconds from the first token's byte to the last."""
    selector = selectors.DefaultSelector()
    readers = [Reader(port, num_tokens) for _ in range(num_streams)]
    for reader in readers:
        selector.register(reader.socket, selectors.EVENT_READ, reader)
    first_s, num_open = 0.0, num_streams
    while num_open:
        for key, _ in selector.select():
            first_s = first_s or time.monotonic()
            if key.data.read():
                selector.unregister(key.fileobj)
                num_open -= 1
    return readers, time.monotonic() - first_s


def is_whole(text: str, num_tokens: int) -> bool:
    """A run through the alphabet from some letter, nothing lost and nothing of others in it."""
    start = ord(text[0]) if text else 0
    return text == "".join(chr(97 + (start - 97 + i) % 26) for i in range(num_tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--offered", type=float, default=130_000.0)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(args.streams, args.offered, theirs))
    process.start()
    readers, seconds = read_all(ours.recv(), args.streams, args.tokens)
    os.kill(process.pid or 0, 15)
    cpu_s = ours.recv()
    process.join()
    broken = sum(not is_whole(reader.text(), args.tokens) for reader in readers)
    total, num_events = args.streams * args.tokens, sum(reader.num_events() for reader in readers)
    print(f"{args.streams} streams of {args.tokens} tokens, {args.offered:.0f} tokens/s offered: {broken} broken")
    print(f"{total / seconds:.0f} tokens/s in {seconds:.2f} s; {total / num_events:.1f} tokens an event")
    print(f"{cpu_s / total * 1e6:.2f} processor seconds of the server per million tokens, start included")


if __name__ == "__main__":
    main()
