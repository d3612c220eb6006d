"""Work beside the event loop, on threads that nobody waits for when the program ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Beside:
    """A few daemon threads. What takes too long is given up by whoever waits; its thread goes on to the end."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_threads = num_threads
        for number in range(num_threads):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    async def run(self, work: Callable[[], T], limit_s: float) -> T:
        """What `work` gives or raises; TimeoutError after `limit_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._tasks.put(lambda: _settle(loop, future, work))
        async with asyncio.timeout(limit_s):
            return await future

    def close(self) -> None:
        for _ in range(self._num_threads):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    if future.cancelled():
        return
    try:
        result, error = work(), None
    except BaseException as raised:
        result, error = None, raised
    try:
        loop.call_soon_threadsafe(_tell, future, result, error)
    except RuntimeError:
        return


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
