"""Headers with random damage: opened or refused, in bounded time and memory, and what is opened can be read."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc

import numpy as np
import pytest
from tests.load import folder as f
from tests.load import gguf_bytes as g
from tests.load.gguf_bytes import Array, Entry, Tensor

from headrace.load.gguf import GGUFFile
from headrace.load.gguf_config import gguf_config, layout_of
from headrace.load.gguf_model import GGUFWeights
from headrace.load.gguf_tokenizer import tokenizer_from_gguf
from headrace.load.hf_tokenizer import folder_tokenizer
from headrace.load.safetensors_file import SafetensorsFile
from headrace.load.tokenizer import ALPHABET
from headrace.words.errors import ModelError

NUMBERS = [0, 1, 7, 8, 9, 12, 13, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
RUNS = int(os.environ.get("HEADRACE_FUZZ_HEADERS", "2000"))
FREE_BYTES = 500_000
"""What libraries and caches take beside a file of some kilobytes."""


def gguf_seed() -> bytes:
    entries = [
        Entry("general.architecture", g.STRING, "llama"),
        Entry("general.alignment", g.UINT32, 32),
        Entry("llama.block_count", g.UINT32, 1),
        Entry("llama.context_length", g.UINT32, 64),
        Entry("llama.embedding_length", g.UINT32, 32),
        Entry("llama.feed_forward_length", g.UINT32, 32),
        Entry("llama.attention.head_count", g.UINT32, 2),
        Entry("llama.expert_count", g.UINT32, 3),
        Entry("llama.expert_used_count", g.UINT32, 2),
        Entry("tokenizer.ggml.model", g.STRING, "gpt2"),
        Entry("tokenizer.ggml.tokens", g.ARRAY, Array(g.STRING, [*ALPHABET, "ab"])),
        Entry("tokenizer.ggml.merges", g.ARRAY, Array(g.STRING, ["a b"])),
        Entry("tokenizer.ggml.token_type", g.ARRAY, Array(g.INT32, [1] * 257)),
        Entry("tokenizer.ggml.add_bos_token", g.BOOL, 0),
        Entry("tokenizer.ggml.eos_token_id", g.UINT32, 2),
    ]
    tensors = [
        Tensor("token_embd.weight", [32, 257], g.Q8_0, bytes(257 * 34)),
        Tensor("output_norm.weight", [32], g.F32, bytes(128)),
    ]
    tensors.append(Tensor("blk.0.ffn_up_exps.weight", [32, 2, 3], g.F32, bytes(768)))
    return g.gguf(entries, tensors)


def damaged(data: bytes, draw: random.Random, extent: int) -> bytes:
    """One to three faults within the first `extent` bytes: a bit, a byte, a number, a cut, a piece repeated or gone."""
    raw = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(min(extent, len(raw)) or 1)
        match draw.randrange(6):
            case 0:
                raw[at : at + 1] = bytes([(raw[at] if at < len(raw) else 0) ^ (1 << draw.randrange(8))])
            case 1:
                raw[at : at + 1] = bytes([draw.randrange(256)])
            case 2:
                size, form = draw.choice([(4, "<I"), (8, "<Q")])
                raw[at : at + size] = struct.pack(form, draw.choice(NUMBERS) % 256**size)
            case 3:
                del raw[len(raw) - draw.randrange(len(raw) or 1) :]
            case 4:
                raw[at:at] = raw[at : at + draw.randrange(64)]
            case 5:
                del raw[at : at + draw.randrange(64)]
    return bytes(raw)


def read_gguf(path) -> None:
    file = GGUFFile(path)
    try:
        for name in file.tensors:
            file.tensor(name)
        tokenizer = tokenizer_from_gguf(file.metadata, file.name)
        tokenizer.encode("ab <x> é")
        weights = GGUFWeights(file, gguf_config(file), layout_of(file)[0])
        for name in weights.names():
            weights.get(name)
    finally:
        file.close()


def read_safetensors(path) -> None:
    file = SafetensorsFile(path)
    for name in file.entries:
        file.tensor(name)


def read_tokenizer(path) -> None:
    folder_tokenizer(path.parent).encode("ab <x> é")


def rewrite(path, data: bytes) -> None:
    """Over what is there: many file systems take milliseconds to begin a file anew."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


READERS = {
    "model.gguf": (read_gguf, gguf_seed(), 6000, RUNS),
    "model.safetensors": (read_safetensors, f.safetensors(f.TENSORS), 400, RUNS),
    "tokenizer.json": (read_tokenizer, f.tokenizer().to_str().encode(), 6000, RUNS // 4),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.timeout(0 if "HEADRACE_FUZZ_HEADERS" in os.environ else 60)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    reader, whole, extent, num_runs = READERS[name]
    path, draw = tmp_path / name, random.Random(name)
    path.write_bytes(whole)
    reader(path)
    refused, slowest_s = 0, 0.0
    tracemalloc.start()
    for _ in range(num_runs):
        data = damaged(whole, draw, extent)
        rewrite(path, data)
        tracemalloc.reset_peak()
        before, started_s = tracemalloc.get_traced_memory()[0], time.monotonic()
        try:
            reader(path)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 900
        slowest_s = max(slowest_s, time.monotonic() - started_s)
        assert tracemalloc.get_traced_memory()[1] - before < FREE_BYTES + 16 * len(data)
    tracemalloc.stop()
    assert num_runs // 4 < refused < num_runs and slowest_s < 2


def test_a_vocabulary_of_random_scores_and_kinds_is_read_or_refused():
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc", "ab", "abc", "▁ab"]
    draw = np.random.default_rng(3)
    for _ in range(50):
        metadata = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": draw.choice([0.0, -1.0, 5.0, np.nan, np.inf, -np.inf], len(tokens)),
            "tokenizer.ggml.token_type": draw.integers(-1, 9, len(tokens)),
        }
        tokenizer = tokenizer_from_gguf(metadata, "model.gguf")
        assert isinstance(tokenizer.decode(tokenizer.encode("abc ab é")), str)
