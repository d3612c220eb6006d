"""Tiny random models made by transformers, their weights shaken so that nothing in them is zero, one or negligible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.words.config import ModelConfig, RopeConfig

LLAMA = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


def make(**changes: Any) -> Any:
    """A LlamaForCausalLM in fp32 with the logits' standard deviation at least 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **changes})).eval()
    shake(model)
    return model


def shake(model: Any) -> None:
    """Every weight is drawn anew: matrices such that activations keep their size, norms around 1, biases around 0."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                is_norm = name.endswith("weight")
                weight.copy_(1 + 0.3 * noise if is_norm else 0.3 * noise)
            else:
                weight.copy_(noise * (1.2 / weight.shape[1] ** 0.5 if "embed" not in name else 1.0))


def arrays(model: Any) -> dict[str, np.ndarray]:
    state = model.state_dict()
    names = [name for name in state if not (name == "lm_head.weight" and model.config.tie_word_embeddings)]
    return {name: state[name].detach().float().numpy().copy() for name in names}


def config(**changes: Any) -> ModelConfig:
    """The same configuration in our words."""
    hf = {**LLAMA, **changes}
    rope = dict(hf["rope_parameters"])
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        intermediate_size=hf["intermediate_size"],
        num_layers=hf["num_hidden_layers"],
        num_heads=hf["num_attention_heads"],
        num_kv_heads=hf["num_key_value_heads"],
        head_dim=hf["head_dim"],
        max_position_embeddings=hf["max_position_embeddings"],
        norm_eps=hf["rms_norm_eps"],
        rope=RopeConfig(theta, kind, rope),
        hidden_act=hf["hidden_act"],
        tie_word_embeddings=hf["tie_word_embeddings"],
        attention_bias=hf["attention_bias"],
        mlp_bias=hf["mlp_bias"],
    )


def logits(model: Any, prompt: list[int]) -> np.ndarray:
    """[length, vocab] of transformers' own forward."""
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0].float().numpy()
