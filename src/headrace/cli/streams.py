"""Standard streams as a program at the end of a pipe finds them: closed, full, or of another encoding."""

from __future__ import annotations

import contextlib
import os
import sys
from io import TextIOWrapper
from typing import TextIO


def mend_streams() -> None:
    """A character that a stream cannot carry is replaced; what goes to a stream that was closed is dropped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """Nobody reads standard output any more, or it is full: what is left of it is dropped at exit."""
    _drop(sys.stdout)


def drop_logs() -> None:
    """The same of standard error, if what was logged there cannot be written: else the exit code would be Python's."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
