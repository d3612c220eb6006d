"""GGUF files of every family: their logits are those of the model that they were made of."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.load import gguf_convert
from tests.models import families
from tests.models.cases import CASES, GEMMA, PROMPTS
from tests.models.driver import Driver

from headrace.load.config import model_config
from headrace.load.gguf_config import Said, peculiarities, query_scalar
from headrace.load.gguf_model import open_gguf
from headrace.load.gguf_names import INNER, LAYOUTS
from headrace.words.errors import ModelError

GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.3, 1.6, 2.0],
    "long_factor": [1.5, 2.5, 4.0, 8.0],
    "original_max_position_embeddings": 20,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"head_dim": 8}),
    "llama tied, with yarn": ("LlamaForCausalLM", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "mistral": CASES["mistral"],
    "mixtral": CASES["mixtral"],
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3 moe": ("Qwen3MoeForCausalLM", {**MOE, "head_dim": 16}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GEMMA, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**GEMMA, "query_pre_attn_scalar": 16, "rope_parameters": GEMMA3_ROPES, "num_hidden_layers": 7},
    ),
    "phi3": CASES["phi3"],
    "phi3, long": ("Phi3ForCausalLM", {"rope_parameters": LONG, "original_max_position_embeddings": 20}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "granite": ("GraniteForCausalLM", {**CASES["granite"][1], "attention_bias": False, "mlp_bias": False}),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 5}),
    "gpt2": CASES["gpt2"],
    "pythia": CASES["pythia"],
    "pythia in sequence": ("GPTNeoXForCausalLM", {"use_parallel_residual": False}),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The model of transformers, and what is read of its GGUF file."""
    found = {}

    def open_case(name: str):
        if name not in found:
            architecture, changes = MADE[name]
            made = families.make(architecture, **changes)
            path = tmp_path_factory.mktemp("gguf") / "model.gguf"
            found[name] = made, open_gguf(gguf_convert.write(path, made, architecture))
        return found[name]

    return open_case


def driver(parts, **options) -> Driver:
    arrays = {name: parts.weights.get(name) for name in parts.weights.names()}
    assert {name: array.shape for name, array in arrays.items()} == {n: parts.weights.shape(n) for n in arrays}
    return Driver(parts.config, arrays, **options)


@pytest.mark.parametrize("name", MADE)
def test_logits_are_those_of_the_model_that_the_file_was_made_of(opened, name):
    made, parts = opened(name)
    prompts = [prompt[:19] for prompt in PROMPTS] if "long" in name else PROMPTS
    wanted = [families.logits(made.model, prompt) for prompt in prompts]
    assert np.std(np.concatenate(wanted)) >= 1
    got = driver(parts, max_model_len=20 if "long" in name else 64).run(prompts, 7)
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_long_texts_have_divisors_of_their_own(opened):
    made, parts = opened("phi3, long")
    wanted = families.logits(made.model, PROMPTS[4])
    np.testing.assert_allclose(driver(parts).run([PROMPTS[4]])[0], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", MADE)
def test_the_file_says_all_that_the_family_reads_in_config_json(opened, name):
    made, parts = opened(name)
    ours, theirs = parts.config, made.config()
    assert ours.architecture == theirs.architecture and ours.file == "model.gguf"
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
        assert getattr(ours, field) == getattr(theirs, field), field
    for field in ("head_dim", "max_position_embeddings", "hidden_act", "tie_word_embeddings"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.norm_eps == pytest.approx(theirs.norm_eps)
    assert set(parts.weights.names()) == {name for name in made.arrays if "inv_freq" not in name}


def test_every_architecture_of_the_table_has_a_case():
    made = {gguf_convert.FAMILIES[architecture].arch.name.lower() for architecture, _ in MADE.values()}
    assert made == LAYOUTS.keys() - set(INNER)


def test_one_expert_is_read_without_the_others(opened):
    made, parts = opened("qwen3 moe")
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    assert np.array_equal(parts.weights.get(name), made.arrays[name])
    assert parts.weights.sample(name) != parts.weights.sample(name.replace(".3.", ".2."))


@pytest.mark.parametrize(("arch", "layers", "scalar"), [("gemma2", 46, 144), ("gemma2", 42, 128), ("gemma3", 62, 144)])
def test_the_largest_gemmas_scale_attention_by_their_width(arch, layers, scalar):
    numbers = {"block_count": layers, "embedding_length": 4608, "attention.head_count": 32, "attention.key_length": 128}
    assert query_scalar(Said({f"{arch}.{name}": n for name, n in numbers.items()}, arch, "model.gguf")) == scalar


def test_older_mixtrals_keep_every_expert_as_a_tensor_of_its_own(opened, tmp_path):
    made, stacked = opened("mixtral")
    words = {"w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}

    def old_name(name: str) -> str | None:
        found = re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(\d+)\.(w\d)\.weight", name)
        return found and f"blk.{found[1]}.{words[found[3]]}.{found[2]}.weight"

    family = gguf_convert.FAMILIES["MixtralForCausalLM"]._replace(before=gguf_convert.with_pairs)
    path = gguf_convert.write(tmp_path / "model.gguf", made, "MixtralForCausalLM", family, old_name)
    old = open_gguf(path).weights
    assert set(old.names()) == set(stacked.weights.names())
    assert all(np.array_equal(old.get(name), stacked.weights.get(name)) for name in old.names())


@pytest.mark.parametrize(
    ("pattern", "types"),
    [(None, "SSSSSF"), (3, "SSFSSF"), (np.array([True, False, True, True, False, False, True]), "SFSSFF")],
    ids=str,
)
def test_gemma_3s_windows_are_told_by_a_number_or_layer_by_layer(pattern, types):
    numbers = {"block_count": 6, "embedding_length": 48, "attention.head_count": 6}
    told = {f"gemma3.{name}": n for name, n in numbers.items()}
    if pattern is not None:
        told["gemma3.attention.sliding_window_pattern"] = pattern
    raw = {"head_dim": 8, **peculiarities(Said(told, "gemma3", "model.gguf"))}
    made = families.make("Gemma3ForCausalLM", **GEMMA, rope_parameters=GEMMA3_ROPES, num_hidden_layers=6)
    plain = {name: value for name, value in made.raw.items() if name not in ("layer_types", "sliding_window_pattern")}
    model = Driver(model_config({**plain, **raw, "head_dim": 16}), made.arrays).model
    assert "".join("F" if spec.window is None else "S" for spec in model.cache_specs()) == types


def test_olmo_3_is_not_taken_for_olmo_2(tmp_path):
    made = families.make("Olmo2ForCausalLM")
    windowed = gguf_convert.FAMILIES["Olmo2ForCausalLM"]._replace(tell=lambda writer, _: writer.add_sliding_window(9))
    path = gguf_convert.write(tmp_path / "model.gguf", made, "Olmo2ForCausalLM", windowed)
    with pytest.raises(ModelError, match=r"^model\.gguf: is an OLMo 3"):
        open_gguf(path)
