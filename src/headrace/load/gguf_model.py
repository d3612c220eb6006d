"""A GGUF file as a checkpoint: its tensors under Hugging Face's names, with Hugging Face's values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.load.files import spots
from headrace.load.gguf import GGUFFile
from headrace.load.gguf_config import BUFFERS, gguf_config, layout_of
from headrace.load.gguf_names import TRANSPOSED, Layout, Turn
from headrace.load.gguf_tokenizer import tokenizer_from_gguf
from headrace.load.parts import Parts
from headrace.ops.base import Blocks
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError, brief


class View(NamedTuple):
    """One of Hugging Face's tensors: a GGUF tensor, or one expert of it, turned if need be."""

    source: str
    expert: int | None
    shape: tuple[int, ...]
    turn: Turn | None


class GGUFWeights:
    """Tensors by Hugging Face's names, dequantized to float32 when they are asked for."""

    def __init__(self, file: GGUFFile, config: ModelConfig, layout: Layout) -> None:
        self._file = file
        self.file = file.name
        self._config = config
        self._views: dict[str, View] = {}
        for name, view in views(file, layout):
            if name in self._views:
                raise ModelError(file.name, f"holds {brief(name)} twice, the second time as {brief(view.source)}")
            self._views[name] = view

    @property
    def nbytes(self) -> int:
        return sum(info.num_bytes for info in self._file.tensors.values())

    def names(self) -> Collection[str]:
        return self._views.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._views[name].shape

    def dtype(self, name: str) -> str:
        """As stored: F32, Q4_1, …"""
        return self._file.tensors[self._views[name].source].quant.name

    def sample(self, name: str) -> bytes:
        view = self._views[name]
        return spots(self._file.raw(view.source, view.expert))

    def get(self, name: str) -> NDArray[np.float32]:
        view = self._views[name]
        return self._turned(view, self._file.tensor(view.source, view.expert))

    def blocks(self, name: str, is_turned: bool = False) -> Blocks | None:
        view = self._views[name]
        info = self._file.tensors[view.source]
        has_rows = view.turn is TRANSPOSED if is_turned else view.turn is None or view.turn.moves_rows
        if len(view.shape) != 2 or info.quant.block_values == 1 or not has_rows:
            return None
        rows, columns = view.shape[::-1] if is_turned else view.shape
        order = None
        if view.turn is not None and not is_turned:
            order = self._turned(view, np.arange(rows, dtype=np.int32)[:, None]).ravel()
        data = self._file.raw(view.source, view.expert)
        whole = partial(self._file.tensor, view.source, view.expert) if is_turned else partial(self.get, name)
        return Blocks(info.quant.name, data, (rows, columns), order, whole)

    def _turned(self, view: View, array: NDArray[Any]) -> NDArray[Any]:
        if view.turn is None:
            return array
        try:
            return view.turn.values(array, self._config)
        except ModelError as error:
            raise ModelError(self._file.name, f"the tensor {brief(view.source)}: {error.cause}") from None


def views(file: GGUFFile, layout: Layout) -> Iterator[tuple[str, View]]:
    for name, info in file.tensors.items():
        if name in BUFFERS:
            continue
        turn = layout.turn(name)
        for ours, expert in layout.names(name, info.shape, file.name):
            shape = info.shape if expert is None else info.shape[1:]
            yield ours, View(name, expert, shape if turn is None else turn.shape(shape), turn)


def open_gguf(path: Path) -> Parts:
    file = GGUFFile(path)
    try:
        config = gguf_config(file)
        weights = GGUFWeights(file, config, layout_of(file)[0])
    except BaseException:
        file.close()
        raise
    tokenizer = partial(tokenizer_from_gguf, file.metadata, file.name)
    return Parts(config, weights, tokenizer, {}, file.close)
