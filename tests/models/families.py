"""Tiny random models of every family, made and saved by transformers, their weights shaken so that all count."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.models import oracle

from headrace.load.config import model_config
from headrace.load.hf_folder import open_weights
from headrace.words.config import ModelConfig

COMMON = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
OTHER = {
    "GPT2LMHeadModel": {
        "vocab_size": 101,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 6,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-2,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "GPTNeoXForCausalLM": {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": 64,
        "layer_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        "bos_token_id": None,
        "eos_token_id": None,
    },
}
CONFIGS = {"Gemma3ForCausalLM": "Gemma3TextConfig", "GPT2LMHeadModel": "GPT2Config"}


class Saved(NamedTuple):
    """A model of transformers, and what it wrote: config.json and tensors."""

    model: Any
    raw: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def config(self, **changes: Any) -> ModelConfig:
        """As our loader reads it, entries changed; those that are ABSENT are left out."""
        raw = {**self.raw, **changes}
        return model_config({name: value for name, value in raw.items() if value is not ABSENT})


ABSENT = object()


def make(architecture: str, **changes: Any) -> Saved:
    """fp32, with the logits' standard deviation at least 1."""
    import transformers

    torch.manual_seed(11)
    wanted = {**OTHER.get(architecture, COMMON), **changes}
    kind = getattr(transformers, CONFIGS.get(architecture) or architecture.replace("ForCausalLM", "Config"))
    config = kind(**wanted, attn_implementation="eager")
    model = getattr(transformers, architecture)(config).eval()
    shake(model)
    return saved(model)


def saved(model: Any) -> Saved:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        raw = json.loads((Path(folder) / "config.json").read_text())
        weights = open_weights(Path(folder))
        arrays = {name: np.array(weights.get(name)) for name in weights.names()}
        weights.close()
    return Saved(model, raw, arrays)


def shake(model: Any) -> None:
    """Every weight is drawn anew: matrices such that activations keep their size, norms around 1, biases around 0."""
    generator = torch.Generator().manual_seed(5)
    is_gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                is_around_one = name.endswith("weight") and not is_gemma
                weight.copy_(0.3 * noise + is_around_one)
            elif any(part in name for part in ("embed", "wte", "wpe")):
                weight.copy_(noise)
            else:
                fan_in = weight.shape[0] if ".c_" in name else weight.shape[-1]
                weight.copy_(noise * 1.2 / fan_in**0.5)


logits = oracle.logits
