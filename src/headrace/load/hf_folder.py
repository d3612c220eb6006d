"""A folder in Hugging Face's layout as a checkpoint: config.json, mapped safetensors, tokenizer.json and more."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from headrace.load.config import id_list, model_config
from headrace.load.tokenizer import Tokenizer
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000


def read_json(path: Path) -> dict[str, Any]:
    """An object; ModelError when the file is missing, damaged or something else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(path.name, "is missing from the model's folder") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(path.name, f"is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(path.name, "must hold a JSON object")
    return value


class SafetensorsFile:
    """One mapped file; the header is checked against the file before anything is made of it."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._data = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ModelError(self.name, f"cannot be mapped: {getattr(error, 'strerror', None) or error}") from None
        self.entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        self._read_header()

    def _read_header(self) -> None:
        size = self._data.size
        length = struct.unpack("<Q", self._data[:8].tobytes())[0] if size >= 8 else size
        if length + 8 > size or length > MAX_HEADER_BYTES:
            raise ModelError(self.name, f"states a header of {length} bytes in a file of {size}; is it truncated?")
        try:
            header = json.loads(self._data[8 : 8 + length].tobytes())
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, RecursionError, AttributeError):
            raise ModelError(self.name, "has a damaged header") from None
        for name, entry in entries.items():
            self.entries[name] = self._entry(name, entry, size - 8 - length, 8 + length)
        self._check_overlap()

    def _entry(self, name: str, entry: Any, room: int, base: int) -> tuple[str, tuple[int, ...], int, int]:
        try:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            is_whole = all(isinstance(n, int) and 0 <= n < 2**48 for n in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            is_whole = False
        if not is_whole:
            raise ModelError(self.name, f"has a damaged entry for the tensor {name!r}")
        if dtype not in DTYPES:
            raise ModelError(self.name, f"the tensor {name!r} has the type {dtype}; known are {', '.join(DTYPES)}")
        count = 1
        for extent in shape:
            count *= extent
        if end - begin != count * np.dtype(DTYPES[dtype]).itemsize or end > room:
            raise ModelError(self.name, f"the tensor {name!r} does not lie within the file; is it truncated?")
        return dtype, shape, base + begin, base + end

    def _check_overlap(self) -> None:
        places = sorted((begin, end, name) for name, (_, _, begin, end) in self.entries.items())
        for (_, end, _first), (begin, _, second) in zip(places, places[1:], strict=False):
            if begin < end:
                raise ModelError(self.name, f"the tensor {second!r} overlaps another")

    def tensor(self, name: str) -> NDArray[Any]:
        """A view of the map; uint16 holds bfloat16."""
        dtype, shape, begin, end = self.entries[name]
        return self._data[begin:end].view(DTYPES[dtype]).reshape(shape)

    def close(self) -> None:
        del self._data


class FolderWeights:
    """Tensors of one or several safetensors files."""

    def __init__(self, files: list[SafetensorsFile]) -> None:
        self._files = files
        self._home = {name: file for file in files for name in file.entries}

    @property
    def nbytes(self) -> int:
        return sum(end - begin for file in self._files for _, _, begin, end in file.entries.values())

    def names(self) -> Collection[str]:
        return self._home.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home[name].entries[name][1]

    def dtype(self, name: str) -> str:
        return self._home[name].entries[name][0]

    def get(self, name: str) -> NDArray[Any]:
        return self._home[name].tensor(name)

    def close(self) -> None:
        for file in self._files:
            file.close()


def open_weights(folder: Path) -> FolderWeights:
    """model.safetensors, or the shards that its index names."""
    if (folder / INDEX).exists():
        return FolderWeights([SafetensorsFile(folder / shard) for shard in shards(folder)])
    if (folder / SINGLE).exists():
        return FolderWeights([SafetensorsFile(folder / SINGLE)])
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt"))
    if pickles:
        raise ModelError(pickles[0], "is a pickle, which may run code and is never read; convert it to safetensors")
    raise ModelError(SINGLE, "is missing from the model's folder")


def shards(folder: Path) -> list[str]:
    """File names of the index, each within the folder and there."""
    mapping = read_json(folder / INDEX).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise ModelError(INDEX, "has no weight_map of file names")
    names = sorted(set(mapping.values()))
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise ModelError(INDEX, f"names a file outside the model's folder: {name!r}")
        if not (folder / name).exists():
            raise ModelError(name, f"is missing; {INDEX} names it")
    return names


def open_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json with what tokenizer_config.json and the chat template files say."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelError(path.name, "is missing from the model's folder; save the tokenizer with a fast tokenizer once")
    declared = read_json(path)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:
        raise ModelError(path.name, f"cannot be read as a tokenizer: {str(error).splitlines()[0]}") from None
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.exists() else {}
    bos, eos = (special(backend, settings.get(name)) for name in ("bos_token", "eos_token"))
    return Tokenizer(
        backend,
        is_bytewise="ByteLevel" in json.dumps(declared.get("decoder")),
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        chat_template=chat_template(folder, settings),
    )


def special(backend: Backend, entry: Any) -> int | None:
    """The id of a special token that is given as text or as an object."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return backend.token_to_id(text) if isinstance(text, str) else None


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or the configuration's template (the one named default of several)."""
    if (path := folder / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def open_folder(path: Path) -> tuple[ModelConfig, FolderWeights, Tokenizer, Mapping[str, Any], FolderWeights]:
    """Configuration, weights, tokenizer, generation_config.json, and what to close."""
    raw = read_json(path / "config.json")
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    ends = (*id_list(generation.get("eos_token_id")), *id_list(raw.get("eos_token_id")))
    config = model_config({**raw, "eos_token_id": list(dict.fromkeys(ends))})
    tokenizer = open_tokenizer(path)
    weights = open_weights(path)
    return config, weights, tokenizer, generation, weights
