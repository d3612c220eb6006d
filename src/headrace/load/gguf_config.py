"""A GGUF file's metadata as config.json would say it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.layers.windows import FULL, SLIDING
from headrace.load.config import model_config
from headrace.load.gguf import GGUFFile
from headrace.load.gguf_names import INNER, LAYOUTS, Layout
from headrace.models.registry import FAMILIES
from headrace.words.config import ModelConfig
from headrace.words.errors import ModelError, brief, nearest

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
END_IDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
WORDS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
"""What every family has, in GGUF's words and in Llama's."""
SCALING = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""GGUF's words for the numbers of a rope scaling, and config.json's."""
DIVISORS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
BUFFERS = (DIVISORS, SHORT, LONG)
"""Tensors that are numbers of the rope, not weights."""
MAX_DIVISORS = 4096
LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Number of layers of the one size of each that scales attention by its width per head, not by the size of a head."""
GEMMA3_PATTERN, GEMMA3_LOCAL_BASE = 6, 10_000.0
ZERO_IS_NONE = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Entries of which 0 says that there is none."""


@dataclass(frozen=True)
class Said:
    """The metadata of one architecture."""

    metadata: Mapping[str, Any]
    arch: str
    file: str

    def value(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.arch}.{name}", default)

    def whole(self, name: str) -> int | None:
        """None for what is not said, and for what is no positive whole number: that is refused by those who need it."""
        found = self.value(name)
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    @property
    def head_dim(self) -> int | None:
        hidden, heads = self.whole("embedding_length"), self.whole("attention.head_count")
        return self.whole("attention.key_length") or (hidden // heads if hidden and heads else None)


def layout_of(file: GGUFFile) -> tuple[Layout, Said]:
    """How the file keeps its family; ModelError for an architecture that is not built."""
    arch = file.metadata.get("general.architecture")
    known = [name for name in LAYOUTS if name not in INNER]
    if not isinstance(arch, str) or arch not in known:
        hint = nearest(arch, known) if isinstance(arch, str) else ""
        raise ModelError(file.name, f"the architecture {brief(arch)} is not built{hint}; known are {', '.join(known)}")
    said = Said(file.metadata, arch, file.name)
    if arch == "llama" and said.whole("expert_count"):
        return LAYOUTS["mixtral"], said
    if arch == "llama" and said.whole("attention.sliding_window"):
        return LAYOUTS["mistral"], said
    return LAYOUTS[arch], said


def raw_config(file: GGUFFile, layout: Layout, said: Said) -> dict[str, Any]:
    """The metadata as config.json would say it, in the family's own words."""
    table, tensors, metadata = file.tensors.get("token_embd.weight"), file.tensors, file.metadata
    eps = said.value("attention.layer_norm_epsilon", 1e-5)
    raw = {
        **{ours: said.value(theirs) for theirs, ours in WORDS.items()},
        "num_key_value_heads": said.value("attention.head_count_kv", said.value("attention.head_count")),
        "head_dim": said.value("attention.key_length", said.head_dim),
        "vocab_size": table.shape[0] if table else said.value("vocab_size"),
        "rms_norm_eps": said.value("attention.layer_norm_rms_epsilon", eps),
        "rope_parameters": rope_parameters(file, layout, said),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    names = FAMILIES[layout.architecture].names
    told = {names.get(name, name): entry for name, entry in raw.items() if entry is not None}
    own = {ours: said.value(theirs) for theirs, ours in layout.entries.items()}
    own = {name: entry for name, entry in own.items() if entry is not None}
    no_ids = {"eos_token_id": [metadata[name] for name in END_IDS if name in metadata]}
    if (first := metadata.get("tokenizer.ggml.bos_token_id")) is not None:
        no_ids["bos_token_id"] = first
    about = {"architectures": [layout.architecture], "model_type": said.arch, "dtype": stored_dtype(file)}
    raw = {**about, **told, **no_ids, **own, **layout.fixed, **peculiarities(said)}
    return {name: None if name in ZERO_IS_NONE and is_zero(entry) else entry for name, entry in raw.items()}


def peculiarities(said: Said) -> dict[str, Any]:
    """What single families say in a way of their own, or do not say at all."""
    if said.arch == "olmo2" and said.whole("attention.sliding_window"):
        raise ModelError(said.file, "is an OLMo 3 (olmo2 with windows: attention.sliding_window), which is not built")
    if said.arch == "phi3" and (original := said.value("rope.scaling.original_context_length")) is not None:
        return {"original_max_position_embeddings": original}
    if said.arch not in LARGEST_GEMMAS:
        return {}
    told: dict[str, Any] = {"query_pre_attn_scalar": query_scalar(said)}
    pattern = said.value("attention.sliding_window_pattern", GEMMA3_PATTERN if said.arch == "gemma3" else None)
    if isinstance(pattern, np.ndarray):
        told["layer_types"] = [SLIDING if slides else FULL for slides in pattern[: said.whole("block_count")].tolist()]
    elif pattern is not None:
        told["sliding_window_pattern"] = pattern
    return {name: entry for name, entry in told.items() if entry is not None}


def query_scalar(said: Said) -> int | None:
    """What queries are divided by the root of: the size of a head, but for the largest models."""
    hidden, heads = said.whole("embedding_length"), said.whole("attention.head_count")
    is_largest = said.whole("block_count") == LARGEST_GEMMAS[said.arch]
    return hidden // heads if is_largest and hidden and heads else said.head_dim


def stored_dtype(file: GGUFFile) -> str:
    """The matrices', if they agree; a quantized file is computed in bfloat16 unless somebody asks for more."""
    names = {info.quant.name for info in file.tensors.values() if len(info.shape) > 1}
    if not names <= FLOATS.keys():
        return "bfloat16"
    return FLOATS[names.pop()] if len(names) == 1 else "float32"


def quantization_of(file: GGUFFile) -> str | None:
    """The format of most matrices that are quantized."""
    counts = Counter(info.quant.name for info in file.tensors.values() if info.quant.name not in FLOATS)
    return next((name for name, _ in counts.most_common(1)), None)


def rope_parameters(file: GGUFFile, layout: Layout, said: Said) -> dict[str, Any]:
    """Frequencies that Llama 3 scales are written out as one divisor per dimension; they are told as they are."""
    rope: dict[str, Any] = {"rope_theta": said.value("rope.freq_base", 10_000.0), "rope_type": "default"}
    factor = scaling_factor(said)
    kind = said.value("rope.scaling.type", "none" if factor is None else "linear")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(file.name, f"rope scaling {brief(kind)} is unknown; known are none, linear, yarn and longrope")
    is_long = LONG in file.tensors or SHORT in file.tensors
    if not is_long and not is_one(said.value("rope.scaling.attn_factor", 1.0)):
        raise ModelError(file.name, "scales attention by a factor of its own (rope.scaling.attn_factor), not built")
    if kind in ("linear", "yarn") and not is_long:
        rope |= {"rope_type": kind, "factor": 1.0 if factor is None else factor}
        rope |= {ours: said.value(f"rope.scaling.{theirs}") for theirs, ours in SCALING.items()}
    if DIVISORS in file.tensors:
        rope |= {"rope_type": "llama3", "divisors": divisors(file, DIVISORS)}
    if is_long:
        rope |= longrope(file, said)
    rope |= partial(layout, said)
    rope = {name: entry for name, entry in rope.items() if entry is not None}
    if layout.architecture != "Gemma3ForCausalLM":
        return rope
    return {FULL: rope, SLIDING: {"rope_theta": said.value("rope.freq_base_swa", GEMMA3_LOCAL_BASE)}}


def longrope(file: GGUFFile, said: Said) -> dict[str, Any]:
    """Both lists of divisors, and how much amplitudes are raised where the file says so."""
    lists = {"short_factor": SHORT, "long_factor": LONG}
    told = {name: divisors(file, tensor) for name, tensor in lists.items() if tensor in file.tensors}
    original = said.value("rope.scaling.original_context_length")
    raised = said.value("rope.scaling.attn_factor")
    return {
        "rope_type": "longrope",
        "original_max_position_embeddings": original,
        "attention_factor": raised,
        **told,
    }


def divisors(file: GGUFFile, name: str) -> list[float]:
    info = file.tensors[name]
    if math.prod(info.shape) > MAX_DIVISORS:
        raise ModelError(file.name, f"{name} has {math.prod(info.shape)} values; at most {MAX_DIVISORS} are read")
    return [float(value) for value in file.tensor(name).reshape(-1)]


def partial(layout: Layout, said: Said) -> dict[str, Any]:
    """The share of a head that is rotated, rounded so that it gives the very number of dimensions again."""
    rotated, head_dim = said.value("rope.dimension_count"), said.head_dim
    if rotated is None or head_dim is None:
        return {}
    if isinstance(rotated, int) and rotated == head_dim:
        return {}
    if layout.is_paired or not isinstance(rotated, int) or not 0 < rotated < head_dim:
        raise ModelError(said.file, f"rotates {brief(rotated)} of {head_dim} dimensions, which is not built")
    share = rotated / head_dim
    return {"partial_rotary_factor": share if int(head_dim * share) == rotated else math.nextafter(share, 1.0)}


def scaling_factor(said: Said) -> Any:
    """None if there is none. A factor of 0 is none; older files have a key of their own, and no type: it is linear."""
    factor = said.value("rope.scaling.factor", said.value("rope.scale_linear"))
    return None if is_zero(factor) else factor


def is_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def gguf_config(file: GGUFFile) -> ModelConfig:
    """Raises ModelError for what is missing, malformed or not built."""
    if isinstance(count := file.metadata.get("split.count"), int) and count > 1:
        raise ModelError(
            file.name, f"is one of {count} parts of a model; merge them into one file (gguf-split --merge)"
        )
    layout, said = layout_of(file)
    config = model_config(raw_config(file, layout, said), file.name)
    carried = said.value("attention.value_length", config.head_dim)
    if not isinstance(carried, int) or carried != config.head_dim:
        raise ModelError(file.name, f"has values of {brief(carried)} dimensions, keys of {config.head_dim}; not built")
    told = config.rope.scaling.get("divisors")
    if told is not None and len(told) != config.head_dim // 2:
        raise ModelError(file.name, f"{DIVISORS} has {len(told)} values for {config.head_dim} dimensions")
    return replace(config, quantization=quantization_of(file))
