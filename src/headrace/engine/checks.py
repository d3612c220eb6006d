"""Checks of single values. Each error names the parameter, the limit, the given value and the way out."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Collection, Iterable, Sequence, Sized
from typing import Any

from headrace.words.errors import RequestError

MAX_INT = (1 << 63) - 1
_SHOWN = 60
BYTES = bytes | bytearray | memoryview
"""What is no list of token ids, though it holds numbers."""


def shown(value: object) -> str:
    """A value as an error message shows it: never longer than a line."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def any_whole(name: str, value: Any, limits: str = "", hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RequestError(name, f"must be a whole number{limits}, got {shown(value)}{hint}")
    return int(value)


def whole(name: str, value: Any, low: int, high: int, hint: str = "") -> int:
    """A whole number in [low, high]; True and 1.0 are none."""
    limits = f"at least {low}" if high == MAX_INT else f"from {low} to {high}"
    number = any_whole(name, value, f" {limits.replace('at least', 'of at least')}", hint)
    if not low <= number <= high:
        limits = "below 2**63" if number > MAX_INT == high else limits
        raise RequestError(name, f"must be {limits}, got {shown(number)}{hint}")
    return number


def optional_whole(name: str, value: Any, low: int, high: int) -> int | None:
    return None if value is None else whole(name, value, low, high)


def real(name: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """A finite number in [low, high], or in (low, high] if `above`."""
    limits = f"{'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RequestError(name, f"must be a number {limits}, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (low < number if above else low <= number) or not number <= high:
        raise RequestError(name, f"must be {limits}, got {shown(value)}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(name, f"must be True or False, got {shown(value)}")
    return value


def one_of(name: str, value: Any, choices: Collection[str]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise RequestError(name, f"must be one of {', '.join(choices)}, got {shown(value)}")
    return value


def optional_text(name: str, value: Any, max_chars: int) -> str | None:
    """None, or a text that is neither empty nor long."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        raise RequestError(name, f"must be a text of 1 to {max_chars} characters, got {shown(value)}")
    return whole_characters(name, value)


def whole_characters(name: str, value: str) -> str:
    """A text without halves of surrogate pairs, which no text of a model ever holds."""
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise RequestError(name, f"holds half a character, got {shown(value)}; pass whole characters")
    return value


def texts(name: str, value: Any, max_items: int, max_chars: int) -> tuple[str, ...]:
    """None, one text or a list of texts, none of them empty."""
    items = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise RequestError(name, f"must be a text or a list of texts, got {shown(value)}")
    if len(items) > max_items:
        raise RequestError(name, f"at most {max_items} are allowed, got {len(items)}; leave some out")
    for item in items:
        if not isinstance(item, str):
            raise RequestError(name, f"must hold texts, got {shown(item)}")
        if not 0 < len(item) <= max_chars:
            raise RequestError(name, f"each must have 1 to {max_chars} characters, got one of {len(item)}")
        whole_characters(name, item)
    return tuple(items)


def token_ids(name: str, value: Iterable[Any] | None, width: int, max_items: int) -> tuple[int, ...]:
    """Ids in [0, width), at most `max_items`; None gives none. However long `value` is, no more than that is read."""
    if value is None:
        return ()
    if isinstance(value, str | BYTES) or not isinstance(value, Iterable):
        raise RequestError(name, f"must be a list of token ids, got {shown(value)}")
    if isinstance(value, Sized) and len(value) > max_items:
        raise RequestError(name, f"at most {max_items} ids are allowed, got {len(value)}; leave some out")
    ids: Sequence[Any] = value if isinstance(value, list | tuple) else list(itertools.islice(value, max_items + 1))
    if len(ids) > max_items:
        raise RequestError(name, f"at most {max_items} ids are allowed, got more; leave some out")
    if all(type(i) is int for i in ids):
        clean = tuple(ids)
    else:
        clean = tuple(whole(name, i, 0, width - 1, "; ids are below the width of the logits") for i in ids)
    if clean and not (min(clean) >= 0 and max(clean) < width):
        wrong = next(i for i in clean if not 0 <= i < width)
        raise RequestError(name, f"ids must be from 0 to {width - 1}, got {shown(wrong)}")
    return clean
