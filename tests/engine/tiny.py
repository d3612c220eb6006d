"""A checkpoint in Hugging Face's layout with a tiny Llama of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tests.engine import toys

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 32, 48, 2, 4, 2, 320
NAN_ID = 319
"""A token whose embedding is not finite."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": 2,
}


def shapes() -> dict[str, tuple[int, ...]]:
    found = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    width, kv_width = HIDDEN, HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {f"{at}.{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")}
        found |= {f"{at}.self_attn.{name}_proj.weight": (width, HIDDEN) for name in "qo"}
        found |= {f"{at}.self_attn.{name}_proj.weight": (kv_width, HIDDEN) for name in "kv"}
        found |= {f"{at}.mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        found[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    return found


def write(folder: Path) -> Path:
    """Writes the checkpoint; its logits differ enough that tokens depend on the prompt."""
    rng = np.random.default_rng(7)
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes().items()}
    for name in tensors:
        if "norm" in name:
            tensors[name] += 1
    tensors["model.embed_tokens.weight"][NAN_ID] = np.nan
    tensors["lm_head.weight"] *= 4
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    toys.bytewise().backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": toys.TEMPLATE})
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 3], "temperature": 0.5, "top_k": 9})
    return folder


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
