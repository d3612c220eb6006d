"""Files of a model: small ones read, large ones mapped."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.words.errors import ModelError

SPOTS, SPOT_BYTES = 4, 64
MAX_TEXT_BYTES = 1 << 24
"""Of files that are read whole: the index of the largest models has nine megabytes."""


def read_text(path: Path) -> str:
    """Raises ModelError when the file is missing, not UTF-8, or larger than 16 MiB."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ModelError(path.name, f"has more than {MAX_TEXT_BYTES} bytes; no such file of a model is so long")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ModelError(path.name, "is missing from the model's folder") from None
    except OSError as error:
        raise ModelError(path.name, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ModelError(path.name, "is not UTF-8") from None


def read_json(path: Path) -> dict[str, Any]:
    """An object; ModelError when the file is missing, damaged or something else."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(path.name, f"is no valid JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise ModelError(path.name, "must hold a JSON object")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`; empty when there is no such file."""
    return read_json(path) if path.exists() else {}


def map_file(path: Path) -> mmap.mmap:
    """For reading. Raises ModelError when the file is missing or empty."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(path.name, f"cannot be mapped: {getattr(error, 'strerror', None) or error}") from None


def spots(data: NDArray[np.uint8]) -> bytes:
    """A few bytes from places all over `data`, of which only those pages are read."""
    starts = [len(data) * part // SPOTS for part in range(SPOTS)]
    return b"".join(data[start : start + SPOT_BYTES].tobytes() for start in starts) + data[-SPOT_BYTES:].tobytes()


def unmap(data: mmap.mmap) -> None:
    """Views that still live keep the file mapped. Twice is once."""
    try:
        data.close()
    except BufferError:
        pass
