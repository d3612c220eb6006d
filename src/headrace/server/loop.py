"""uvicorn's server around the application: signals, drain, and the watch over the engine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from headrace.engine.build import Engine
from headrace.engine.host import AsyncLLM
from headrace.server import ports
from headrace.server.app import make_app
from headrace.server.flight import FlightRecorder
from headrace.server.http import bounded_protocol
from headrace.server.service import Service
from headrace.server.settings import Settings
from headrace.server.spans import Spans
from headrace.server.watch import Watchdog
from headrace.words.errors import EngineDeadError
from headrace.words.log import get_logger

log = get_logger(__name__)
LAST_WORDS_S = 2.0
"""Time to tell every open request that the engine is gone."""


def run(engine: Engine, settings: Settings, sock: socket.socket, text: str, spans: Spans | None = None) -> int:
    """Serves on a listening socket until a signal or the engine's end, and says `text` when it is ready; gives the
    exit code."""
    flight = FlightRecorder(settings.num_steps)
    flight.attach(engine.core)
    llm = AsyncLLM(engine)
    service = Service(llm, settings, flight, spans)
    config = uvicorn.Config(
        make_app(service),
        http=bounded_protocol(settings),
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=ports.BACKLOG,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=int(LAST_WORDS_S),
    )
    server = Server(config, service, text)
    try:
        server.run(sockets=[sock])
    finally:
        service.close()
        gc.unfreeze()
    if not llm.is_dead:
        llm.shutdown()
    return server.exit_code


def say(text: str) -> None:
    """On stdout; one that is full or that nobody reads any more ends no server."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("the ready line cannot be written: %s", error.strerror)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


class Server(uvicorn.Server):
    """uvicorn's server that drains: a first signal lets open requests end, a second one ends the process."""

    def __init__(self, config: uvicorn.Config, service: Service, text: str) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._service = service
        self._text = text
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there now stays: a collection that looked at it again would hold every thread for a tenth of a second.
        gc.freeze()
        gc.enable()
        self._tasks.append(asyncio.create_task(self._watch()))
        say(self._text)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signals are not raised once more: a drained server exits with 0."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            # Nobody is told anything any more; what a process holds the system takes back.
            os._exit(128 + sig)
        self._service.is_draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._tasks.append(asyncio.create_task(self._drain()))

    async def _drain(self) -> None:
        """The port stays open meanwhile, so that /ready and new requests are answered with 503."""
        service, llm, limit_s = self._service, self._service.llm, self._service.settings.shutdown_timeout_s
        log.info("shutting down: %d open requests have %g s", llm.num_open, limit_s)
        end_s = time.monotonic() + limit_s
        while (llm.num_open or service.num_inside) and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        llm.abort_all("the server is shutting down")
        await self._wait_for_the_last()
        self.should_exit = True

    async def _watch(self) -> None:
        why = await Watchdog(self._service).run()
        if self.should_exit:
            return
        log.error("%s; the server ends", why)
        self.exit_code = 1
        self._service.is_draining = True
        if not self._service.llm.is_dead:
            self._service.llm.fail(EngineDeadError(why))
        await self._wait_for_the_last()
        self.should_exit = True

    async def _wait_for_the_last(self) -> None:
        end_s = time.monotonic() + LAST_WORDS_S
        while self._service.llm.num_open and time.monotonic() < end_s:
            await asyncio.sleep(0.02)
