"""A folder with matrices in packed formats, as a source of whole matrices by their plain names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.load.integers import Grouped
from headrace.load.parts import Tensors
from headrace.ops.base import Floats, Part
from headrace.ops.bfloat16 import as_dtype
from headrace.words.errors import ModelError, brief

SCALE_TYPES = ("F16", "BF16", "F32")
MAX_GROUP = 2**20


class Stored(Tensors, Protocol):
    """Tensors as a folder has them."""

    def raw(self, name: str) -> NDArray[np.uint8]: ...


class Matrix(NamedTuple):
    """A matrix that is made of several tensors, its main one first."""

    tensors: tuple[str, ...]
    shape: tuple[int, int]
    dequantize: Callable[[], Floats]
    """→ [rows, columns]"""
    codes: Callable[[], Part | None]

    @classmethod
    def of(cls, tensors: tuple[str, ...], grouped: Grouped) -> Matrix:
        return cls(tensors, grouped.shape, grouped.dequantize, grouped.codes)


class Found(NamedTuple):
    """What a method finds in a folder: matrices by plain name, tensors that nothing here asks for, and those that a
    model may ask for or not."""

    matrices: Mapping[str, Matrix]
    unused: frozenset[str] = frozenset()
    spare: frozenset[str] = frozenset()

    @property
    def keeps_integers(self) -> bool:
        return any(matrix.codes() is not None for matrix in self.matrices.values())


class Names(Collection[str]):
    """Those that may be asked for are in it; who goes through it meets those that must be."""

    def __init__(self, names: Collection[str], spare: frozenset[str]) -> None:
        self._names = names
        self._needed = [name for name in names if name not in spare]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._needed)

    def __len__(self) -> int:
        return len(self._needed)


class QuantizedWeights:
    """See `headrace.load.parts.Weights`."""

    def __init__(self, stored: Stored, found: Found) -> None:
        self._stored = stored
        self._matrices = found.matrices
        self.file = stored.file
        parts = {tensor for matrix in found.matrices.values() for tensor in matrix.tensors} | found.unused
        plain = [name for name in stored.names() if name not in parts]
        for name in plain:
            if name in found.matrices:
                raise ModelError(stored.file, f"holds {brief(name)} twice, once of them quantized")
        self._names = Names(dict.fromkeys((*plain, *found.matrices)), found.spare)

    @property
    def nbytes(self) -> int:
        return self._stored.nbytes

    def names(self) -> Collection[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._matrices[name].shape if name in self._matrices else self._stored.shape(name)

    def dtype(self, name: str) -> str:
        """As stored, of a matrix that of its integers."""
        return self._stored.dtype(self._matrices[name].tensors[0] if name in self._matrices else name)

    def get(self, name: str) -> NDArray[Any]:
        return self._matrices[name].dequantize() if name in self._matrices else self._stored.get(name)

    def blocks(self, name: str, is_turned: bool = False) -> Part | None:
        return self._matrices[name].codes() if name in self._matrices and not is_turned else None

    def sample(self, name: str) -> bytes:
        tensors = self._matrices[name].tensors if name in self._matrices else (name,)
        return b"".join(map(self._stored.sample, tensors))


class Told(NamedTuple):
    """config.json's quantization_config. What is not built is refused in one line."""

    raw: Mapping[str, Any]
    file: str

    def one_of(self, name: str, known: tuple[Any, ...], default: Any = None, other: str | None = None) -> Any:
        """An entry, under its `other` name if it has not the first."""
        value = self.raw.get(name)
        value = self.raw.get(other) if value is None and other is not None else value
        value = default if value is None else value
        if not any(value == each and type(value) is type(each) for each in known):
            raise self.refuse(f"has {name} {brief(value)}; built {'are' if len(known) > 1 else 'is'} {listed(known)}")
        return value

    def group_size(self, name: str = "group_size", other: str | None = None) -> int | None:
        """None is a whole row."""
        value = self.raw.get(name, self.raw.get(other) if other else None)
        if value == -1:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_GROUP:
            raise self.refuse(f"has {name} {brief(value)} instead of a positive whole number or -1")
        return value

    def part(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.refuse(f"has {name} {brief(value)} instead of an object")
        return value

    def refuse(self, cause: str) -> ModelError:
        return ModelError(self.file, f"quantization_config {cause}")


def listed(values: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in values)


def modules(stored: Stored, ending: str) -> list[str]:
    """Names before `.ending`, in order."""
    return sorted(name[: -len(ending) - 1] for name in stored.names() if name.endswith(f".{ending}"))


def check(stored: Stored, name: str, types: tuple[str, ...], *shapes: tuple[int, ...]) -> str:
    """The name of a tensor that is there with one of these types and shapes; ModelError otherwise."""
    if name not in stored.names():
        raise ModelError(stored.file, f"the tensor {brief(name)} is missing, which a quantized matrix needs")
    kind, shape = stored.dtype(name), tuple(stored.shape(name))
    if kind not in types:
        raise ModelError(stored.file, f"the tensor {brief(name)} is {kind} instead of {' or '.join(types)}")
    if shape not in shapes:
        wanted = " or ".join(str(list(each)) for each in shapes)
        raise ModelError(stored.file, f"the tensor {brief(name)} has the shape {list(shape)}, not {wanted}")
    return name


def finite(stored: Stored, name: str) -> NDArray[Any]:
    """The values of scales; ModelError where one is no number, for all that they scale would be none."""
    array = stored.get(name)
    if not np.isfinite(as_dtype(array, "float32")).all():
        raise ModelError(stored.file, f"the tensor {brief(name)} holds scales that are not finite; it is damaged")
    return array


def extents(stored: Stored, name: str) -> tuple[int, int]:
    """Of a tensor that must be a matrix with something in it."""
    shape = tuple(stored.shape(name))
    if len(shape) != 2 or 0 in shape:
        raise ModelError(stored.file, f"the tensor {brief(name)} has the shape {list(shape)}, and is no matrix")
    return shape[0], shape[1]


def words32(stored: Stored, name: str) -> NDArray[np.int32]:
    """A tensor of I32 with its shape."""
    return stored.raw(name).view(np.dtype("<i4")).reshape(stored.shape(name))
