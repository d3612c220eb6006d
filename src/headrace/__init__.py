"""Headrace: an LLM inference engine.

The names below are loaded when they are first used; `__init__.pyi` tells type checkers where they are.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "headrace.llm": ("LLM",),
    "headrace.engine.llm_engine": ("LLMEngine",),
    "headrace.engine.host": ("AsyncLLM",),
    "headrace.words.config": ("EngineConfig",),
    "headrace.words.errors": (
        "ConfigError EngineDeadError EngineError HeadraceError ModelError QueueFullError RequestError UnsupportedError"
    ).split(),
    "headrace.words.outputs": ("CompletionOutput", "EmbeddingOutput", "FinishReason", "RequestOutput"),
    "headrace.words.params": ("PoolingParams", "SamplingParams"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    if name not in _HOME:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
