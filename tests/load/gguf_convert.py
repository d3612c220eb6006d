"""Models of transformers as GGUF files: the gguf package's names and writer, and what its converters do to values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from gguf.constants import MODEL_ARCH_NAMES
from tests.models.families import Saved

from headrace.load.tokenizer import ALPHABET

Array = np.ndarray
Tensors = dict[str, Array]


class Family(NamedTuple):
    """`before` changes tensors under Hugging Face's names, `tell` writes the entries that are the family's own."""

    arch: MODEL_ARCH
    before: Callable[[Tensors, Any], Tensors]
    tell: Callable[[GGUFWriter, Any], None]


def unchanged(tensors: Tensors, config: Any) -> Tensors:
    return tensors


def with_pairs(tensors: Tensors, config: Any) -> Tensors:
    """Rows of q and k such that dimension i and i + dim / 2 of a head are neighbours."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    changed = dict(tensors)
    for name, array in tensors.items():
        part = name.split(".")[-2]
        if part in heads:
            halves = array.reshape(heads[part], 2, -1, *array.shape[1:])
            changed[name] = halves.swapaxes(1, 2).reshape(array.shape)
    return changed


def with_stacks(tensors: Tensors, config: Any) -> Tensors:
    """All experts of a layer in one tensor."""
    changed = {name: array for name, array in tensors.items() if ".experts." not in name}
    stacks: dict[str, dict[int, Array]] = {}
    for name in tensors.keys() - changed.keys():
        before, _, behind = name.partition(".experts.")
        number, _, rest = behind.partition(".")
        stacks.setdefault(f"{before}.experts.{rest}", {})[int(number)] = tensors[name]
    for name, parts in stacks.items():
        changed[name] = np.stack([parts[i] for i in range(len(parts))])
    return changed


def mixtral(tensors: Tensors, config: Any) -> Tensors:
    return with_stacks(with_pairs(tensors, config), config)


def plus_one(tensors: Tensors, config: Any) -> Tensors:
    return {name: array + np.float32(1) if "norm" in name else array for name, array in tensors.items()}


def transposed(tensors: Tensors, config: Any) -> Tensors:
    return {name: array.T if ".c_" in name else array for name, array in tensors.items()}


def part_by_part(tensors: Tensors, config: Any) -> Tensors:
    """Rows of all heads' q, then k, then v."""
    changed = dict(tensors)
    for name, array in tensors.items():
        if ".query_key_value." in name:
            heads = array.reshape(config.num_attention_heads, 3, -1, *array.shape[1:])
            changed[name] = heads.swapaxes(0, 1).reshape(array.shape)
    return changed


def nothing(writer: GGUFWriter, config: Any) -> None:
    pass


def of_llama(writer: GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{writer.arch}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def of_mistral(writer: GGUFWriter, config: Any) -> None:
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)


def of_mixtral(writer: GGUFWriter, config: Any) -> None:
    of_mistral(writer, config)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def of_qwen3(writer: GGUFWriter, config: Any) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def of_qwen3_moe(writer: GGUFWriter, config: Any) -> None:
    of_qwen3(writer, config)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def of_gemma2(writer: GGUFWriter, config: Any) -> None:
    of_qwen3(writer, config)
    writer.add_sliding_window(config.sliding_window)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def of_gemma3(writer: GGUFWriter, config: Any) -> None:
    of_qwen3(writer, config)
    writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    writer.add_string("gemma3.rope.scaling.type", "linear")
    writer.add_rope_scaling_factor(rope["full_attention"]["factor"])


def of_phi3(writer: GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if rope["rope_type"] == "longrope":
        factor = config.max_position_embeddings / config.original_max_position_embeddings
        attention = np.sqrt(1 + np.log(factor) / np.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_attn_factors(float(attention))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def of_granite(writer: GGUFWriter, config: Any) -> None:
    of_llama(writer, config)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def of_neox(writer: GGUFWriter, config: Any) -> None:
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_parallel_residual(config.use_parallel_residual)


FAMILIES = {
    "LlamaForCausalLM": Family(MODEL_ARCH.LLAMA, with_pairs, of_llama),
    "MistralForCausalLM": Family(MODEL_ARCH.LLAMA, with_pairs, of_mistral),
    "MixtralForCausalLM": Family(MODEL_ARCH.LLAMA, mixtral, of_mixtral),
    "Qwen2ForCausalLM": Family(MODEL_ARCH.QWEN2, unchanged, nothing),
    "Qwen3ForCausalLM": Family(MODEL_ARCH.QWEN3, unchanged, of_qwen3),
    "Qwen3MoeForCausalLM": Family(MODEL_ARCH.QWEN3MOE, with_stacks, of_qwen3_moe),
    "Gemma2ForCausalLM": Family(MODEL_ARCH.GEMMA2, plus_one, of_gemma2),
    "Gemma3ForCausalLM": Family(MODEL_ARCH.GEMMA3, plus_one, of_gemma3),
    "Phi3ForCausalLM": Family(MODEL_ARCH.PHI3, unchanged, of_phi3),
    "GraniteForCausalLM": Family(MODEL_ARCH.GRANITE, with_pairs, of_granite),
    "Olmo2ForCausalLM": Family(MODEL_ARCH.OLMO2, unchanged, nothing),
    "SmolLM3ForCausalLM": Family(MODEL_ARCH.SMOLLM3, with_pairs, of_llama),
    "GPT2LMHeadModel": Family(MODEL_ARCH.GPT2, transposed, nothing),
    "GPTNeoXForCausalLM": Family(MODEL_ARCH.GPTNEOX, part_by_part, of_neox),
}


def write(
    path: Path,
    made: Saved,
    architecture: str,
    family: Family | None = None,
    old_name: Callable[[str], str | None] = lambda name: None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """The model as GGUF with matrices of that kind, and with a vocabulary of bytes; `old_name` are names that the
    package knows no more."""
    family, config = family or FAMILIES[architecture], made.model.config
    names = get_tensor_name_map(family.arch, config.num_hidden_layers)
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[family.arch])
    tell_sizes(writer, config, made.arrays)
    family.tell(writer, config)
    tell_tokens(writer, config.vocab_size)
    for name, array in family.before(dict(made.arrays), config).items():
        told = old_name(name) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert told is not None, name
        stored = GGMLQuantizationType.F32 if array.ndim == 1 else kind
        writer.add_tensor(told, quantize(np.ascontiguousarray(array, np.float32), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tell_sizes(writer: GGUFWriter, config: Any, tensors: Mapping[str, Array]) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.n_inner or 4 * config.n_embd)
    writer.add_head_count(config.num_attention_heads)
    if (kv_heads := getattr(config, "num_key_value_heads", None)) is not None:
        writer.add_head_count_kv(kv_heads)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_epsilon", None) or config.layer_norm_eps)
    for theta in thetas(config):
        writer.add_rope_freq_base(theta)


def thetas(config: Any) -> Iterator[float]:
    """The base of layers that see everything, if any turn."""
    rope = getattr(config, "rope_parameters", None)
    if rope:
        yield rope.get("full_attention", rope)["rope_theta"]


def tell_tokens(writer: GGUFWriter, count: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*ALPHABET][:count])
    writer.add_token_merges([])
