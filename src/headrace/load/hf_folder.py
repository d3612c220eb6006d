"""A folder in Hugging Face's layout as a checkpoint: config.json, mapped safetensors, generation_config.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.load.config import id_list, model_config, told_dtype
from headrace.load.files import read_json, read_json_if_there, spots
from headrace.load.hf_tokenizer import folder_tokenizer
from headrace.load.methods import find_matrices
from headrace.load.parts import Parts
from headrace.load.quantized import QuantizedWeights
from headrace.load.safetensors_file import DTYPES, Entry, SafetensorsFile
from headrace.words.errors import ModelError, brief

CONFIG, GENERATION = "config.json", "generation_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
PACKED = (".qweight", ".weight_packed")
INTEGER_DTYPE = "bfloat16"
"""Of a checkpoint of integers, unless somebody asks for more: kernels keep them beside that."""
WORDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class FolderWeights:
    """Tensors of one or several safetensors files; `homes` says which of them holds a tensor."""

    def __init__(self, homes: Mapping[str, SafetensorsFile], file: str) -> None:
        self._homes = homes
        self.file = file

    def _entry(self, name: str) -> Entry:
        return self._homes[name].entries[name]

    @property
    def nbytes(self) -> int:
        return sum(entry.end - entry.begin for entry in map(self._entry, self._homes))

    def names(self) -> Collection[str]:
        return self._homes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """As stored: F32, F16, BF16."""
        return self._entry(name).dtype

    def blocks(self, name: str, is_turned: bool = False) -> None:
        """Nothing here is quantized."""
        return None

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._homes[name].raw(name)

    def get(self, name: str) -> NDArray[Any]:
        return self._homes[name].tensor(name)

    def sample(self, name: str) -> bytes:
        return spots(self._homes[name].raw(name))

    def close(self) -> None:
        for file in {id(file): file for file in self._homes.values()}.values():
            file.close()


def open_weights(folder: Path) -> FolderWeights:
    """model.safetensors, or the shards that its index names. Raises ModelError."""
    if (folder / INDEX).exists():
        return FolderWeights(homes_of(folder, read_index(folder)), INDEX)
    if (folder / SINGLE).exists():
        file = SafetensorsFile(folder / SINGLE)
        return FolderWeights(dict.fromkeys(file.entries, file), SINGLE)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ModelError(pickles[0], "is a pickle, which may run code and is never read; convert it to safetensors")
    raise ModelError(SINGLE, "is missing from the model's folder")


def read_index(folder: Path) -> dict[str, str]:
    """File names by tensor, each within the folder and there."""
    mapping = read_json(folder / INDEX).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise ModelError(INDEX, "has no weight_map of file names")
    for name in sorted(set(mapping.values())):
        if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
            raise ModelError(INDEX, f"names a file outside the model's folder: {brief(name)}")
        if not name.endswith(".safetensors"):
            raise ModelError(INDEX, f"names a file that is not safetensors: {brief(name)}")
        if not (folder / name).exists():
            raise ModelError(name, f"is missing; {INDEX} names it")
    return mapping


def homes_of(folder: Path, mapping: Mapping[str, str]) -> dict[str, SafetensorsFile]:
    files = {name: SafetensorsFile(folder / name) for name in sorted(set(mapping.values()))}
    for tensor, name in mapping.items():
        if tensor not in files[name].entries:
            raise ModelError(name, f"does not hold the tensor {brief(tensor)}, though {INDEX} says so")
    return {tensor: files[name] for tensor, name in mapping.items()}


def check_plain(weights: FolderWeights) -> None:
    """ModelError for matrices in a packed format of which the configuration says nothing."""
    packed = next((name for name in weights.names() if name.endswith(PACKED)), None)
    if packed is not None:
        raise ModelError(
            CONFIG,
            f"has no quantization_config, though {weights.file} holds {brief(packed)}; the checkpoint's "
            "quantize_config.json or quant_config.json may be what belongs there",
        )


def stored_dtype(weights: FolderWeights) -> str:
    """That of most tensors."""
    counts = Counter(weights.dtype(name) for name in weights.names())
    return next((WORDS[dtype] for dtype, _ in counts.most_common() if dtype in DTYPES), "float32")


def open_folder(folder: Path) -> Parts:
    """The ends of a sequence are generation_config.json's and config.json's. Raises ModelError."""
    raw = read_json(folder / CONFIG)
    generation = read_json_if_there(folder / GENERATION)
    ends = dict.fromkeys((*id_list(generation.get("eos_token_id")), *id_list(raw.get("eos_token_id"))))
    config = model_config({**raw, "eos_token_id": list(ends)}, CONFIG)
    weights = open_weights(folder)
    if config.quantization is None:
        check_plain(weights)
        config = replace(config, dtype=told_dtype(raw) or stored_dtype(weights))
        return Parts(config, weights, partial(folder_tokenizer, folder), generation, weights.close)
    try:
        found = find_matrices(weights, raw, CONFIG)
        quantized = QuantizedWeights(weights, found)
    except BaseException:
        weights.close()
        raise
    config = replace(config, dtype=INTEGER_DTYPE if found.keeps_integers else told_dtype(raw) or stored_dtype(weights))
    return Parts(config, quantized, partial(folder_tokenizer, folder), generation, weights.close)
