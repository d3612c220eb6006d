"""config.json in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.load.methods import method_of
from headrace.models.base import Model
from headrace.models.registry import FAMILIES, family
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError

DTYPES = {"float32": "float32", "float": "float32", "float16": "float16", "half": "float16", "bfloat16": "bfloat16"}


def model_config(raw: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
    """What every model has, under whatever names its family gives it; `raw` stays for what a family alone has. Raises
    ModelError naming the entry that is missing, malformed or not built."""
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(file, "names no architecture (architectures)")
    if not isinstance(raw.get("auto_map", {}), Mapping) or brings_code(raw, FAMILIES.get(architectures[0])):
        raise ModelError(file, "asks for code of its own (auto_map), which is never run; use a checkpoint without")
    quantization = method_of(raw, file)
    model = family(architectures[0], file)
    entries = model.entries(raw, file)
    num_heads = entries.count("num_attention_heads")
    num_kv_heads = num_heads
    if not entries.is_null("num_key_value_heads"):
        num_kv_heads = entries.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise entries.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    vocab_size = entries.count("vocab_size")
    head_dim = entries.count("head_dim", entries.count("hidden_size") // num_heads or None)
    return ModelConfig(
        architecture=architectures[0],
        vocab_size=vocab_size,
        hidden_size=entries.count("hidden_size"),
        intermediate_size=entries.count("intermediate_size"),
        num_layers=entries.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=entries.count("max_position_embeddings", 2048),
        norm_eps=entries.number("rms_norm_eps", 1e-6),
        rope=model.rope(entries, head_dim),
        hidden_act=entries.name("hidden_act", "silu"),
        tie_word_embeddings=entries.flag("tie_word_embeddings"),
        attention_bias=entries.flag("attention_bias"),
        mlp_bias=entries.flag("mlp_bias"),
        dtype=told_dtype(raw) or "float32",
        quantization=quantization,
        eos_token_ids=known_ids(raw.get("eos_token_id"), vocab_size),
        bos_token_id=next(iter(known_ids(raw.get("bos_token_id"), vocab_size)), None),
        raw=dict(raw),
        file=file,
    )


def brings_code(raw: Mapping[str, Any], model: type[Model] | None) -> bool:
    """Whether the checkpoint asks for a class that is not one of those that do what the family here does."""
    known = () if model is None else model.code
    asked = (raw.get("auto_map") or {}).values()
    return any(not isinstance(name, str) or name.rpartition(".")[2] not in known for name in asked)


def told_dtype(raw: Mapping[str, Any]) -> str | None:
    """The weights', if the configuration tells one of those that are known."""
    return DTYPES.get(str(raw.get("dtype") or raw.get("torch_dtype")))


def id_list(value: Any) -> tuple[int, ...]:
    """Token ids, given as one or as a list."""
    many = value if isinstance(value, list) else [value]
    return tuple(i for i in many if isinstance(i, int) and not isinstance(i, bool))


def known_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    """Those that logits can have; −1 and the like mean that there is none."""
    return tuple(i for i in id_list(value) if 0 <= i < vocab_size)
