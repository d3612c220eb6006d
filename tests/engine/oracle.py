"""transformers' Llama with the default model's weights, read and dequantized by the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
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
HEADS = {"attn_q": 9, "attn_k": 3}


def hf_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps rotary pairs side by side, transformers keeps them half a head apart."""
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def state_dict(path: Path) -> dict[str, Any]:
    import torch
    from gguf import GGUFReader, dequantize

    state = {}
    for tensor in GGUFReader(path).tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        weight = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in HEADS:
            weight = half_split(weight, HEADS[part])
        state[hf_name(tensor.name)] = torch.from_numpy(np.array(weight, np.float32))
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def load(path: Path) -> Any:
    """The model in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state_dict(path))
    return model
