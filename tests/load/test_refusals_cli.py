"""What the program says of models that cannot be used: one line and exit code 1, at once, for less memory than the
file has bytes."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc

import numpy as np
import pytest
from tests.engine import tiny
from tests.load import folder as f
from tests.load import gguf_bytes as g
from tests.load.gguf_bytes import Array, Entry, Tensor

from headrace.cli.app import run

MIB = 1 << 20
HUGE = 2**62


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Modules are imported before anything is measured."""
    run(["generate", "--backend", "reference", "--model", str(tmp_path_factory.mktemp("empty")), "x"])


@pytest.fixture
def refused(capsys):
    """The line that a model is refused with, its limits held."""

    def call(path, num_bytes: int) -> str:
        arguments = ["generate", "--backend", "reference", "--model", str(path), "x"]
        started_s = time.monotonic()
        assert run(arguments) == 1
        assert time.monotonic() - started_s < 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("headrace: ") and err.count("\n") == 1 and len(err) < 400
        assert str(path.parent) not in err
        tracemalloc.start()
        run(arguments)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < num_bytes, peak_bytes
        return err.removeprefix("headrace: ").strip()

    return call


def sparse(path, head: bytes, num_bytes: int):
    """A file of `num_bytes` that begins with `head`; the rest is a hole."""
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(num_bytes)
    return num_bytes


def entry(begin: int, end: int) -> dict:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


def layout(shapes, **changes) -> dict:
    """A header of tensors one behind another; `changes` are other shapes, or None for a tensor that is left out."""
    header, at = {}, 0
    for name, shape in shapes.items():
        shape = changes.get(name, shape)
        if shape is not None:
            end = at + 4 * int(np.prod(shape))
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
            at = end
    return header


WIDE = {**tiny.CONFIG, "vocab_size": 2**16}
SHAPES = {**tiny.shapes(), "model.embed_tokens.weight": (2**16, 32), "lm_head.weight": (2**16, 32)}


def weights(header: dict, num_bytes: int | None = None):
    """Writes model.safetensors with that header, as long as it says or `num_bytes`."""

    def write(folder):
        head = f.packed(header)
        size = len(head) + max(e["data_offsets"][1] for e in header.values())
        return sparse(folder / "model.safetensors", head, num_bytes or size)

    return write


def pickled(folder):
    return sparse(folder / "pytorch_model.bin", b"\x80\x04cos\nsystem\n", 8 * MIB)


def asking_for_code(folder):
    (folder / "config.json").write_text(json.dumps({**WIDE, "auto_map": {"AutoModel": "modeling_x.X"}}))
    return weights(layout(SHAPES))(folder)


def config(**changes):
    def write(folder):
        (folder / "config.json").write_text(json.dumps({**WIDE, **changes}))
        return weights(layout(SHAPES))(folder)

    return write


