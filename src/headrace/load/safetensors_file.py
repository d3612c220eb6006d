"""A reader of safetensors files over a map, with bfloat16 as numpy can hold it (the format's own page is its spec)."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.load.files import map_file, unmap
from headrace.words.errors import ModelError, brief

DTYPES: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
"""Of every type that a file may hold; nothing here computes with those that are not in DTYPES."""
MAX_HEADER_BYTES = 100_000_000
SMALL_HEADER_BYTES, HEADER_SHARE = 1 << 20, 32
"""A larger header must be a small share of its file: what is made of it takes several times its size."""
MAX_EXTENT = 2**48
MAX_DIMS = 8


class Entry(NamedTuple):
    """Bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """The header is checked against the file before anything is made of it. ModelError says what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._map = map_file(path)
        header, start = self._header()
        self.entries = {name: self._entry(name, entry, start) for name, entry in header.items()}
        self._check_places(start)

    def _header(self) -> tuple[dict[str, Any], int]:
        """The tensors' descriptions, and where data begins."""
        size = len(self._map)
        length = struct.unpack("<Q", self._map[:8])[0] if size >= 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ModelError(self.name, f"states a header of {length} bytes in a file of {size}; is it truncated?")
        if length > max(SMALL_HEADER_BYTES, size // HEADER_SHARE):
            raise ModelError(self.name, f"has a header of {length} bytes, too long for a file of {size}")
        try:
            header = json.loads(self._map[8 : 8 + length], object_pairs_hook=unique)
        except RepeatedNameError as error:
            raise ModelError(self.name, f"has two entries named {brief(error.args[0])}") from None
        except (ValueError, RecursionError):
            raise ModelError(self.name, "has a header that is no valid JSON") from None
        if not isinstance(header, dict):
            raise ModelError(self.name, "has a header that is no JSON object")
        header.pop("__metadata__", None)
        return header, 8 + length

    def _entry(self, name: str, described: Any, start: int) -> Entry:
        match described:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if is_sane(shape, begin, end):
                pass
            case _:
                raise ModelError(self.name, f"has a damaged entry for the tensor {brief(name)}")
        if dtype not in ITEM_BYTES:
            raise ModelError(self.name, f"the tensor {brief(name)} has the unknown type {brief(dtype)}")
        if end - begin != math.prod(shape) * ITEM_BYTES[dtype] or start + end > len(self._map):
            raise ModelError(self.name, f"the tensor {brief(name)} does not lie within the file; is it truncated?")
        return Entry(dtype, tuple(shape), start + begin, start + end)

    def _check_places(self, start: int) -> None:
        """The format leaves no room between tensors, nor behind the last."""
        at = start
        for begin, end, name in sorted((entry.begin, entry.end, name) for name, entry in self.entries.items()):
            if begin < at:
                raise ModelError(self.name, f"the tensor {brief(name)} overlaps another")
            if begin > at:
                raise ModelError(self.name, f"has {begin - at} bytes before the tensor {brief(name)} that are nobody's")
            at = end
        if at != len(self._map):
            raise ModelError(self.name, f"has {len(self._map) - at} bytes behind its last tensor")

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, a view of the map."""
        entry = self.entries[name]
        return np.frombuffer(self._map, np.uint8, entry.end - entry.begin, entry.begin)

    def tensor(self, name: str) -> NDArray[Any]:
        """A view of the map, or a copy where it lies at an odd place; uint16 holds bfloat16."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise ModelError(self.name, f"the tensor {brief(name)} is {entry.dtype}; {', '.join(DTYPES)} can be used")
        dtype = np.dtype(DTYPES[entry.dtype])
        array = np.frombuffer(self._map, dtype, math.prod(entry.shape), entry.begin).reshape(entry.shape)
        return array if array.flags.aligned else array.copy()

    def close(self) -> None:
        """Unmaps the file; views of it that still live keep it mapped. Twice is once."""
        unmap(self._map)


class RepeatedNameError(ValueError):
    """A name that stands twice in one JSON object."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RepeatedNameError(name)
        found[name] = value
    return found


def is_sane(shape: list[Any], begin: Any, end: Any) -> bool:
    """Whether these are whole numbers that a file may hold, and not too many."""
    if len(shape) > MAX_DIMS:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MAX_EXTENT for n in (*shape, begin, end))
