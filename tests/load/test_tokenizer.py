"""Tokenizers made of a GGUF file's vocabulary: ids, text and true bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.load.gguf import GGUFFile
from headrace.load.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_gguf
from headrace.load.tokenizer import ALPHABET
from headrace.words.errors import ModelError

LETTERS = list(ALPHABET)


@pytest.fixture(scope="module")
def smollm2(default_model_path):
    return tokenizer_from_gguf(GGUFFile(default_model_path).metadata, default_model_path.name)


@pytest.fixture(scope="module")
def reference(shared_data):
    return json.loads((shared_data / "tokens-smollm2.json").read_text(encoding="utf-8"))


def test_a_thousand_texts_have_the_reference_ids(smollm2, reference):
    cases = reference["plain"]
    assert len(cases) == 1000
    for case in cases:
        got = smollm2.encode(case["text"], add_special_tokens=False, parse_special=False)
        assert got == case["ids"], case["text"]


def test_special_tokens_are_found_where_they_are_looked_for(smollm2, reference):
    for case in reference["special_parsed"]:
        assert smollm2.encode(case["text"], add_special_tokens=False, parse_special=True) == case["ids"]
        verbatim = smollm2.encode(case["text"], add_special_tokens=False, parse_special=False)
        assert smollm2.special_ids.isdisjoint(verbatim)


def test_a_thousand_texts_come_back_from_their_ids_and_from_their_bytes(smollm2, reference):
    for case in reference["plain"]:
        assert smollm2.decode(case["ids"], skip_special_tokens=False) == case["text"]
        assert b"".join(map(smollm2.token_bytes, case["ids"])) == case["text"].encode()


def test_the_bytes_of_any_ids_read_as_what_the_decoder_makes_of_them(smollm2):
    draws = np.random.default_rng(0).integers(0, smollm2.vocab_size, (200, 12))
    for ids in draws.tolist():
        raw = b"".join(map(smollm2.token_bytes, ids))
        assert raw.decode("utf-8", "replace") == smollm2.decode(ids, skip_special_tokens=False)


def test_what_the_default_models_file_says_of_its_tokens(smollm2):
    assert smollm2.vocab_size == 49_152
    assert (smollm2.bos_token_id, smollm2.eos_token_ids) == (1, (2,))
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.chat_template.startswith("{% for message in messages %}")
    assert smollm2.encode("Hi") == smollm2.encode("Hi", add_special_tokens=False)
    assert smollm2.decode([1, 19_556, 2]) == "Hello"
    assert smollm2.token_bytes(49_152) == b"" and smollm2.id_to_token(49_152) is None


def bytewise(tokens, merges, pre="gpt-2", kinds=None, **more):
    metadata = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, **more}
    if kinds:
        metadata["token_type"] = np.array(kinds, np.int32)
    return tokenizer_from_gguf({f"tokenizer.ggml.{name}": value for name, value in metadata.items()}, "model.gguf")


WORDS = ["12", "34", "123", "1234", "Ġa", "Ġab", "ab", "'s", "'S"]
MERGES = ["1 2", "3 4", "12 3", "12 34", "Ġ a", "Ġa b", "a b", "' s", "' S"]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "1234 ab's", ["1234", "Ġab", "'s"]),
        ("smollm", "1234 ab's", ["1", "2", "3", "4", "Ġab", "'s"]),
        ("llama-bpe", "1234 ab'S", ["123", "4", "Ġab", "'S"]),
        ("qwen2", "1234 ab's", ["1", "2", "3", "4", "Ġab", "'s"]),
        ("tekken", "1234ab", ["1", "2", "3", "4", "ab"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre, text, pieces):
    tokenizer = bytewise(LETTERS + WORDS, MERGES, pre)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.id_to_token(i) for i in ids] == pieces
    assert tokenizer.decode(ids) == text


def test_a_word_that_is_a_token_is_taken_whole_only_where_the_file_says():
    tokens, merges = [*LETTERS, "bc", "abc"], ["b c"]
    assert len(bytewise(tokens, merges, "llama-bpe").encode("abc", add_special_tokens=False)) == 1
    assert len(bytewise(tokens, merges, "smaug-bpe").encode("abc", add_special_tokens=False)) == 2


def test_only_qwens_vocabulary_composes_characters():
    decomposed = "e\u0301"
    assert bytewise(LETTERS, [], "qwen2").decode(bytewise(LETTERS, [], "qwen2").encode(decomposed)) == "\u00e9"
    assert bytewise(LETTERS, [], "gpt-2").decode(bytewise(LETTERS, [], "gpt-2").encode(decomposed)) == decomposed


def test_the_first_token_is_added_as_the_file_or_else_its_kind_of_vocabulary_says():
    tokens = ["<s>", "</s>", *LETTERS]
    a = tokens.index("a")
    facts = {"kinds": [3, 3] + [1] * 256, "bos_token_id": 0, "eos_token_id": 1}
    assert bytewise(tokens, [], "llama-bpe", **facts).encode("a") == [0, a]
    assert bytewise(tokens, [], "gpt-2", **facts).encode("a") == [a]
    assert bytewise(tokens, [], "llama-bpe", add_bos_token=False, **facts).encode("a") == [a]
    both = bytewise(tokens, [], "gpt-2", add_bos_token=True, add_eos_token=True, **facts)
    assert both.encode("a") == [0, a, 1] and both.encode("a", add_special_tokens=False) == [a]


@pytest.mark.covers("D24")
def test_the_ends_of_a_turn_and_of_a_message_are_ends_too():
    tokens = ["<end>", "<eot>", "<eom>", *LETTERS]
    kinds = [3, 3, 3] + [1] * 256
    many = bytewise(tokens, [], kinds=kinds, eos_token_id=0, eot_token_id=1, eom_token_id=2)
    assert many.eos_token_ids == (0, 1, 2) and many.eos_token == "<end>"
    same = bytewise(tokens, [], kinds=kinds, eos_token_id=1, eot_token_id=1)
    assert same.eos_token_ids == (1,)


def test_user_defined_tokens_are_found_in_every_text_and_are_not_special():
    tokens = ["<s>", "<tool>", "naïve ", *LETTERS]
    tokenizer = bytewise(tokens, [], kinds=[3, 4, 4] + [1] * 256)
    ids = tokenizer.encode("<tool>naïve <s>", add_special_tokens=False, parse_special=False)
    assert ids[:2] == [1, 2] and len(ids) == 5 and tokenizer.special_ids == {0}
    assert tokenizer.decode(ids) == "<tool>naïve <s>"
    assert tokenizer.token_bytes(2) == "naïve ".encode()


REFUSED = {
    "no vocabulary": ({"tokens": None}, "tokens is missing"),
    "a vocabulary of numbers": ({"tokens": np.arange(3)}, "tokens is of the wrong kind"),
    "a token twice": ({"tokens": [*LETTERS, "a"]}, "tokens has the same token twice"),
    "an unknown model": ({"model": "t5"}, "model 't5' is unknown; known are gpt2 and llama"),
    "an unknown pre-tokenizer": ({"pre": "smolm"}, "pre 'smolm' is unknown; did you mean 'smollm'?; known are"),
    "half a merge": ({"merges": ["ab"]}, "merges has a merge that is not two tokens"),
    "a merge of unknown tokens": ({"merges": ["ab cd"]}, "merges does not fit the tokens"),
    "a merge of many lines": ({"merges": ["\n" * 999 + "ab cd"]}, "merges does not fit the tokens"),
    "too few kinds": ({"token_type": np.ones(3, np.int32)}, "token_type has 3 values for 256 tokens"),
    "an end beyond the vocabulary": ({"eos_token_id": 256}, "eos_token_id is 256, but there are 256 tokens"),
    "an end that is text": ({"eos_token_id": "x"}, "eos_token_id is of the wrong kind: 'x'"),
    "no scores": ({"model": "llama"}, "scores is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_vocabulary_that_cannot_be_used_is_refused_in_one_line(case):
    change, words = REFUSED[case]
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": LETTERS, "merges": [], **change}
    named = {f"tokenizer.ggml.{name}": value for name, value in metadata.items() if value is not None}
    with pytest.raises(ModelError) as caught:
        tokenizer_from_gguf(named, "model.gguf")
    message = str(caught.value)
    assert message.startswith("model.gguf: tokenizer.ggml.") and words in message
    assert "\n" not in message and len(message) < 300


def test_every_pre_tokenizer_of_the_table_gives_text_back():
    text = "It's 12345 o'clock,\r\n\r\n  naïve 日本語\t…  (x+1)!\n"
    for pre in PRE_TOKENIZERS:
        tokenizer = bytewise(LETTERS + WORDS, MERGES, pre)
        assert tokenizer.decode(tokenizer.encode(text)) == text, pre
