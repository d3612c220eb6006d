"""config.json in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.words.config import ModelConfig, RopeConfig
from headrace.words.errors import ModelError

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
DTYPES = {"float32": "float32", "float": "float32", "float16": "float16", "half": "float16", "bfloat16": "bfloat16"}


def model_config(raw: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
    """Raises ModelError naming the entry that is missing, malformed or not built."""
    if raw.get("auto_map"):
        raise ModelError(file, "asks for code of its own (auto_map), which is never run; use a checkpoint without")
    read = Reader(raw, file)
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError(file, "names no architecture (architectures)")
    hidden, num_heads = read.count("hidden_size"), read.count("num_attention_heads")
    return ModelConfig(
        architecture=str(architectures[0]),
        vocab_size=read.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.count("intermediate_size"),
        num_layers=read.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=read.count("num_key_value_heads", num_heads),
        head_dim=read.count("head_dim", hidden // num_heads),
        max_position_embeddings=read.count("max_position_embeddings", 2048),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope_config(raw, file),
        hidden_act=str(raw.get("hidden_act") or raw.get("hidden_activation") or "silu"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        dtype=DTYPES.get(str(raw.get("dtype") or raw.get("torch_dtype")), "float32"),
        eos_token_ids=id_list(raw.get("eos_token_id")),
        bos_token_id=next(iter(id_list(raw.get("bos_token_id"))), None),
        raw=dict(raw),
    )


class Reader:
    """Entries of a configuration, checked."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self._raw = raw
        self._file = file

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number; None counts as absent."""
        value = self._raw.get(name)
        value = default if value is None else value
        if value is None:
            raise ModelError(self._file, f"lacks {name}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise ModelError(self._file, f"{name} must be a positive whole number, got {value!r}")
        return value


def id_list(value: Any) -> tuple[int, ...]:
    """Token ids, given as one or as a list."""
    many = value if isinstance(value, list) else [value]
    return tuple(i for i in many if isinstance(i, int) and not isinstance(i, bool))


def rope_config(raw: Mapping[str, Any], file: str) -> RopeConfig:
    """`rope_parameters`, or `rope_theta` with `rope_scaling` as it was before."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ModelError(file, f"rope parameters must be an object, got {scaling!r}")
    numbers = dict(scaling)
    kind = numbers.pop("rope_type", None) or numbers.pop("type", None) or "default"
    numbers.pop("type", None)
    theta = numbers.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
    share = numbers.pop("partial_rotary_factor", None) or raw.get("partial_rotary_factor") or 1.0
    if kind not in ROPE_KINDS:
        raise ModelError(file, f"rope type {kind!r} is unknown; known are {', '.join(ROPE_KINDS)}")
    if (original := raw.get("original_max_position_embeddings")) is not None:
        numbers.setdefault("original_max_position_embeddings", original)
    return RopeConfig(float(theta), str(kind), numbers, float(share))
