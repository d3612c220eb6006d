"""Work beside the event loop, on threads that nobody waits for when the program ends."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _GivenUp(SystemExit):
    """Raised inside work that took too long; a thread that ends by it ends silently."""


class _Task:
    """One piece of work: waits, runs in a thread, and is told to the loop, or given up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        self._loop = loop
        self._future = future
        self._work = work
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_given_up = False

    def run(self) -> bool:
        """Whether the thread may take the next one."""
        with self._lock:
            if self._is_given_up or self._future.cancelled():
                return True
            self._thread_id = threading.get_ident()
        try:
            result, error = self._work(), None
        except BaseException as raised:
            result, error = None, raised
        with self._lock:
            self._thread_id = None
        if not self._is_given_up:
            self._tell(result, error)
        return not self._is_given_up

    def _tell(self, result: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, self._future, result, error)
        except RuntimeError:
            return

    def give_up(self) -> bool:
        """Ends the work; True if a thread was at it, which ends too as soon as it runs Python again."""
        with self._lock:
            self._is_given_up = True
            if self._thread_id is None:
                return False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(_GivenUp))
            return True


class Beside:
    """A few daemon threads. Work that takes too long is ended, and its thread has a successor at once."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._num_threads = num_threads
        self._name = name
        for _ in range(num_threads):
            self._start()

    async def run(self, work: Callable[[], T], limit_s: float) -> T:
        """What `work` gives or raises; TimeoutError when it is not done after `limit_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        task = _Task(loop, future, work)
        self._tasks.put(task)
        try:
            async with asyncio.timeout(limit_s):
                return await future
        except (TimeoutError, asyncio.CancelledError):
            if task.give_up():
                self._start()
            raise

    def close(self) -> None:
        for _ in range(self._num_threads):
            self._tasks.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and task.run():
            pass


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