def outside(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": "../x.safetensors"}}))
    return weights(layout(SHAPES))(folder)


FOLDERS = {
    "a pickle": (pickled, "pytorch_model.bin: is a pickle"),
    "code of its own": (asking_for_code, "config.json: asks for code of its own (auto_map)"),
    "weights cut off": (weights(layout(SHAPES), 9 * MIB), "does not lie within the file; is it truncated?"),
    "weights over others": (weights({"a": entry(0, 8 * MIB), "b": entry(0, 8 * MIB)}), "'b' overlaps another"),
    "a weight missing": (
        weights(layout(SHAPES, **{"model.norm.weight": None})),
        "model.safetensors: the tensor model.norm.weight is missing",
    ),
    "a weight misshapen": (
        weights(layout(SHAPES, **{"model.norm.weight": (33,)})),
        "model.safetensors: the tensor model.norm.weight has the shape [33] instead of [32]",
    ),
    "a weight too many": (weights(layout({**SHAPES, "model.odd": (4,)})), "no place for the tensor model.odd"),
    "an index with ..": (outside, "names a file outside the model's folder: '../x.safetensors'"),
    "an unknown architecture": (config(architectures=["OddForCausalLM"]), "the architecture 'OddForCausalLM' is not"),
    "an unknown rope": (config(rope_scaling={"rope_type": "odd"}), "config.json: rope type 'odd' is unknown"),
    "a quantization of its own": (
        config(quantization_config={"quant_method": "odd"}),
        "config.json: is quantized by 'odd', which is not built",
    ),
    "more layers than there are weights": (
        config(num_hidden_layers=2**39),
        "layers.2.self_attn.q_proj.weight is missing",
    ),
    "a header of brackets": (
        lambda folder: sparse(folder / "model.safetensors", f.packed(b"[" * MIB), 8 * MIB),
        "JSON",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_refused_at_once_and_for_little(tmp_path, refused, case):
    make, words = FOLDERS[case]
    tiny.write(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    tiny.write_json(tmp_path / "model" / "config.json", WIDE)
    assert words in refused(tmp_path / "model", make(tmp_path / "model"))


def key(name: str = "k") -> bytes:
    return g.header(0, 1) + g.text(name) + struct.pack("<I", g.ARRAY)


TOKENS = "tokenizer.ggml.tokens"
SIZES = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 2}


def llama(*tensors: Tensor, arch: str = "llama", **more) -> bytes:
    entries = [Entry("general.architecture", g.STRING, arch), Entry("tokenizer.ggml.model", g.STRING, "gpt2")]
    entries += [Entry(TOKENS, g.ARRAY, Array(g.STRING, ["a"]))]
    entries += [Entry(f"{arch}.{name}", g.UINT32, value) for name, value in SIZES.items()]
    entries += [Entry(f"{arch}.{name.replace('__', '.')}", g.STRING, value) for name, value in more.items()]
    return g.gguf(entries, [Tensor("token_embd.weight", [32, 4], g.F32, bytes(512)), *tensors])


GGUFS = {
    "sizes that lie": (g.header(HUGE, 0), "model.gguf: states"),
    "a string that lies": (key(TOKENS) + struct.pack("<IQQ", g.STRING, 2, HUGE), "longer than the file"),
    "a count that lies": (key() + struct.pack("<IQ", g.UINT32, HUGE), f"states {HUGE} array values"),
    "a tensor that lies": (g.gguf(tensors=[Tensor("t", [2**40], g.F32, b"")]), "does not lie within the file"),
    "an unknown quantization": (g.gguf(tensors=[Tensor("t", [32], 77, b"")]), "the unknown quantization type 77"),
    "an unknown architecture": (llama(arch="odd"), "the architecture 'odd' is not built"),
    "an unknown rope": (llama(rope__scaling__type="odd"), "rope scaling 'odd' is unknown"),
    "weights missing": (llama(), "model.gguf: the tensor model.layers.0"),
    "a foreign weight": (llama(Tensor("blk.0.odd.weight", [32], g.F32, bytes(128))), "'blk.0.odd.weight' is no part"),
    "one part of many": (
        g.gguf([Entry("split.count", 2, 3)]),
        "model.gguf: is one of 3 parts of a model; merge them into one file",
    ),
    "arrays in arrays": (key() + struct.pack("<IQ", g.ARRAY, 600_000), "states 600000 arrays; at most"),
    "many arrays in arrays": (
        key() + struct.pack("<IQ", g.ARRAY, 60_000) + struct.pack("<IQ", g.UINT32, 0) * 60_000,
        "architecture None is not built",
    ),
    "no end of strings": (key() + struct.pack("<IQ", g.STRING, 2**22 + 1), "states 4194305 strings; at most"),
    "many strings": (key() + struct.pack("<IQ", g.STRING, 10**5) + g.text("ab") * 10**5, "is not built"),
    "many tokens": (key(TOKENS) + struct.pack("<IQ", g.STRING, 10**5) + g.text("ab") * 10**5, "is not built"),
    "a long name": (g.header(0, 1) + struct.pack("<Q", MIB), "has a name of 1048576 bytes"),
    "a million entries": (g.header(0, 10**6), "states 1000000 metadata entries; at most"),
    "a million tensors": (g.header(10**6, 0), "states 1000000 tensors; at most"),
    "many entries": (
        g.header(0, 16_000) + b"".join(g.text(f"{i}") + struct.pack("<IB", 0, 1) for i in range(15_000)),
        "two metadata entries named ''",
    ),
}


@pytest.mark.parametrize("case", GGUFS)
def test_a_gguf_file_is_refused_at_once_and_for_little(tmp_path, refused, case):
    head, words = GGUFS[case]
    num_bytes = sparse(tmp_path / "model.gguf", head, max(len(head), 64 * MIB))
    assert words in refused(tmp_path / "model.gguf", min(num_bytes, 2 * len(head) + 4 * MIB))


def test_a_vocabulary_that_nothing_fits_is_refused(tmp_path, refused):
    embedding = Tensor("token_embd.weight", [32, 4], g.F32, bytes(512))
    entries = [Entry("general.architecture", g.STRING, "llama")]
    entries += [Entry(f"llama.{name}", g.UINT32, value) for name, value in SIZES.items()]
    entries += [Entry("tokenizer.ggml.model", g.STRING, "odd"), Entry(TOKENS, g.ARRAY, Array(g.STRING, ["a"]))]
    num_bytes = sparse(tmp_path / "model.gguf", g.gguf(entries, [embedding]), 8 * MIB)
    assert "tokenizer.ggml.model 'odd' is unknown" in refused(tmp_path / "model.gguf", num_bytes)
