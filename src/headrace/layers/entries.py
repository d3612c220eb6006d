"""A checkpoint's configuration as a model reads it: each entry asked for by name, checked, and refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.words.errors import ModelError, brief

MAX_COUNT = 2**40
MAX_NUMBER = 1e30
"""What arithmetic in float32 bears."""


@dataclass(frozen=True, slots=True)
class Entries:
    """An object of a file. Entries are asked for in Llama's words; `names` are the family's own for the same things,
    `defaults` (in Llama's words) what the family means where a file is silent. None counts as absent, except where a
    method says otherwise. ModelError names the file and the entry as the file spells it."""

    raw: Mapping[str, Any]
    file: str = "config.json"
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def spelled(self, name: str) -> str:
        return self.names.get(name, name)

    def value(self, name: str, default: Any = None) -> Any:
        """Unchecked: the file's, else the family's default, else the caller's."""
        found = self.raw.get(self.spelled(name))
        return self.defaults.get(name, default) if found is None else found

    def is_null(self, name: str) -> bool:
        """Whether the file says null, which is not the same as saying nothing."""
        return self.raw.get(self.spelled(name), 0) is None

    def refuse(self, name: str, must: str) -> ModelError:
        return ModelError(self.file, f"{self.spelled(name)} must be {must}, got {brief(self.value(name))}")

    def count(self, name: str, default: int | None = None, most: int | None = None) -> int:
        """A positive whole number, `most` at most."""
        value = self.value(name, default)
        if value is None:
            raise ModelError(self.file, f"lacks {self.spelled(name)}")
        if not is_count(value):
            raise self.refuse(name, "a positive whole number")
        if most is not None and value > most:
            raise self.refuse(name, f"at most {most}")
        return int(value)

    def whole(self, name: str, default: int) -> int:
        """A whole number that may be 0."""
        value = self.value(name, default)
        if value != 0 and not is_count(value) or isinstance(value, bool):
            raise self.refuse(name, "a whole number")
        return int(value)

    def count_or_none(self, name: str, default: int | None) -> int | None:
        """As `count`, but null means that there is none, and nothing said is the default."""
        return None if self.is_null(name) or self.value(name, default) is None else self.count(name, default)

    def number(self, name: str, default: float) -> float:
        """Positive and not enormous."""
        value = self.value(name, default)
        if not is_positive(value):
            raise self.refuse(name, "a positive number")
        return float(value)

    def number_or_none(self, name: str, default: float | None) -> float | None:
        """As `number`, but null means that there is none, and nothing said is the default."""
        value = self.value(name, default)
        return None if self.is_null(name) or value is None else self.number(name, value)

    def name(self, name: str, default: str) -> str:
        value = self.value(name, default) or default
        if not isinstance(value, str):
            raise self.refuse(name, "a name")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.value(name) or {}
        if not isinstance(value, Mapping):
            raise self.refuse(name, "an object")
        return value

    def list_of(self, name: str, known: tuple[Any, ...], length: int) -> tuple[Any, ...] | None:
        """`length` values, each one of `known`; None where the file has no such list."""
        values = self.value(name)
        if values is None:
            return None
        is_good = isinstance(values, list) and len(values) >= length and all(value in known for value in values)
        if not is_good:
            raise self.refuse(name, f"a list of {length}, each {' or '.join(map(str, known))}")
        return tuple(values[:length])

    def indices(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, empty where there is none."""
        values = self.value(name) or []
        if not isinstance(values, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in values):
            raise self.refuse(name, "a list of whole numbers")
        return tuple(values)

    def changed(self, **raw: Any) -> Entries:
        """The same with some entries said otherwise, in the file's words."""
        return replace(self, raw={**self.raw, **raw})


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_COUNT


def is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_NUMBER
