"""What looks after a running server: dead engines, stuck steps, and readers that do not read."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import time

from headrace.engine.live import is_working
from headrace.server.service import Service
from headrace.words.errors import EngineDeadError
from headrace.words.log import get_logger

log = get_logger(__name__)
PERIOD_S = 0.25
GRACE_S = 5.0
"""How much longer the timer that needs no Python waits."""


class Watchdog:
    """Looks four times a second. A step that takes `wedge_timeout_s` while there is work ends the server.

    Time counts as it is seen to pass, so that a process that was stopped is not blamed for it. Where no Python runs
    any more, faulthandler's timer dumps the stacks and ends the process; it is set only while there is work, and only
    by `run`, which takes it back: the timer is the process's, and a look by itself leaves none behind.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stuck_s = 0.0
        self._seen_step_s = 0.0
        self._is_running = False
        self._is_armed = False

    async def run(self) -> str:
        """Until the engine is lost; gives the reason."""
        before_s = time.monotonic()
        self._is_running = True
        self._service.alarm = self._arm_if_idle
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                now_s = time.monotonic()
                if why := self.look(min(now_s - before_s, 2 * PERIOD_S)):
                    return why
                before_s = now_s
        finally:
            self._service.alarm = lambda: None
            self._is_running = False
            self._disarm()

    def look(self, passed_s: float) -> str | None:
        """One look, `passed_s` after the last; gives why the server must end."""
        service = self._service
        if service.llm.is_dead:
            return "the engine stopped"
        self._cut_slow_readers()
        core = service.llm.engine.core
        if not is_working(core):
            self._stuck_s = 0.0
            if not service.llm.num_open:
                self._disarm()
            return None
        if core.last_step_s != self._seen_step_s:
            self._stuck_s, self._seen_step_s = 0.0, core.last_step_s
            self._arm()
        else:
            self._stuck_s += passed_s
        return self._give_up() if self._stuck_s >= service.settings.wedge_timeout_s else None

    def _give_up(self) -> str:
        limit_s = self._service.settings.wedge_timeout_s
        log.error("no step ended for %g s; last steps: %s", limit_s, self._service.flight.read()[-8:])
        dump_stacks()
        why = f"no step ended for {limit_s:g} s"
        self._service.llm.fail(EngineDeadError(why))
        return why

    def _cut_slow_readers(self) -> None:
        limit_s = self._service.settings.send_timeout_s
        now_s = asyncio.get_running_loop().time()
        for stream in list(self._service.senders):
            if stream.sending_since_s is not None and now_s - stream.sending_since_s > limit_s:
                stream.cut()

    def _arm_if_idle(self) -> None:
        """The first step of all may be the one that stands still."""
        if not self._is_armed:
            self._arm()

    def _arm(self) -> None:
        if self._is_running and has_stderr():
            faulthandler.dump_traceback_later(self._service.settings.wedge_timeout_s + GRACE_S, exit=True)
            self._is_armed = True

    def _disarm(self) -> None:
        if self._is_armed:
            faulthandler.cancel_dump_traceback_later()
            self._is_armed = False


def has_stderr() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def dump_stacks() -> None:
    if has_stderr():
        faulthandler.dump_traceback(all_threads=True)
