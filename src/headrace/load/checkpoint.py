"""The face of this layer: a checkpoint, wherever it lies and however it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.load.default_model import Progress
from headrace.load.gguf import GGUFFile
from headrace.load.gguf_model import open_gguf
from headrace.load.gguf_tokenizer import tokenizer_from_gguf
from headrace.load.hf_folder import open_folder
from headrace.load.hf_tokenizer import folder_tokenizer
from headrace.load.hub import TOKENIZER_FILES, resolve_source
from headrace.load.parts import Weights
from headrace.load.tokenizer import Tokenizer
from headrace.words.config import ModelConfig

__all__ = ["Checkpoint", "Progress", "Weights", "open_checkpoint", "open_tokenizer"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model is made of. `generation` is generation_config.json, empty where there is none."""

    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: str | None
    generation: Mapping[str, Any]
    weights: Weights
    close: Callable[[], None]
    """Unmaps the files; what a model has copied stays. Twice is once."""

    @property
    def fingerprint(self) -> str:
        """32 hex digits by which two processes see that they hold the same model; made anew at each call.

        Of the configuration, and of each tensor's name, type, shape and a few bytes: no proof, for most are not read.
        """
        digest = hashlib.sha256(json.dumps(self.config.raw, sort_keys=True, default=str).encode())
        for name in sorted(self.weights.names()):
            digest.update(f"{name} {self.weights.dtype(name)} {self.weights.shape(name)}".encode())
            digest.update(self.weights.sample(name))
        return digest.hexdigest()[:32]

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_checkpoint(
    model: str, *, revision: str | None = None, tokenizer: str | None = None, progress: Progress | None = None
) -> Checkpoint:
    """Opens a folder, a .gguf file, an alias or a hub name; `tokenizer` names one to take tokens and template from.

    Nothing is read but headers: tensors are mapped, and read when they are asked for. Raises ModelError.
    """
    path = resolve_source(model, revision, progress)
    parts = open_gguf(path) if path.is_file() else open_folder(path)
    try:
        used = parts.tokenizer() if tokenizer is None else open_tokenizer(tokenizer, progress=progress)
    except BaseException:
        parts.close()
        raise
    return Checkpoint(parts.config, used, used.chat_template, parts.generation, parts.weights, parts.close)


def open_tokenizer(source: str, *, revision: str | None = None, progress: Progress | None = None) -> Tokenizer:
    """The tokenizer of a folder, a .gguf file, an alias or a hub name, without its weights. Raises ModelError."""
    path = resolve_source(source, revision, progress, TOKENIZER_FILES)
    return folder_tokenizer(path) if path.is_dir() else gguf_tokenizer(path)


def gguf_tokenizer(path: Path) -> Tokenizer:
    file = GGUFFile(path)
    try:
        return tokenizer_from_gguf(file.metadata, file.name)
    finally:
        file.close()
