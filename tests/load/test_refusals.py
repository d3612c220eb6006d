"""Folders that must not or cannot be used: each is refused in one line that names the file and the cause."""

from __future__ import annotations

import json
import pickle
import struct

import numpy as np
import pytest
from tests.load import folder as f

from headrace.load.checkpoint import open_checkpoint
from headrace.words.errors import ModelError

WHOLE = f.safetensors(f.TENSORS)
SHARDS = {"a.safetensors": f.safetensors({"one": np.zeros(2, np.float32)})}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def config(**changes):
    return {"config__json": {**f.CONFIG, **changes}}


def index(mapping, **files):
    return {"model__safetensors": None, "model__safetensors__index__json": {"weight_map": mapping}, **files}


def tensors(header, data=b""):
    return {"model__safetensors": f.packed(header, data)}


CASES = {
    "no configuration": ({"config__json": None}, "config.json: is missing"),
    "a configuration cut off": ({"config__json": b'{"a": 1'}, "config.json: is no valid JSON"),
    "a list for a configuration": ({"config__json": [1]}, "config.json: must hold a JSON object"),
    "bytes for a configuration": ({"config__json": b"\xff\xfe"}, "config.json: is not UTF-8"),
    "a deep configuration": ({"config__json": b"[" * 200_000}, "config.json: is no valid JSON"),
    "code of its own": (config(auto_map={"AutoModel": "x.py--X"}), "config.json: asks for code of its own (auto_map)"),
    "code for one of its classes": (
        config(architectures=["Phi3ForCausalLM"], auto_map={"AutoConfig": "a.Phi3Config", "AutoModel": "a.Phi3Model"}),
        "config.json: asks for code of its own (auto_map)",
    ),
    "code that is a list": (config(auto_map=["x.py"]), "config.json: asks for code of its own (auto_map)"),
    "no architecture": (config(architectures=None), "config.json: names no architecture"),
    "no width": (config(hidden_size=None), "config.json: lacks hidden_size"),
    "a negative width": (config(hidden_size=-8), "config.json: hidden_size must be a positive whole number, got -8"),
    "a width that is true": (config(hidden_size=True), "config.json: hidden_size must be a positive whole number"),
    "an enormous width": (config(vocab_size=10**30), "config.json: vocab_size must be a positive whole number"),
    "a text for eps": (config(rms_norm_eps="1e-5"), "config.json: rms_norm_eps must be a positive number, got '1e-5'"),
    "a text for a flag": (config(attention_bias="no"), "config.json: attention_bias must be true or false"),
    "heads that do not divide": (config(num_key_value_heads=3), "config.json: num_key_value_heads must be a divisor"),
    "an unknown rope": (config(rope_scaling={"type": "odd"}), "config.json: rope type 'odd' is unknown; known are"),
    "a rope that is a list": (config(rope_scaling=[1]), "config.json: rope_scaling must be an object"),
    "a rope type that is a list": (config(rope_scaling={"type": ["odd"]}), "config.json: rope type ['odd'] is unknown"),
    "a rope for each type of layer": (
        config(rope_parameters={"full_attention": {"rope_theta": 1.0}}),
        "config.json: has rope parameters for each type of layer",
    ),
    "a damaged generation_config": ({"generation_config__json": b"{"}, "generation_config.json: is no valid JSON"),
    "no weights": ({"model__safetensors": None}, "model.safetensors: is missing"),
    "a pickle only": (
        {"model__safetensors": None, "pytorch_model__bin": pickle.dumps({})},
        "pytorch_model.bin: is a pickle, which may run code and is never read; convert it to safetensors",
    ),
    "an index without a map": (
        {"model__safetensors__index__json": {"weight_map": {"one": 1}}},
        "model.safetensors.index.json: has no weight_map",
    ),
    "an index with ..": (
        index({"one": "../a.safetensors"}),
        "model.safetensors.index.json: names a file outside the model's folder: '../a.safetensors'",
    ),
    "an index with an absolute path": (
        index({"one": "/etc/passwd"}),
        "model.safetensors.index.json: names a file outside the model's folder: '/etc/passwd'",
    ),
    "an index with a backslash": (index({"one": "..\\a.safetensors"}), "names a file outside the model's folder"),
    "an index with a pickle": (index({"one": "a.bin"}), "names a file that is not safetensors: 'a.bin'"),
    "a missing shard": (
        index({"one": "a.safetensors", "two": "b.safetensors"}, a__safetensors=SHARDS["a.safetensors"]),
        "b.safetensors: is missing; model.safetensors.index.json names it",
    ),
    "a shard without its tensor": (
        index({"one": "a.safetensors", "two": "a.safetensors"}, a__safetensors=SHARDS["a.safetensors"]),
        "a.safetensors: does not hold the tensor 'two'",
    ),
    "an empty file": ({"model__safetensors": b""}, "model.safetensors: cannot be mapped"),
    "seven bytes": ({"model__safetensors": bytes(7)}, "model.safetensors: states a header of 0 bytes in a file of 7"),
    "a file cut off": ({"model__safetensors": WHOLE[:-10]}, "does not lie within the file; is it truncated?"),
    "a header cut off": ({"model__safetensors": WHOLE[:60]}, "is it truncated?"),
    "a header of 2^60 bytes": (
        {"model__safetensors": struct.pack("<Q", 2**60) + WHOLE[8:]},
        f"model.safetensors: states a header of {2**60} bytes",
    ),
    "a header of two megabytes for nothing": (tensors(b"{" + b" " * (1 << 21)), "too long for a file of"),
    "an endless configuration": (
        {"config__json": b" " * (1 << 24) + b"{}"},
        "config.json: has more than 16777216 bytes",
    ),
    "a header that is no JSON": (tensors(b"{" * 99), "has a header that is no valid JSON"),
    "a deep header": (tensors(b'{"a":' + b"[" * 200_000), "has a header that is no valid JSON"),
    "a header that is a list": (tensors([1]), "has a header that is no JSON object"),
    "an entry that is a list": (tensors({"t": [1]}), "has a damaged entry for the tensor 't'"),
    "a type that is a list": (tensors({"t": entry(dtype=["F32"])}, bytes(8)), "has a damaged entry"),
    "an unknown type": (tensors({"t": entry(dtype="Q7")}, bytes(8)), "the tensor 't' has the unknown type 'Q7'"),
    "a negative extent": (tensors({"t": entry(shape=[-2])}, bytes(8)), "has a damaged entry"),
    "an extent that is true": (tensors({"t": entry(shape=[True, 2])}, bytes(8)), "has a damaged entry"),
    "a thousand extents": (tensors({"t": entry(shape=[2**40] * 1000)}, bytes(8)), "has a damaged entry"),
    "an extent that overflows": (tensors({"t": entry(shape=[2**33, 2**33])}, bytes(8)), "not lie within the file"),
    "three offsets": (tensors({"t": entry(offsets=[0, 8, 8])}, bytes(8)), "has a damaged entry"),
    "a shape of another size": (tensors({"t": entry(shape=[3])}, bytes(8)), "does not lie within the file"),
    "offsets backwards": (tensors({"t": entry(offsets=[8, 0])}, bytes(8)), "does not lie within the file"),
    "two tensors in one place": (tensors({"a": entry(), "b": entry()}, bytes(8)), "'b' overlaps another"),
    "a hole": (tensors({"a": entry(offsets=[8, 16])}, bytes(16)), "has 8 bytes before the tensor 'a'"),
    "bytes behind": (tensors({"a": entry()}, bytes(16)), "has 8 bytes behind its last tensor"),
    "a name twice": (
        tensors(b'{"t": %b, "t": %b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "has two entries named 't'",
    ),
    "a very long name": (tensors({"t\n" * 9000: entry(dtype="Q7")}, bytes(8)), "has the unknown type 'Q7'"),
    "no tokenizer": ({"tokenizer__json": None}, "tokenizer.json: is missing from the model's folder; save"),
    "a tokenizer cut off": ({"tokenizer__json": f.tokenizer().to_str()[:500]}, "tokenizer.json: is no valid JSON"),
    "a tokenizer without a model": ({"tokenizer__json": {}}, "tokenizer.json: cannot be read as a tokenizer"),
    "damaged settings": ({"tokenizer_config__json": b"["}, "tokenizer_config.json: is no valid JSON"),
    "a template that is not UTF-8": ({"chat_template__jinja": b"\xff"}, "chat_template.jinja: is not UTF-8"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path, case):
    files, words = CASES[case]
    f.write(tmp_path / "tiny", **files)
    with pytest.raises(ModelError) as caught:
        open_checkpoint(str(tmp_path / "tiny"))
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 350
    assert str(tmp_path) not in message


def test_a_folder_without_faults_is_opened(tmp_path):
    with open_checkpoint(str(f.write(tmp_path / "tiny"))) as checkpoint:
        assert set(checkpoint.weights.names()) == set(f.TENSORS)


def test_nothing_of_a_pickle_runs(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    f.write(tmp_path / "tiny", model__safetensors=None, model__pt=pickle.dumps(Trap()))
    with pytest.raises(ModelError, match=r"^model\.pt: is a pickle"):
        open_checkpoint(str(tmp_path / "tiny"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("dtype", ["I64", "F8_E4M3", "BOOL", "F64"])
def test_a_tensor_of_a_type_that_nothing_computes_with_is_refused_when_asked_for(tmp_path, dtype):
    size = {"I64": 8, "F64": 8}.get(dtype, 1)
    header = {"ids": entry(dtype, [2], [0, 2 * size]), "ok": entry("F32", [2], [2 * size, 2 * size + 8])}
    f.write(tmp_path / "tiny", **tensors(header, bytes(2 * size + 8)))
    with open_checkpoint(str(tmp_path / "tiny")) as checkpoint:
        assert checkpoint.weights.get("ok").tolist() == [0, 0]
        with pytest.raises(ModelError, match=f"the tensor 'ids' is {dtype}; F32, F16, BF16 can be used"):
            checkpoint.weights.get("ids")


def test_code_that_does_what_the_family_does_is_accepted_and_never_run(tmp_path):
    classes = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    files = config(architectures=["Phi3ForCausalLM"], auto_map=classes)
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')"
    f.write(tmp_path / "tiny", **files, configuration_phi3__py=trap, modeling_phi3__py=trap)
    with open_checkpoint(str(tmp_path / "tiny")) as checkpoint:
        assert checkpoint.config.architecture == "Phi3ForCausalLM"
    assert not (tmp_path / "sprung").exists()
