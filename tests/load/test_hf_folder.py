"""Folders in Hugging Face's layout, against transformers' own reading of what it saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.load import folder as f

from headrace.load.checkpoint import open_checkpoint, open_tokenizer
from headrace.load.config import model_config
from headrace.load.safetensors_file import SafetensorsFile


@pytest.fixture
def write(tmp_path):
    return lambda **files: str(f.write(tmp_path / "tiny", **files))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.covers("M34")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_model_is_read_as_transformers_reads_it(torch, tmp_path, dtype, shards):
    from tests.models.oracle import make

    model = make(attention_bias=True).to(getattr(torch, dtype))
    size = "1GB" if shards == 1 else "20KB"
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) == 1) == (shards == 1)
    tokens = f.write(tmp_path / "tokens")
    with open_checkpoint(str(tmp_path), tokenizer=str(tokens)) as checkpoint:
        wanted = {name: as_stored(torch, tensor) for name, tensor in model.state_dict().items()}
        assert set(checkpoint.weights.names()) == set(wanted)
        for name, array in wanted.items():
            got = checkpoint.weights.get(name)
            assert got.dtype == array.dtype and np.array_equal(got, array)
            assert checkpoint.weights.shape(name) == array.shape
        assert checkpoint.config.dtype == dtype
        assert checkpoint.weights.nbytes == sum(array.nbytes for array in wanted.values())
        same_config(checkpoint.config, model.config)


def as_stored(torch, tensor):
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def same_config(ours, theirs):
    assert ours.architecture == theirs.architectures[0] and ours.vocab_size == theirs.vocab_size
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, theirs.intermediate_size)
    assert (ours.num_layers, ours.num_heads) == (theirs.num_hidden_layers, theirs.num_attention_heads)
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (ours.norm_eps, ours.max_position_embeddings) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert (ours.attention_bias, ours.mlp_bias) == (theirs.attention_bias, theirs.mlp_bias)
    assert (ours.hidden_act, ours.tie_word_embeddings) == (theirs.hidden_act, theirs.tie_word_embeddings)
    assert (ours.rope.theta, ours.rope.kind) == (theirs.rope_parameters["rope_theta"], "default")


def test_the_defaults_are_transformers_llamas(torch):
    from transformers import LlamaConfig

    theirs = LlamaConfig(architectures=["LlamaForCausalLM"])
    needed = ("architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    raw = {name: getattr(theirs, name) for name in (*needed, "num_attention_heads")}
    same_config(model_config(raw), theirs)


ROPES = {
    "nothing": ({}, ("default", 10_000.0, {}, 1.0)),
    "old": ({"rope_theta": 5e5, "rope_scaling": None}, ("default", 5e5, {}, 1.0)),
    "old and scaled": (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        ("linear", 5e5, {"factor": 2.0}, 1.0),
    ),
    "old with both words": (
        {"rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4.0}},
        ("yarn", 10_000.0, {"factor": 4.0}, 1.0),
    ),
    "old and long": (
        {"rope_scaling": {"type": "su", "short_factor": [1.0]}, "original_max_position_embeddings": 64},
        ("longrope", 10_000.0, {"short_factor": [1.0], "original_max_position_embeddings": 64}, 1.0),
    ),
    "new": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}},
        ("llama3", 5e5, {"factor": 8.0, "low_freq_factor": 1.0}, 1.0),
    ),
    "new, the base outside": (
        {"rope_theta": 7.0, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        ("dynamic", 7.0, {"factor": 2.0}, 1.0),
    ),
    "in part": ({"partial_rotary_factor": 0.5}, ("default", 10_000.0, {}, 0.5)),
    "in part, new": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ("default", 10_000.0, {}, 0.25)),
}


@pytest.mark.parametrize("case", ROPES)
def test_rope_is_read_in_the_words_of_every_version(case):
    change, (kind, theta, scaling, share) = ROPES[case]
    rope = model_config({**f.CONFIG, "head_dim": 16, **change}).rope
    assert (rope.kind, rope.theta, rope.scaling, rope.partial_factor) == (kind, theta, scaling, share)


@pytest.mark.covers("D24")
def test_the_ends_are_those_of_generation_config_and_of_config(write):
    with open_checkpoint(write()) as checkpoint:
        assert checkpoint.config.eos_token_ids == (257, 256)
        assert checkpoint.generation["temperature"] == 0.5
        assert checkpoint.tokenizer.eos_token_ids == (257,) and checkpoint.tokenizer.bos_token_id == 256
    with open_checkpoint(write(generation_config__json={"eos_token_id": None})) as checkpoint:
        assert checkpoint.config.eos_token_ids == (257,)


@pytest.mark.parametrize(("told", "dtype"), [("bfloat16", "bfloat16"), ("half", "float16"), (None, "float16")])
def test_the_type_is_what_the_configuration_says_or_else_the_tensors(write, told, dtype):
    tensors = {"a": np.zeros(4, np.float16), "b": np.zeros(4, np.float16), "c": np.zeros(4, np.float32)}
    path = write(config__json={**f.CONFIG, "torch_dtype": told}, model__safetensors=f.safetensors(tensors))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.dtype == dtype


def test_weights_are_views_of_the_map_and_outlive_it(write):
    checkpoint = open_checkpoint(write())
    norm = checkpoint.weights.get("model.norm.weight")
    assert not norm.flags.owndata and not norm.flags.writeable
    checkpoint.close()
    checkpoint.close()
    assert np.array_equal(norm, f.TENSORS["model.norm.weight"])


def test_a_tensor_at_an_odd_place_is_copied_to_an_even_one(tmp_path):
    array = np.arange(5, dtype=np.float32)
    for spaces in range(4):
        header = {"t": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}
        (tmp_path / "t.safetensors").write_bytes(f.packed(json.dumps(header).encode() + b" " * spaces, array.tobytes()))
        got = SafetensorsFile(tmp_path / "t.safetensors").tensor("t")
        assert got.flags.aligned and np.array_equal(got, array)


def test_a_scalar_and_an_empty_tensor_are_tensors(tmp_path):
    tensors = {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 4), np.float32)}
    (tmp_path / "t.safetensors").write_bytes(f.safetensors(tensors))
    file = SafetensorsFile(tmp_path / "t.safetensors")
    assert file.tensor("scalar") == np.float32(2.5) and file.tensor("empty").shape == (0, 4)


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, "old"),
        ({"chat_template__jinja": "new"}, "new"),
        ({"tokenizer_config__json": {"chat_template": [{"name": "tool", "template": "t"}]}}, None),
        ({"tokenizer_config__json": {"chat_template": [{"name": "default", "template": "d"}]}}, "d"),
        ({"tokenizer_config__json": None}, None),
    ],
)
def test_the_chat_template_is_the_files_or_else_the_settings(write, files, template):
    with open_checkpoint(write(**files)) as checkpoint:
        assert checkpoint.chat_template == checkpoint.tokenizer.chat_template == template


def test_the_tokenizer_may_come_from_another_folder(write, tmp_path):
    other = f.write(tmp_path / "other", chat_template__jinja="other", config__json=None, model__safetensors=None)
    with open_checkpoint(write(tokenizer__json=None), tokenizer=str(other)) as checkpoint:
        assert checkpoint.chat_template == "other"
        assert checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("hé</s>")) == "hé"
    assert open_tokenizer(str(other)).vocab_size == 258
