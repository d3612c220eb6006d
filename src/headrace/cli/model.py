"""How a command opens its model, and what it says meanwhile."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from headrace.cli.options import engine_keywords
from headrace.engine.inputs import clean_text
from headrace.llm import LLM
from headrace.words import envs
from headrace.words.errors import RequestError

OpenLLM = Callable[..., LLM]
"""Engine keywords to a model that is ready."""
LogLevel = Literal["debug", "info", "warning", "error"]
ModelOption = Annotated[str, typer.Option("--model", "-m", help="Folder, GGUF file, Hugging Face name or alias.")]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option("--log-level", help="What is logged on stderr; debug shows tracebacks.")
]
SystemOption = Annotated[str | None, typer.Option("--system", help="What the model is told before the conversation.")]


def open_llm(**keywords: Any) -> LLM:
    return LLM(**keywords)


def open_model(context: typer.Context, model: str, engine: Mapping[str, Any], log_level: LogLevel | None) -> LLM:
    """The model of a command, with the log going to stderr."""
    set_log_level(log_level)
    opener: OpenLLM = context.obj or open_llm
    return opener(**engine_keywords(model, engine))


def set_log_level(asked: str | None) -> None:
    """The level that was asked for, else the environment's."""
    log = logging.getLogger("headrace")
    log.setLevel((asked or envs.log_level()).upper())
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("headrace: %(levelname)s: %(message)s"))
        log.addHandler(handler)


def conversation(system: str | None, text: str) -> list[dict[str, str]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    return [*head, {"role": "user", "content": text}]


def read_prompt(text: str) -> str:
    """The prompt itself, or standard input for `-`; bytes that are no character are U+FFFD."""
    if text != "-":
        return clean_text(text)
    text = sys.stdin.read()
    if not text.strip():
        raise RequestError("prompt", "standard input is empty; write the prompt to it")
    return clean_text(text)
