"""Every environment variable that Headrace reads, in one table."""

from __future__ import annotations

import os
from typing import NamedTuple

from headrace.words.errors import ConfigError, brief


class Variable(NamedTuple):
    name: str
    default: str | None
    meaning: str


VARIABLES = (
    Variable("HEADRACE_API_KEY", None, "key that clients of the server must send"),
    Variable("HEADRACE_CACHE", None, "folder for downloaded models; default ~/.cache/headrace"),
    Variable("HEADRACE_FAULT", None, "for tests of the server: raise, hang, freeze, oom or segv, each as KIND@STEP"),
    Variable("HEADRACE_ISA", None, "kernels to use: portable, avx2, avx512, avx512_bf16 or amx; default the fastest"),
    Variable("HEADRACE_LOG_LEVEL", "warning", "debug, info, warning or error"),
    Variable("HEADRACE_NUM_THREADS", None, "threads of a step; default one per allowed core"),
    Variable("HEADRACE_CHECK_INVARIANTS", "0", "check the scheduler's invariants every N steps; 0 is never"),
    Variable("HF_HOME", None, "Hugging Face's cache folder"),
    Variable("HF_TOKEN", None, "token for gated models"),
    Variable("HF_HUB_OFFLINE", None, "1: use only what is already downloaded"),
)
_DEFAULTS = {variable.name: variable.default for variable in VARIABLES}
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_DIGITS = 18


def get(name: str) -> str | None:
    """The variable's value, or its default if it is not set or empty; a name outside the table is a KeyError."""
    return os.environ.get(name) or _DEFAULTS[name]


def whole_number(name: str, least: int) -> int | None:
    """None without a value; ConfigError for one that is no number, or less than 0 or 1, whichever is the least."""
    text = get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and int(text) >= least):
        kind = "a positive whole number" if least else "a whole number"
        raise ConfigError(name, f"must be {kind}, got {brief(text)}")
    return int(text)


def log_level() -> str:
    """One of LOG_LEVELS, in whatever letters; ConfigError for another."""
    name = "HEADRACE_LOG_LEVEL"
    level = (get(name) or "").lower()
    if level not in LOG_LEVELS:
        raise ConfigError(name, f"must be one of {', '.join(LOG_LEVELS)}, got {brief(get(name))}")
    return level
