"""Every environment variable that Headrace reads, in one table."""

from __future__ import annotations

import os
from typing import NamedTuple


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


def get(name: str) -> str | None:
    """The variable's value or its default; a name outside the table is a KeyError."""
    return os.environ.get(name, _DEFAULTS[name])
