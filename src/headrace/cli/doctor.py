"""`headrace doctor`: what this machine and this installation are, and what would be slow or broken here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace import __version__
from headrace.cli.models import size
from headrace.cli.report import plural
from headrace.words import envs
from headrace.words.config import DEFAULT_MODEL, GIB, Hardware
from headrace.words.errors import ModelError

State = Literal["ok", "slow", "broken"]
PACKAGES = ("numpy", "tokenizers", "huggingface-hub", "jinja2", "fastapi", "torch")
SECRET = ("HF_TOKEN", "HEADRACE_API_KEY")
LEAST_MEMORY_BYTES, LEAST_DISK_BYTES = GIB, GIB
BUSY_SHARE = 0.5
"""Load for each core above which others are in the way."""


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at; tests look at others."""

    hardware: Hardware
    isas: tuple[str, ...] | None
    """That this build has and this machine runs, slowest first; None without native kernels."""
    isa: str | None
    has_torch: bool
    allowed_cores: int
    load: float
    """Processes that run or wait to, over the last minute."""
    cache: Path
    free_disk_bytes: int
    variables: Mapping[str, str]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """Say what this machine offers and what would be slow or broken on it; exit code 1 if anything is broken."""
    findings = list(examine(look()))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        print("\n".join(f"{f.state:<7} {f.topic:<12} {f.text}" for f in findings))
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def look() -> Place:
    from headrace.load.default_model import cache_folder
    from headrace.worker.hardware import measure_hardware

    hardware, cache = measure_hardware(), cache_folder()
    names, isa = kernels() if hardware.has_kernels else (None, None)
    return Place(
        hardware=hardware,
        isas=names,
        isa=isa,
        has_torch=importlib.util.find_spec("torch") is not None,
        allowed_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=os.getloadavg()[0],
        cache=cache,
        free_disk_bytes=shutil.disk_usage(nearest_folder(cache)).free,
        variables={v.name: value for v in envs.VARIABLES if (value := os.environ.get(v.name))},
    )


def kernels() -> tuple[tuple[str, ...], str | None]:
    """Every usable instruction set, and the one that is used; None where HEADRACE_ISA names one that is not."""
    from headrace import _native

    try:
        return tuple(_native.isas()), _native.Machine(1, envs.get("HEADRACE_ISA") or "").isa
    except ValueError:
        return tuple(_native.isas()), None


def nearest_folder(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.is_dir())


def examine(place: Place) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check(place)


def installation(place: Place) -> Iterator[Finding]:
    versions = [f"{name} {version}" for name in PACKAGES if (version := installed(name))]
    yield Finding("ok", "headrace", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield Finding("ok", "packages", ", ".join(versions))


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def backend(place: Place) -> Iterator[Finding]:
    if place.isas is None:
        slow = "the native kernels were not built; install a C++ compiler and then headrace again"
        if place.has_torch:
            yield Finding("slow", "kernels", f"{slow}. Until then torch computes, many times slower")
        else:
            yield Finding("broken", "kernels", f"{slow}, or headrace[torch]")
    elif place.isa is None:
        wish = place.variables.get("HEADRACE_ISA")
        yield Finding("broken", "kernels", f"HEADRACE_ISA is {wish!r}; usable here are {', '.join(place.isas)}")
    elif place.isa != place.isas[-1]:
        yield Finding("slow", "kernels", f"{place.isa} by HEADRACE_ISA, though {place.isas[-1]} would be faster")
    elif place.isa == "portable":
        yield Finding("slow", "kernels", "portable: this processor has none of the faster instruction sets")
    else:
        yield Finding("ok", "kernels", f"{place.isa} (usable: {', '.join(place.isas)})")


def threads(place: Place) -> Iterator[Finding]:
    used, allowed = place.hardware.num_cores, place.allowed_cores
    if used < allowed:
        asked = "HEADRACE_NUM_THREADS" in place.variables
        why = "HEADRACE_NUM_THREADS" if asked else "the control group's quota"
        yield Finding("slow", "threads", f"{used} by {why}, though {allowed} cores are allowed")
    else:
        yield Finding("ok", "threads", f"{used}, one for each allowed core")
    if place.load > BUSY_SHARE * allowed:
        cores = plural(allowed, "core")
        why = "others compute too, and steps wait for them"
        yield Finding("slow", "load", f"a load average of {place.load:.1f} on {cores}: {why}")


def memory(place: Place) -> Iterator[Finding]:
    present, limit = place.hardware.memory_available_bytes, place.hardware.memory_limit_bytes
    text = f"{size(present)} available of {size(limit)}"
    if present < LEAST_MEMORY_BYTES:
        yield Finding("broken", "memory", f"{text}; the smallest models want {size(LEAST_MEMORY_BYTES)}")
    elif present < limit / 4:
        yield Finding("slow", "memory", f"{text}; models that do not fit the rest are read from disk again and again")
    else:
        yield Finding("ok", "memory", text)


def storage(place: Place) -> Iterator[Finding]:
    free = f"{size(place.free_disk_bytes)} free where models are kept"
    if not is_writable(place.cache):
        yield Finding("broken", "cache", "the cache folder cannot be written to; name another by HEADRACE_CACHE")
    elif place.free_disk_bytes < LEAST_DISK_BYTES:
        yield Finding("broken", "cache", free)
    else:
        yield Finding("ok", "cache", free)


def is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def environment(place: Place) -> Iterator[Finding]:
    shown = [f"{name}={'***' if name in SECRET else value}" for name, value in place.variables.items()]
    if shown:
        yield Finding("ok", "variables", " ".join(shown))
    if place.variables.get("HEADRACE_CHECK_INVARIANTS", "0") != "0":
        yield Finding("slow", "invariants", "HEADRACE_CHECK_INVARIANTS checks the scheduler while it works")
    if "HEADRACE_FAULT" in place.variables:
        yield Finding("broken", "fault", "HEADRACE_FAULT makes a step fail on purpose")


def default_model(place: Place) -> Iterator[Finding]:
    """Whether the model that commands take by default is here."""
    from headrace.load.hub import find_here

    try:
        find_here(DEFAULT_MODEL)
        yield Finding("ok", "model", f"{DEFAULT_MODEL} is here")
    except ModelError as error:
        yield Finding("slow", "model", f"{error}; until then the first command fetches it")


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    installation,
    backend,
    threads,
    memory,
    storage,
    environment,
    default_model,
)
