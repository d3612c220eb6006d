"""A GGUF file as a checkpoint: its metadata as config.json would say it, its tensors under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.load.config import model_config
from headrace.load.files import spots
from headrace.load.gguf import GGUFFile
from headrace.load.gguf_tokenizer import tokenizer_from_gguf
from headrace.load.parts import Parts
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError, brief

ARCHITECTURES = {"llama": "LlamaForCausalLM"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BUFFERS = ("rope_freqs.weight",)
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
END_IDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
SCALING = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""GGUF's words for the numbers of a rope scaling, and config.json's."""


class GGUFWeights:
    """Tensors by Hugging Face's names, dequantized to float32 when they are asked for."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        self._names = {hf_name(name, file.name): name for name in file.tensors if name not in BUFFERS}

    @property
    def nbytes(self) -> int:
        return sum(info.num_bytes for info in self._file.tensors.values())

    def names(self) -> Collection[str]:
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._names[name]].shape

    def dtype(self, name: str) -> str:
        """As stored: F32, Q4_1, …"""
        return self._file.tensors[self._names[name]].quant.name

    def sample(self, name: str) -> bytes:
        return spots(self._file.raw(self._file.tensors[self._names[name]]))

    def get(self, name: str) -> NDArray[np.float32]:
        source = self._names[name]
        array = self._file.tensor(source)
        heads = self._heads.get(source.split(".")[2]) if source.startswith("blk.") else None
        if heads is None:
            return array
        if array.shape[0] % (2 * heads):
            raise ModelError(self._file.name, f"the tensor {source!r} has {array.shape[0]} rows for {heads} heads")
        return half_split(array, heads)


def hf_name(name: str, file: str) -> str:
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise ModelError(file, f"the tensor {brief(name)} belongs to no part of a Llama that is known")


def half_split(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Llama's GGUF rows of q and k have rotary pairs side by side; models rotate dimension i with i + dim / 2."""
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def raw_config(file: GGUFFile) -> dict[str, Any]:
    """The metadata as config.json would say it."""
    metadata = file.metadata
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(file.name, f"the architecture {brief(arch)} is not built; known are {known}")
    value = partial(arch_entry, metadata, arch)
    table = file.tensors.get("token_embd.weight")
    raw = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": table.shape[0] if table else value("vocab_size"),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("attention.key_length"),
        "max_position_embeddings": value("context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": rope_parameters(file, value),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "dtype": stored_dtype(file),
        "eos_token_id": [metadata[name] for name in END_IDS if name in metadata],
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }
    return {name: entry for name, entry in raw.items() if entry is not None}


def arch_entry(metadata: Mapping[str, Any], arch: str, name: str, default: Any = None) -> Any:
    return metadata.get(f"{arch}.{name}", default)


def stored_dtype(file: GGUFFile) -> str:
    """The matrices', if they agree; a quantized file is computed in bfloat16 unless somebody asks for more."""
    names = {info.quant.name for info in file.tensors.values() if len(info.shape) > 1}
    if not names <= FLOATS.keys():
        return "bfloat16"
    return FLOATS[names.pop()] if len(names) == 1 else "float32"


def rope_parameters(file: GGUFFile, value: Callable[..., Any]) -> dict[str, Any]:
    """Frequencies that Llama 3 scales are written out as one divisor per dimension; they are told as they are."""
    rope: dict[str, Any] = {"rope_theta": value("rope.freq_base", 10_000.0), "rope_type": "default"}
    factor = scaling_factor(value)
    kind = value("rope.scaling.type", "none" if factor is None else "linear")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise ModelError(file.name, f"rope scaling {brief(kind)} is unknown; known are none, linear and yarn")
    if not is_one(value("rope.scaling.attn_factor", 1.0)):
        raise ModelError(file.name, "scales attention by a factor of its own (rope.scaling.attn_factor), not built")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": 1.0 if factor is None else factor}
        rope |= {ours: value(f"rope.scaling.{theirs}") for theirs, ours in SCALING.items()}
    if "rope_freqs.weight" in file.tensors:
        rope |= {"rope_type": "llama3", "divisors": file.tensor("rope_freqs.weight").tolist()}
    return {name: entry for name, entry in rope.items() if entry is not None}


def scaling_factor(value: Callable[..., Any]) -> Any:
    """None if there is none. A factor of 0 is none; older files have a key of their own, and no type: it is linear."""
    factor = value("rope.scaling.factor", value("rope.scale_linear"))
    return None if isinstance(factor, int | float) and factor == 0 else factor


def is_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def gguf_config(file: GGUFFile) -> ModelConfig:
    """Raises ModelError for what is missing, malformed or not built."""
    config = model_config(raw_config(file), file.name)
    value = partial(arch_entry, file.metadata, config.raw["model_type"])
    rotated = value("rope.dimension_count", config.head_dim)
    if not isinstance(rotated, int) or rotated != config.head_dim:
        raise ModelError(file.name, f"rotates {brief(rotated)} of {config.head_dim} dimensions; only all is built")
    carried = value("attention.value_length", config.head_dim)
    if not isinstance(carried, int) or carried != config.head_dim:
        raise ModelError(file.name, f"has values of {brief(carried)} dimensions, keys of {config.head_dim}; not built")
    divisors = config.rope.scaling.get("divisors")
    if divisors is not None and len(divisors) != config.head_dim // 2:
        raise ModelError(file.name, f"rope_freqs.weight has {len(divisors)} values for {config.head_dim} dimensions")
    return config


def open_gguf(path: Path) -> Parts:
    file = GGUFFile(path)
    config = gguf_config(file)
    tokenizer = partial(tokenizer_from_gguf, file.metadata, file.name)
    return Parts(config, GGUFWeights(file, config), tokenizer, {}, file.close)
