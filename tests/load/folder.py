"""Small folders in Hugging Face's layout, written by hand so that they may lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.load.tokenizer import ALPHABET

CODES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}
CODES |= {np.dtype(np.int32): "I32", np.dtype(np.int64): "I64", np.dtype(np.int8): "I8", np.dtype("V1"): "F8_E4M3"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 258,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}
TENSORS = {
    "model.norm.weight": np.arange(8, dtype=np.float32),
    "lm_head.weight": np.arange(24, dtype=np.float16).reshape(3, 8),
    "model.embed_tokens.weight": np.arange(24, dtype=np.uint16).reshape(3, 8),
}


def packed(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header: an object, padded as writers do, or bytes as they are."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    if raw is not header:
        raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        places = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": CODES[array.dtype], "shape": list(array.shape), "data_offsets": places}
        data += raw
    return packed({"__metadata__": {"format": "pt"}, **header}, data)


def tokenizer() -> Tokenizer:
    """One token per byte, then <s> and </s>."""
    backend = Tokenizer(models.BPE({letter: byte for letter, byte in ALPHABET.items()}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def write(folder: Path, **files: Any) -> Path:
    """A whole folder; `files` replace or add (an object is JSON, None leaves the file out), `__` stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": [257, 256], "temperature": 0.5},
        "tokenizer.json": json.loads(tokenizer().to_str()),
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "old"},
        "model.safetensors": safetensors(TENSORS),
    }
    contents |= {name.replace("__", "."): value for name, value in files.items()}
    for name, value in contents.items():
        if value is not None:
            data = value.encode() if isinstance(value, str) else value
            (folder / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return folder
