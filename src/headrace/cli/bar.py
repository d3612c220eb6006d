"""A bar that counts what is done."""

from __future__ import annotations

import sys


class Bar:
    """Things done, on stderr if that is a terminal; nothing remains of it."""

    def __init__(self, total: int, what: str = "requests") -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._what = what
        console = Console(stderr=True)
        self._bars = Progress(console=console, disable=not sys.stderr.isatty(), transient=True)
        self._task = self._bars.add_task(what, total=total)

    def tell(self, done: object = None) -> None:
        self._bars.advance(self._task)

    def show(self, num_done: int, num_failed: int) -> None:
        more = f" ({num_failed} failed)" if num_failed else ""
        self._bars.update(self._task, completed=num_done, description=self._what + more)

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._bars.stop()
