"""What this process may use of the machine: cores and bytes, as the kernel and its control groups say."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.words import envs
from headrace.words.config import Hardware

KIB = 1_024


def measure_hardware(root: Path = Path("/")) -> Hardware:
    """Reads /proc and /sys below `root`. The memory limit is the control groups' (v1 or v2) where they set one, else
    the machine's memory; cores are those of the affinity mask, fewer where a quota or HEADRACE_NUM_THREADS asks so."""
    total, available = _memory(root)
    limit = min([total, *_memory_limits(root)])
    has_kernels = importlib.util.find_spec("headrace._native") is not None
    return Hardware(_num_cores(root), limit, min(available, limit), has_kernels)


def _memory(root: Path) -> tuple[int, int]:
    """Total and available bytes; where the kernel has no /proc/meminfo, all pages count as available."""
    text = _read(root / "proc/meminfo")
    if text is None:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, free = (int(fields[name].split()[0]) * KIB for name in ("MemTotal", "MemFree"))
    available = fields.get("MemAvailable")
    return total, free if available is None else int(available.split()[0]) * KIB


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _group_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text is not None and text.strip().isdigit():
                yield int(text)


def _num_cores(root: Path) -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_core_quotas(root), *_asked()]))


def _asked() -> Iterator[int]:
    number = envs.whole_number("HEADRACE_NUM_THREADS", 1)
    if number is not None:
        yield number


def _core_quotas(root: Path) -> Iterator[int]:
    """Whole cores of each quota, rounded up."""
    for folder in _group_folders(root, "cpu"):
        words = (_read(folder / "cpu.max") or "").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if len(words) == 2 and words[0].strip().isdigit() and int(words[1]) > 0:
            yield -(-int(words[0]) // int(words[1]))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The process's control group in each hierarchy that may limit `controller`, then its parents up to the root."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base = base if base.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        group = Path(path.strip("/"))
        yield from (base / part for part in (group, *group.parents))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
