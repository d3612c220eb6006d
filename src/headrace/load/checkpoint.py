"""The face of this layer: a checkpoint, wherever it lies and however it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from numpy.typing import NDArray

from headrace.load.default_model import Progress
from headrace.load.gguf_model import open_gguf
from headrace.load.hf_folder import open_folder, open_tokenizer
from headrace.load.hub import resolve_source
from headrace.load.tokenizer import Tokenizer
from headrace.words.config import ModelConfig

__all__ = ["Checkpoint", "Progress", "Weights", "open_checkpoint"]


class Weights(Protocol):
    """Tensors by Hugging Face's names: float32, float16, or bfloat16 held as uint16."""

    @property
    def nbytes(self) -> int: ...

    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str: ...

    def get(self, name: str) -> NDArray[Any]: ...


class Closeable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model is made of. `generation` is generation_config.json, empty where there is none."""

    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: str | None
    generation: Mapping[str, Any]
    weights: Weights
    source: Closeable

    def close(self) -> None:
        """Unmaps the files; what a model has copied stays."""
        self.source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_checkpoint(
    model: str, *, revision: str | None = None, tokenizer: str | None = None, progress: Progress | None = None
) -> Checkpoint:
    """Opens a folder, a .gguf file, an alias or a hub name; `tokenizer` names a folder or hub name to take it from.

    Nothing is read but headers: tensors are mapped, and read when they are asked for. Raises ModelError.
    """
    path = resolve_source(model, revision, progress)
    config, weights, own, generation, source = open_gguf(path) if path.is_file() else open_folder(path)
    used = own if tokenizer is None else open_tokenizer(resolve_source(tokenizer, revision))
    return Checkpoint(config, used, used.chat_template or own.chat_template, generation, weights, source)
