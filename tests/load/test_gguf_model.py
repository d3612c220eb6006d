"""A GGUF file as a checkpoint: configuration in Hugging Face's words, weights under its names."""

from __future__ import annotations

import numpy as np
import pytest
from tests.load import gguf_bytes as g
from tests.load.gguf_bytes import Array, Entry, Tensor

from headrace.load.checkpoint import open_checkpoint, open_tokenizer
from headrace.load.gguf import GGUFFile
from headrace.load.gguf_model import open_gguf
from headrace.load.tokenizer import ALPHABET
from headrace.words.errors import ModelError

HEADS, KV_HEADS, DIM, HIDDEN, WIDE, VOCAB = 4, 2, 6, 32, 64, 256
ENTRIES = {
    "general.architecture": (g.STRING, "llama"),
    "llama.block_count": (g.UINT32, 1),
    "llama.context_length": (g.UINT32, 512),
    "llama.embedding_length": (g.UINT32, HIDDEN),
    "llama.feed_forward_length": (g.UINT32, WIDE),
    "llama.attention.head_count": (g.UINT32, HEADS),
    "llama.attention.head_count_kv": (g.UINT32, KV_HEADS),
    "llama.attention.key_length": (g.UINT32, DIM),
    "llama.attention.layer_norm_rms_epsilon": (g.FLOAT32, 0.5),
    "llama.rope.freq_base": (g.FLOAT32, 500.0),
    "llama.rope.dimension_count": (g.UINT32, DIM),
    "tokenizer.ggml.model": (g.STRING, "gpt2"),
    "tokenizer.ggml.pre": (g.STRING, "gpt-2"),
    "tokenizer.ggml.tokens": (g.ARRAY, Array(g.STRING, list(ALPHABET))),
    "tokenizer.ggml.merges": (g.ARRAY, Array(g.STRING, [])),
    "tokenizer.ggml.bos_token_id": (g.UINT32, 1),
    "tokenizer.ggml.eos_token_id": (g.UINT32, 2),
    "tokenizer.ggml.eot_token_id": (g.UINT32, 3),
    "tokenizer.chat_template": (g.STRING, "{{ messages }}"),
}
SHAPES = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HEADS * DIM, HIDDEN),
    "blk.0.attn_k.weight": (KV_HEADS * DIM, HIDDEN),
    "blk.0.attn_v.weight": (KV_HEADS * DIM, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HEADS * DIM),
    "blk.0.ffn_gate.weight": (WIDE, HIDDEN),
    "blk.0.ffn_up.weight": (WIDE, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, WIDE),
}
HF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(name)).standard_normal(shape, np.float32)


def tensor(name: str, shape: tuple[int, ...], kind: int = g.F32) -> Tensor:
    if kind == g.F32:
        return Tensor(name, shape[::-1], kind, values(name, shape).tobytes())
    return Tensor(name, shape[::-1], kind, np.ones(shape, {1: np.float16, 30: np.uint16}[kind]).tobytes())


@pytest.fixture
def write(tmp_path):
    """Writes the tiny file with other entries (None: left out) and more or other tensors, and gives its path."""

    def writer(tensors=(), **changes):
        named = {**ENTRIES, **{name.replace("__", "."): value for name, value in changes.items()}}
        entries = [Entry(name, *value) for name, value in named.items() if value is not None]
        all_tensors = {name: tensor(name, shape) for name, shape in SHAPES.items()} | {t.name: t for t in tensors}
        path = tmp_path / "tiny.gguf"
        path.write_bytes(g.gguf(entries, list(all_tensors.values())))
        return path

    return writer


def test_metadata_become_a_configuration_in_hugging_faces_words(write):
    config = open_gguf(write()).config
    assert config.architecture == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (VOCAB, HIDDEN, WIDE)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (1, HEADS, KV_HEADS, DIM)
    assert (config.max_position_embeddings, config.norm_eps) == (512, 0.5)
    assert (config.rope.kind, config.rope.theta) == ("default", 500.0)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2, 3))
    assert config.dtype == "float32" and config.tie_word_embeddings and not config.attention_bias
    assert config.raw["num_hidden_layers"] == 1 and config.raw["rope_parameters"]["rope_theta"] == 500.0
    assert config.raw["model_type"] == "llama" and config.hidden_act == "silu"


