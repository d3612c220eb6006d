"""One logger tree named `headrace`; the library never configures the root logger."""

from __future__ import annotations

import logging

from headrace.words import envs
from headrace.words.errors import ConfigError


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, under `headrace`, at the level that HEADRACE_LOG_LEVEL asks for. Called while modules are
    imported, it raises nothing: a level that is none is told, and is `warning`."""
    root = logging.getLogger("headrace")
    if root.level == logging.NOTSET:
        root.setLevel(logging.WARNING)
        try:
            root.setLevel(envs.log_level().upper())
        except ConfigError as error:
            root.warning("%s; warning is used", error)
    return logging.getLogger(name)
