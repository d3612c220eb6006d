"""The server as a process: port, model, event loop, signals, and an exit code that tells what happened."""

from __future__ import annotations

import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from headrace.engine.build import Engine, build_engine
from headrace.engine.progress import Progress, terminal_progress
from headrace.engine.warm_up import warm_up
from headrace.server import ports
from headrace.server.fault import fault_of
from headrace.server.ready import ready_text
from headrace.server.settings import LOOPBACK, Settings
from headrace.server.spans import Spans, make_spans
from headrace.words import envs
from headrace.words.config import EngineConfig
from headrace.words.errors import ConfigError
from headrace.words.log import get_logger

log = get_logger(__name__)
FEW_CONNECTIONS = 256
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits at most while the core's thread runs Python; Python's own 5 ms are felt by probes."""
Build = Callable[[EngineConfig, Progress], Engine]
Run = Callable[[Engine, Settings, socket.socket, str, Spans], int]


def _build(asked: EngineConfig, progress: Progress) -> Engine:
    return build_engine(asked, progress, fault=fault_of(envs.get("HEADRACE_FAULT")))


def check_settings(settings: Settings) -> None:
    for key in settings.api_keys:
        if not key or not key.isprintable() or key != key.strip():
            raise ConfigError("api_key", "must be printable characters without white space around them, at least one")
    if settings.host not in LOOPBACK and not settings.api_keys:
        raise ConfigError("api_key", f"is needed to serve beyond this machine (host {settings.host}); set one")


def serve(asked: EngineConfig, settings: Settings, build: Build = _build) -> int:
    """Serves until a signal or the engine's end; gives the exit code. Raises ConfigError and ModelError."""
    check_settings(settings)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = _with_connections(settings)
    started_s = time.monotonic()
    spans = make_spans(settings.otlp_traces_endpoint, settings.model_name)
    sock = ports.bind(settings.host, settings.port)
    with sock, _without_collections():
        load = _Load()
        with _ended_by_signals():
            with terminal_progress() as progress:
                engine = build(asked, load.beside(progress))
            warm_up(engine)
            run = load.event_loop()
        ports.listen(sock)
        text = ready_text(engine, settings, sock.getsockname()[1], load.num_bytes, time.monotonic() - started_s)
        return run(engine, settings, sock, text, spans)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Until the event loop runs nearly all that is made stays: looking for garbage among it takes a tenth of the
    time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _with_connections(settings: Settings) -> Settings:
    if settings.max_connections is not None:
        return settings
    number = ports.max_connections()
    if number < FEW_CONNECTIONS:
        log.warning("the limit of open files leaves room for %d connections; raise it with ulimit -n", number)
    return replace(settings, max_connections=number)


class _Load:
    """Listens to the load: remembers how many bytes are read, and imports the event loop's modules beside it. That is
    as much work as packing the weights, which leaves Python alone; what comes before the weights does not."""

    def __init__(self) -> None:
        self.num_bytes: int | None = None
        # Not a daemon: ended within an import, it would keep that module's lock from whoever imports it at exit.
        self._importer = threading.Thread(target=_import_loop, name="headrace-imports")

    def beside(self, progress: Progress) -> Progress:
        def tell(what: str, done: int, total: int) -> None:
            if what == "load":
                if self.num_bytes is None:
                    self._importer.start()
                self.num_bytes = total
            progress(what, done, total)

        return tell

    def event_loop(self) -> Run:
        if self._importer.ident is not None:
            self._importer.join()
        return _import_loop()


def _import_loop() -> Run:
    from headrace.server.loop import run

    return run


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While the model loads a signal ends the program as an exception does, so that helpers are ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
