"""GGUF files as bytes, written by hand so that they may lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
F32, Q4_0, Q8_0 = 0, 2, 8


class Entry(NamedTuple):
    key: str
    kind: int
    value: Any


class Array(NamedTuple):
    kind: int
    values: Sequence[Any]


class Tensor(NamedTuple):
    """`dims` in GGUF's order, the contiguous one first."""

    name: str
    dims: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        return struct.pack("<IQ", value.kind, len(value.values)) + b"".join(
            value_bytes(value.kind, element) for element in value.values
        )
    return struct.pack("<" + FORMS[kind], value)


def entry_bytes(entry: Entry) -> bytes:
    return text(entry.key) + struct.pack("<I", entry.kind) + value_bytes(entry.kind, entry.value)


def header(num_tensors: int, num_entries: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries)


def tensor_bytes(tensor: Tensor, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
    return text(tensor.name) + dims + struct.pack("<IQ", tensor.kind, offset)


def padded(data: bytes, alignment: int = 32) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def gguf(entries: Sequence[Entry] = (), tensors: Sequence[Tensor] = (), alignment: int = 32, version: int = 3) -> bytes:
    """A whole file; a tensor with an `offset` of its own lies where it says, or not."""
    infos, data = b"", b""
    for tensor in tensors:
        infos += tensor_bytes(tensor, len(data) if tensor.offset is None else tensor.offset)
        data += padded(tensor.data, alignment)
    head = header(len(tensors), len(entries), version) + b"".join(map(entry_bytes, entries)) + infos
    return padded(head, alignment) + data
