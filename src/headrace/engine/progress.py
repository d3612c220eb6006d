"""How far a download or a load is, on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Progress = Callable[[str, int, int], None]
"""(what is going on, bytes done, bytes in all)."""


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """One bar for each thing that is going on, on stderr if that is a terminal; nothing remains of it."""
    if not sys.stderr.isatty() and "FORCE_COLOR" not in os.environ:  # as rich itself has it
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        yield _Bars(bars)


class _Bars:
    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)


class CountedWeights:
    """A weight source that tells how many of its bytes were read."""

    def __init__(self, source: Any, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._num_bytes, self._total = 0, source.nbytes
        self.names = source.names
        self.shape = source.shape

    def get(self, name: str) -> Any:
        array = self._source.get(name)
        self._count(array.nbytes)
        return array

    def blocks(self, name: str, is_turned: bool = False) -> Any:
        found = self._source.blocks(name, is_turned)
        if found is not None:
            self._count(found.stored_bytes)
        return found

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._progress("load", min(self._num_bytes, self._total), self._total)
