"""Ctrl-C between steps: an interrupt never tears a step apart."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredInterrupt:
    """Within the block the first Ctrl-C is noted and raised by `check`; a second one is raised where it strikes.

    Does nothing outside the main thread, or where somebody else handles the signal.
    """

    def __init__(self) -> None:
        self._is_noted = False
        self._is_ours = False

    def __enter__(self) -> DeferredInterrupt:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_ours = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if error is None:
            self.check()

    def take(self) -> bool:
        """Whether a Ctrl-C was noted since the last time; it is then settled."""
        is_noted, self._is_noted = self._is_noted, False
        return is_noted

    def check(self) -> None:
        """Raises KeyboardInterrupt if one was noted."""
        if self.take():
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._is_noted = True
        self._restore()

    def _restore(self) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_ours = False
