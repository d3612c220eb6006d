"""Faults on demand, for tests of what the server promises. Without the variable there is nothing of it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable

from headrace.words.errors import ConfigError, EngineDeadError
from headrace.words.plan import StepPlan

Fault = Callable[[str, StepPlan], None]
KINDS = ("raise", "hang", "freeze", "oom", "segv")


def fault_of(text: str | None) -> Fault | None:
    """`raise@20` ends the engine in step 20, `hang@20` stops there for ever, `freeze@20` with all of Python,
    `oom@20` raises MemoryError once."""
    if not text:
        return None
    kind, _, step = text.partition("@")
    if kind not in KINDS or not (step.isascii() and step.isdecimal()):
        raise ConfigError("HEADRACE_FAULT", f"must be KIND@STEP with a kind of {', '.join(KINDS)}, got {text!r}")
    when = int(step)

    def fault(half: str, plan: StepPlan) -> None:
        if half == "forward" and plan.step == when:
            _do(kind)

    return fault


def _do(kind: str) -> None:
    match kind:
        case "raise":
            raise EngineDeadError("a fault was asked for")
        case "hang":
            threading.Event().wait()
        case "freeze":
            # One call in C that lets no other thread run.
            sum(itertools.repeat(0, 1 << 60))
        case "oom":
            raise MemoryError("a fault was asked for")
        case _:
            os.kill(os.getpid(), signal.SIGSEGV)
