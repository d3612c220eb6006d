"""Headrace: an LLM inference engine. The names below are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.host import AsyncLLM as AsyncLLM
    from headrace.engine.llm_engine import LLMEngine as LLMEngine
    from headrace.llm import LLM as LLM
    from headrace.words.config import EngineConfig as EngineConfig
    from headrace.words.errors import ConfigError as ConfigError
    from headrace.words.errors import EngineDeadError as EngineDeadError
    from headrace.words.errors import EngineError as EngineError
    from headrace.words.errors import HeadraceError as HeadraceError
    from headrace.words.errors import ModelError as ModelError
    from headrace.words.errors import QueueFullError as QueueFullError
    from headrace.words.errors import RequestError as RequestError
    from headrace.words.errors import UnsupportedError as UnsupportedError
    from headrace.words.outputs import CompletionOutput as CompletionOutput
    from headrace.words.outputs import EmbeddingOutput as EmbeddingOutput
    from headrace.words.outputs import FinishReason as FinishReason
    from headrace.words.outputs import RequestOutput as RequestOutput
    from headrace.words.params import PoolingParams as PoolingParams
    from headrace.words.params import SamplingParams as SamplingParams

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
