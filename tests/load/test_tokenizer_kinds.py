"""Every kind of tokenizer against its original, on a thousand texts: from GGUF metadata, and from tokenizer.json."""

from __future__ import annotations

import json

import pytest
from tests.load import folder as f
from tests.load import originals
from transformers import PreTrainedTokenizerFast

from headrace.load.gguf_pre import PRE_TOKENIZERS
from headrace.load.gguf_tokenizer import tokenizer_from_gguf
from headrace.load.hf_tokenizer import folder_tokenizer

SPECIAL_TEXTS = ["<|im_start|>user\nhi<|im_end|>", "a</s>b  <tool_call>{}", " <s> x", "<|user|> y\n\n\n  z"]
SPACED = [" " * n + "x" + " " * m for n in range(12) for m in (0, 1, 7, 20)] + ["\n\n\n", "a\n\n  b", "  <tool_call>  "]


@pytest.fixture(scope="module")
def texts(shared_data):
    cases = json.loads((shared_data / "tokens-smollm2.json").read_text(encoding="utf-8"))["plain"]
    found = [case["text"] for case in cases]
    assert len(found) == 1000
    return found


def assert_equal(ours, original, texts) -> None:
    """The same ids for every text, with special tokens where both look for them; texts come back from bytes."""
    for text in texts:
        wanted = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == wanted, text
        assert ours.decode(wanted, skip_special_tokens=False) == original.decode(wanted, skip_special_tokens=False)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_gguf_vocabulary_of_bytes_is_cut_as_its_original(texts, name):
    original = originals.bytewise(originals.BY_NAME[name])
    ours = tokenizer_from_gguf(originals.metadata_of_bytewise(original, name), "model.gguf")
    assert_equal(ours, original, [*texts, *SPECIAL_TEXTS, *SPACED])
    assert ours.special_ids == {original.token_to_id(token) for token in originals.CONTROLS}


def test_each_way_of_cutting_matters(texts):
    """No two originals that differ agree on all texts, so that taking one for another is noticed."""
    cut = {
        kind: [[piece for piece, _ in original.cuts.pre_tokenize_str(normal(original, text))] for text in texts]
        for kind, original in originals.BYTEWISE.items()
    }
    same = {(a, b) for a in cut for b in cut if a < b and cut[a] == cut[b]}
    assert same <= {("Llama 3", "cl100k")}


def normal(original, text: str) -> str:
    return text if original.normalizer is None else original.normalizer.normalize_str(text)


@pytest.mark.parametrize("spells_runs", [False, True])
@pytest.mark.parametrize(("adds_space", "has_runs"), [(True, False), (False, False), (False, True), (True, True)])
def test_gguf_pieces_are_merged_as_their_original(texts, adds_space, has_runs, spells_runs):
    original = originals.sentencepiece(adds_space, has_runs)
    ours = tokenizer_from_gguf(originals.metadata_of_pieces(adds_space, has_runs, spells_runs), "model.gguf")
    assert_equal(ours, original, [*texts, *SPECIAL_TEXTS, *SPACED])


def test_runs_of_spaces_are_gemmas_own_tokens():
    ours = tokenizer_from_gguf(originals.metadata_of_pieces(False, True), "model.gguf")
    assert [ours.id_to_token(i) for i in ours.encode("x" + " " * 7 + "y", add_special_tokens=False)][1] == "▁" * 7
    ids = ours.encode(" " * 17, add_special_tokens=False)
    assert [len(ours.token_bytes(i)) for i in ids] == [8, 8, 1]


def test_phi_3s_control_tokens_take_the_white_space_behind_them():
    told = originals.metadata_of_pieces(True, False)
    plain = tokenizer_from_gguf({**told, "general.architecture": "llama"}, "model.gguf")
    phi3 = tokenizer_from_gguf({**told, "general.architecture": "phi3"}, "model.gguf")
    text = "<|user|>\n\nhi</s> <s> x"
    assert phi3.encode(text, add_special_tokens=False) == plain.encode("<|user|>hi</s><s> x", add_special_tokens=False)


KINDS = {
    **{kind: (lambda kind=kind: originals.bytewise(kind)) for kind in originals.BYTEWISE},
    "Llama 2": lambda: originals.with_first_token(originals.sentencepiece(True, False)),
    "Mistral": lambda: originals.sentencepiece(True, False),
    "Gemma": lambda: originals.with_first_token(originals.sentencepiece(False, True)),
    "Unigram": originals.unigram,
    "WordPiece": originals.wordpiece,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_json_is_read_as_transformers_reads_it(texts, tmp_path, kind):
    files = {"tokenizer__json": json.loads(KINDS[kind]().to_str())}
    f.write(tmp_path, **files, tokenizer_config__json={"bos_token": "<s>", "eos_token": "</s>"})
    ours = folder_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    every = [*texts, *SPECIAL_TEXTS, *SPACED]
    for text, wanted in zip(every, theirs(every)["input_ids"], strict=True):
        assert ours.encode(text) == wanted, text
        for skips in (True, False):
            theirs_text = theirs.decode(wanted, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
            assert ours.decode(wanted, skip_special_tokens=skips) == theirs_text
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_tokens_are_those_of_the_text(texts, tmp_path, kind):
    """But for the space in front that some kinds add, and what a kind's normalizer changes."""
    files = {"tokenizer__json": json.loads(KINDS[kind]().to_str())}
    ours = folder_tokenizer(f.write(tmp_path, **files, tokenizer_config__json={}))
    for text in texts:
        ids = ours.encode(text, add_special_tokens=False, parse_special=False)
        read, wanted = b"".join(map(ours.token_bytes, ids)).decode(), ours.decode(ids, skip_special_tokens=False)
        assert read in (wanted, f" {wanted}"), text
