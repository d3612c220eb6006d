"""A reader of GGUF files, versions 2 and 3 (the format's specification is ggml's docs/gguf.md).

The file is mapped, never read whole; every size it states is checked against the file before anything is made of it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.load.files import map_file, unmap
from headrace.load.quants import QUANTS, Quant
from headrace.words.errors import ModelError, brief

MAGIC = b"GGUF"
STRING, ARRAY, BOOL = 8, 9, 7
LENGTH = struct.Struct("<Q")
SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", BOOL: "B", 10: "<Q", 11: "<q", 12: "<d"}
MAX_DIMS = 4
MAX_NESTING = 8
MAX_ENTRIES, MAX_TENSORS, MAX_ARRAYS, MAX_STRINGS = 1 << 14, 1 << 15, 1 << 16, 1 << 22
"""In one file. Each is far above what a model has, and small enough to be read in a second and in a few megabytes."""
MAX_NAME_BYTES = 65_535
MAX_KEPT_BYTES = 1 << 22
"""Of a string of the metadata: longer ones are passed over."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in the order of numpy, the last dimension contiguous."""

    name: str
    shape: tuple[int, ...]
    quant: Quant
    offset: int
    num_bytes: int


class Strings:
    """An array of strings as it lies in the file, read anew by whoever goes through it. UnicodeDecodeError then."""

    def __init__(self, data: mmap.mmap, start: int, count: int) -> None:
        self._data = data
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        data, at, unpack = self._data, self._start, LENGTH.unpack_from
        for _ in range(self._count):
            end = at + 8 + unpack(data, at)[0]
            yield data[at + 8 : end].decode("utf-8")
            at = end


