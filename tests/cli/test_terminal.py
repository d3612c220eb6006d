"""A chat at a real terminal: the prompt, Ctrl-C between turns, and the end of the input."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.cli.test_cli import Opener
from headrace.cli.app import run
sys.exit(run(["chat"], Opener()))
"""


class Terminal:
    """A program at a pseudo-terminal."""

    def __init__(self, code: str, **more: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT), **more}
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        command = [sys.executable, "-c", code]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        os.close(slave)
        self.unread = ""

    def read_until(self, text: str, seconds: float = 30) -> str:
        """What comes up to `text`."""
        end_s = time.monotonic() + seconds
        while text not in self.unread:
            ready, _, _ = select.select([self._master], [], [], max(0, end_s - time.monotonic()))
            assert ready, f"{text!r} did not come; there is {self.unread!r}"
            self.unread += os.read(self._master, 4_096).decode()
        seen, _, self.unread = self.unread.partition(text)
        return seen

    def interrupt_until(self, text: str) -> None:
        """Presses Ctrl-C, again if need be: readline sleeps over one that comes just before it sleeps."""
        for _ in range(10):
            time.sleep(0.1)
            self.process.send_signal(signal.SIGINT)
            try:
                self.read_until(text, seconds=2)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{text!r} did not come")

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            os.close(self._master)


def test_a_chat_at_a_terminal():
    terminal = Terminal(PROGRAM)
    terminal.read_until("> ")
    terminal.write("hello\n")
    assert "ok then" in terminal.read_until("tok/s")
    terminal.read_until("> ")
    terminal.interrupt_until("Ctrl-C stops an answer")
    terminal.read_until("> ")
    terminal.write("\x04")
    assert terminal.close() == 0