def test_weights_have_hugging_faces_names_and_rotary_pairs_half_a_head_apart(write):
    weights = open_gguf(write()).weights
    assert set(weights.names()) == set(HF_NAMES)
    for name, source in HF_NAMES.items():
        stored = values(source, SHAPES[source])
        got = weights.get(name)
        assert got.shape == weights.shape(name) == stored.shape and got.dtype == np.float32
        if "q_proj" in name or "k_proj" in name:
            pairs = stored.reshape(-1, DIM // 2, 2, HIDDEN)
            heads = got.reshape(-1, DIM, HIDDEN)
            assert np.array_equal(heads[:, : DIM // 2], pairs[:, :, 0])
            assert np.array_equal(heads[:, DIM // 2 :], pairs[:, :, 1])
        else:
            assert np.array_equal(got, stored)


def test_biases_are_reordered_as_their_rows(write):
    bias = tensor("blk.0.attn_q.bias", (HEADS * DIM,))
    parts = open_gguf(write([bias]))
    got = parts.weights.get("model.layers.0.self_attn.q_proj.bias").reshape(HEADS, 2, DIM // 2)
    assert parts.config.attention_bias
    assert np.array_equal(got.swapaxes(1, 2).reshape(-1), values(bias.name, (HEADS * DIM,)))


def test_an_output_matrix_of_its_own_unties_the_embedding(write):
    parts = open_gguf(write([tensor("output.weight", (VOCAB, HIDDEN))]))
    assert not parts.config.tie_word_embeddings and parts.weights.shape("lm_head.weight") == (VOCAB, HIDDEN)


@pytest.mark.parametrize(
    ("kinds", "dtype"), [([1], "float16"), ([30], "bfloat16"), ([1, 30], "float32"), ([g.Q8_0, g.F32], "bfloat16")]
)
def test_the_matrices_decide_the_type_and_a_quantized_file_is_bfloat16(write, kinds, dtype):
    matrices = [name for name, shape in SHAPES.items() if len(shape) > 1]
    tensors = []
    for i, name in enumerate(matrices):
        kind = kinds[i % len(kinds)]
        rows, columns = SHAPES[name]
        if kind == g.Q8_0:
            quantized = columns % 32 == 0
            data = bytes(rows * columns // 32 * 34)
            tensors.append(Tensor(name, [columns, rows], kind, data) if quantized else tensor(name, SHAPES[name]))
        else:
            tensors.append(tensor(name, SHAPES[name], kind))
    assert open_gguf(write(tensors)).config.dtype == dtype


def test_rope_scalings_are_told_in_hugging_faces_words(write):
    yarn = {
        "llama__rope__scaling__type": (g.STRING, "yarn"),
        "llama__rope__scaling__factor": (g.FLOAT32, 4.0),
        "llama__rope__scaling__original_context_length": (g.UINT32, 128),
    }
    rope = open_gguf(write(**yarn)).config.rope
    assert (rope.kind, rope.scaling) == ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128})
    linear = {"llama__rope__scaling__type": (g.STRING, "linear"), "llama__rope__scaling__factor": (g.FLOAT32, 2.0)}
    rope = open_gguf(write(**linear)).config.rope
    assert (rope.kind, rope.scaling) == ("linear", {"factor": 2.0})


@pytest.mark.parametrize("key", ["llama__rope__scaling__factor", "llama__rope__scale_linear"])
def test_a_rope_factor_without_a_type_is_linear_and_one_of_0_is_none(write, key):
    rope = open_gguf(write(**{key: (g.FLOAT32, 4.0)})).config.rope
    assert (rope.kind, rope.scaling) == ("linear", {"factor": 4.0})
    assert open_gguf(write(**{key: (g.FLOAT32, 0.0)})).config.rope.kind == "default"
    unscaled = {"llama__rope__scaling__type": (g.STRING, "none"), key: (g.FLOAT32, 4.0)}
    assert open_gguf(write(**unscaled)).config.rope.kind == "default"


def test_a_rope_type_without_a_factor_changes_nothing(write):
    rope = open_gguf(write(llama__rope__scaling__type=(g.STRING, "linear"))).config.rope
    assert (rope.kind, rope.scaling) == ("linear", {"factor": 1.0})


def divisors(*numbers: float) -> Tensor:
    return Tensor("rope_freqs.weight", [len(numbers)], g.F32, np.array(numbers, np.float32).tobytes())


def test_written_out_rope_divisors_are_kept_and_are_no_weight(write):
    parts = open_gguf(write([divisors(1.0, 2.5, 8.0)]))
    assert parts.config.rope.kind == "llama3" and parts.config.rope.scaling["divisors"] == [1.0, 2.5, 8.0]
    assert set(parts.weights.names()) == set(HF_NAMES)


REFUSED = {
    "another architecture": ({"general__architecture": (g.STRING, "rwkv")}, "architecture 'rwkv' is not built"),
    "no architecture": ({"general__architecture": None}, "architecture None is not built"),
    "no size": ({"llama__embedding_length": None}, "lacks hidden_size"),
    "a size of 0": ({"llama__block_count": (g.UINT32, 0)}, "num_hidden_layers must be a positive whole number, got 0"),
    "a size per layer": (
        {"llama__feed_forward_length": (g.ARRAY, Array(g.UINT32, [1] * 999))},
        "intermediate_size must be a positive whole number, got array",
    ),
    "a size that is text": ({"llama__block_count": (g.STRING, "x" * 999)}, "num_hidden_layers must be a positive"),
    "heads that do not divide": ({"llama__attention__head_count_kv": (g.UINT32, 3)}, "must be a divisor of"),
    "half a head rotated": ({"llama__rope__dimension_count": (g.UINT32, 4)}, "rotates 4 of 6 dimensions"),
    "an unknown rope": ({"llama__rope__scaling__type": (g.STRING, "odd")}, "rope scaling 'odd' is unknown"),
    "several rope scalings": (
        {"llama__rope__scaling__factor": (g.ARRAY, Array(g.FLOAT32, [2.0, 4.0]))},
        "factor must be a positive number, got array",
    ),
    "an attention factor": ({"llama__rope__scaling__attn_factor": (g.FLOAT32, 2.0)}, "attn_factor), not built"),
    "attention factors": (
        {"llama__rope__scaling__attn_factor": (g.ARRAY, Array(g.FLOAT32, [1.0, 1.0]))},
        "attn_factor), not built",
    ),
    "a rotated part per layer": (
        {"llama__rope__dimension_count": (g.ARRAY, Array(g.UINT32, [6, 6]))},
        "of 6 dimensions, which is not built",
    ),
    "values of another width": (
        {"llama__attention__value_length": (g.UINT32, 8)},
        "has values of 8 dimensions, keys of 6",
    ),
    "an infinite base": ({"llama__rope__freq_base": (g.FLOAT32, float("inf"))}, "rope_theta must be a positive number"),
    "no vocabulary": ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_metadata_that_cannot_be_used_are_refused_in_one_line(write, case):
    changes, words = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        open_checkpoint(str(write(**changes)))
    message = str(caught.value)
    assert message.startswith("tiny.gguf: ") and words in message and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (tensor("blk.0.ffn_gate_inp.weight", (4, HIDDEN)), "'blk.0.ffn_gate_inp.weight' is no part"),
        (tensor("blk.0", (4, HIDDEN)), "'blk.0' is no part of a LlamaForCausalLM"),
        (divisors(*[1.0] * DIM), "rope_freqs.weight has 6 values for 6 dimensions"),
        (divisors(1.0, 0.0, 1.0), "divisors must be a list of positive numbers"),
        (divisors(1.0, float("nan"), 1.0), "divisors must be a list of positive numbers"),
    ],
)
def test_tensors_of_another_model_are_refused(write, extra, words):
    with pytest.raises(ModelError, match=words):
        open_gguf(write([extra]))


def test_rows_that_are_no_whole_heads_are_refused_when_asked_for(write):
    weights = open_gguf(write([tensor("blk.0.attn_q.weight", (HEADS * DIM + 1, HIDDEN))])).weights
    with pytest.raises(ModelError, match="has 25 rows for 4 heads"):
        weights.get("model.layers.0.self_attn.q_proj.weight")


def test_a_checkpoint_is_a_context_and_its_tokenizer_may_be_opened_alone(write):
    path = str(write())
    with open_checkpoint(path) as checkpoint:
        kept = checkpoint.weights.get("model.norm.weight")
        assert checkpoint.chat_template == "{{ messages }}" and checkpoint.generation == {}
        assert checkpoint.weights.nbytes == sum(4 * int(np.prod(shape)) for shape in SHAPES.values())
        ids = checkpoint.tokenizer.encode("hello")
    checkpoint.close()
    assert np.array_equal(kept, values("output_norm.weight", (HIDDEN,)))
    assert open_tokenizer(path).encode("hello") == ids and open_tokenizer(path).eos_token_ids == (2, 3)


def test_the_default_model_is_a_whole_checkpoint(default_model_path):
    with open_checkpoint("smollm2-135m") as checkpoint:
        config = checkpoint.config
        assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
        assert config.dtype == "bfloat16" and config.tie_word_embeddings and config.eos_token_ids == (2,)
        assert len(checkpoint.weights.names()) == len(GGUFFile(default_model_path).tensors) == 272
        assert checkpoint.weights.dtype("model.embed_tokens.weight") == "Q8_0"
        assert checkpoint.weights.get("model.layers.29.self_attn.k_proj.weight").shape == (192, 576)
