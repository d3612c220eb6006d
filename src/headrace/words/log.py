"""One logger tree named `headrace`; the library never configures the root logger."""

from __future__ import annotations

import logging

from headrace.words import envs


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, under `headrace`, at the level that HEADRACE_LOG_LEVEL asks for."""
    root = logging.getLogger("headrace")
    if root.level == logging.NOTSET:
        root.setLevel((envs.get("HEADRACE_LOG_LEVEL") or "warning").upper())
    return logging.getLogger(name)
