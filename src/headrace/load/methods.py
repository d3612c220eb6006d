"""What config.json's quantization_config asks for, by the reader that knows how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.load import awq, compressed, float8, gptq
from headrace.load.quantized import Found, Stored, Told, listed
from headrace.words.errors import ModelError, brief

METHODS: dict[str, Callable[[Stored, Told], Found]] = {
    "awq": awq.read,
    "gptq": gptq.read,
    "compressed-tensors": compressed.read,
    "fp8": float8.read,
}


def method_of(raw: Mapping[str, Any], file: str) -> str | None:
    """The method's name, None for a checkpoint that is not quantized. ModelError for one that is not built."""
    told = raw.get("quantization_config")
    if not told:
        return None
    name = told.get("quant_method") if isinstance(told, Mapping) else told
    if not isinstance(told, Mapping) or not isinstance(name, str) or name not in METHODS:
        built = f"built are {listed(tuple(METHODS))}; use one of these, or a checkpoint that is not quantized"
        raise ModelError(file, f"is quantized by {brief(name)}, which is not built; {built}")
    return name


def find_matrices(stored: Stored, raw: Mapping[str, Any], file: str) -> Found:
    """Of a checkpoint that is quantized by a method that is built. ModelError names what does not fit."""
    told = Told(raw["quantization_config"], file)
    method = str(told.raw["quant_method"])
    found = METHODS[method](stored, told)
    if not found.matrices:
        raise ModelError(stored.file, f"holds no matrix as {method} stores them, though {file} says so")
    return found