class GGUFFile:
    """`metadata` (strings, numbers, `Strings`, arrays of numbers) and `tensors` of a mapped file.

    ModelError says what is wrong with it. What is made of the header is smaller than the header, or a few megabytes:
    arrays stay in the file, and what nobody reads (arrays of arrays, strings above 4 MiB) is passed over.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._map = map_file(path)
        self._at = 0
        self._num_strings = self._num_arrays = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read()
        except UnicodeDecodeError:
            raise ModelError(self.name, f"has a string near byte {self._at} that is not UTF-8") from None

    def _read(self) -> None:
        if self._take(4) != MAGIC:
            raise ModelError(self.name, "is not a GGUF file (its first bytes are not GGUF)")
        version, num_tensors, num_entries = self._unpack("<IQQ")
        if version not in (2, 3):
            raise ModelError(self.name, f"has GGUF version {version}; versions 2 and 3 (little-endian) can be read")
        self._check_count("metadata entries", num_entries, 13, MAX_ENTRIES)
        for _ in range(num_entries):
            key = self._name()
            if key in self.metadata:
                raise ModelError(self.name, f"has two metadata entries named {brief(key)}")
            self.metadata[key] = self._value(self._unpack("<I")[0])
        self.metadata = {key: value for key, value in self.metadata.items() if value is not None}
        self._check_count("tensors", num_tensors, 24, MAX_TENSORS)
        infos = [self._tensor_header() for _ in range(num_tensors)]
        self._place(infos)

    def _skip(self, count: int) -> int:
        """Where the next `count` bytes begin, which are behind us then."""
        at, end = self._at, self._at + count
        if end > len(self._map):
            size = len(self._map)
            raise ModelError(self.name, f"ends after {size} bytes, its header speaks of byte {end}; is it truncated?")
        self._at = end
        return at

    def _take(self, count: int) -> bytes:
        at = self._skip(count)
        return self._map[at : at + count]

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _check_count(self, what: str, count: int, least_bytes: int, most: int) -> None:
        if count * least_bytes > len(self._map) - self._at:
            raise ModelError(self.name, f"states {count} {what}, more than fit its {len(self._map)} bytes")
        if count > most:
            raise ModelError(self.name, f"states {count} {what}; at most {most} are read")

    def _name(self) -> str:
        (length,) = self._unpack("<Q")
        if length > MAX_NAME_BYTES and length <= len(self._map):
            raise ModelError(self.name, f"has a name of {length} bytes; at most {MAX_NAME_BYTES} are allowed")
        return self._take(length).decode("utf-8")

    def _value(self, kind: int) -> Any:
        """None for what is passed over."""
        if kind == STRING:
            (length,) = self._unpack("<Q")
            at = self._skip(length)
            return self._map[at : at + length].decode("utf-8") if length <= MAX_KEPT_BYTES else None
        if kind == ARRAY:
            return self._array()
        if kind not in SCALARS:
            raise ModelError(self.name, f"has a metadata value of the unknown type {kind}")
        (value,) = self._unpack(SCALARS[kind])
        return bool(value) if kind == BOOL else value

    def _array(self, depth: int = 0) -> Any:
        kind, count = self._unpack("<IQ")
        if kind == STRING:
            return self._strings(count)
        if kind == ARRAY and depth < MAX_NESTING:
            self._check_count("arrays", count, 12, MAX_ARRAYS - self._num_arrays)
            self._num_arrays += count
            for _ in range(count):
                self._array(depth + 1)
            return None
        if kind not in SCALARS:
            raise ModelError(self.name, f"has a metadata array of the unsupported type {kind}")
        dtype = np.dtype(SCALARS[kind])
        self._check_count("array values", count, dtype.itemsize, len(self._map))
        values = np.frombuffer(self._map, dtype, count, self._skip(count * dtype.itemsize))
        return values.astype(bool) if kind == BOOL else values

    def _strings(self, count: int) -> Strings:
        """A vocabulary has ten thousands: one loop over the map, without a call per string."""
        self._check_count("strings", count, 8, MAX_STRINGS - self._num_strings)
        self._num_strings += count
        data, start, size, unpack = self._map, self._at, len(self._map), LENGTH.unpack_from
        at = start
        for _ in range(count):
            if at + 8 > size:
                raise ModelError(self.name, "ends within an array of strings")
            at += 8 + unpack(data, at)[0]
            if at > size:
                raise ModelError(self.name, "states a string that is longer than the file")
        self._at = at
        return Strings(data, start, count)

    def _tensor_header(self) -> tuple[str, tuple[int, ...], Quant, int]:
        name = self._name()
        (num_dims,) = self._unpack("<I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise ModelError(self.name, f"the tensor {brief(name)} has {num_dims} dimensions")
        dims = self._unpack(f"<{num_dims}Q")
        if 0 in dims:
            raise ModelError(self.name, f"the tensor {brief(name)} has a dimension of 0")
        kind, offset = self._unpack("<IQ")
        if kind not in QUANTS:
            raise ModelError(self.name, f"the tensor {brief(name)} has the unknown quantization type {kind}")
        return name, tuple(reversed(dims)), QUANTS[kind], offset

    def _place(self, headers: list[tuple[str, tuple[int, ...], Quant, int]]) -> None:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ModelError(self.name, f"has the alignment {brief(alignment)}, which is no power of two")
        start = -(-self._at // alignment) * alignment
        ends: list[tuple[int, int, str]] = []
        for name, shape, quant, offset in headers:
            num_bytes = self._num_bytes(name, shape, quant)
            if name in self.tensors:
                raise ModelError(self.name, f"has two tensors named {brief(name)}")
            if offset % alignment or start + offset + num_bytes > len(self._map):
                raise ModelError(self.name, f"the tensor {brief(name)} does not lie within the file; is it truncated?")
            self.tensors[name] = TensorInfo(name, shape, quant, start + offset, num_bytes)
            ends.append((offset, offset + num_bytes, name))
        ends.sort()
        for (_, end, _first), (begin, _, second) in zip(ends, ends[1:], strict=False):
            if begin < end:
                raise ModelError(self.name, f"the tensor {brief(second)} overlaps another")

    def _num_bytes(self, name: str, shape: tuple[int, ...], quant: Quant) -> int:
        if shape[-1] % quant.block_values:
            raise ModelError(self.name, f"the tensor {brief(name)} has rows of {shape[-1]}, no multiple of its block")
        count = 1
        for size in shape:
            count *= size
        return count // quant.block_values * quant.block_bytes

    def raw(self, name: str, part: int | None = None) -> NDArray[np.uint8]:
        """The tensor's bytes, or those of one part of it by its first dimension; a view of the map."""
        info = self.tensors[name]
        if part is None:
            return np.frombuffer(self._map, np.uint8, info.num_bytes, info.offset)
        size = info.num_bytes // info.shape[0]
        return np.frombuffer(self._map, np.uint8, size, info.offset + part * size)

    def tensor(self, name: str, part: int | None = None) -> NDArray[np.float32]:
        """The tensor, or a part of it by its first dimension, dequantized to float32."""
        info = self.tensors[name]
        shape = info.shape if part is None else info.shape[1:]
        return info.quant.dequantize(self.raw(name, part)).reshape(shape)

    def close(self) -> None:
        """Forgets the metadata and unmaps the file; views of it that still live keep it mapped. Twice is once."""
        self.metadata.clear()
        unmap(self._map)
