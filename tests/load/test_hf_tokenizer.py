"""tokenizer.json with its settings, against transformers' reading."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.load import folder as f
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from headrace.load.hf_tokenizer import folder_tokenizer

TEXTS = ["", "plain", " two  spaces ", "naïve 日本 <s>x</s>", "\n\t", "a</s>b"]


@pytest.fixture
def opened(tmp_path):
    def read(backend: Tokenizer, **settings):
        files = {"tokenizer__json": json.loads(backend.to_str()), "tokenizer_config__json": settings}
        return folder_tokenizer(f.write(tmp_path, **files))

    return read


def with_first_token() -> Tokenizer:
    backend = f.tokenizer()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return backend


def fallback() -> Tokenizer:
    """As SentencePiece models are saved: spaces are ▁, unknown characters are bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdxy", "ab"]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, [("a", "b")], unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


@pytest.mark.parametrize("make", [f.tokenizer, with_first_token, fallback])
def test_ids_and_texts_are_those_of_transformers(tmp_path, opened, make):
    pytest.importorskip("torch")
    from transformers import PreTrainedTokenizerFast

    ours = opened(make(), bos_token="<s>", eos_token="</s>")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        for skip in (True, False):
            wanted = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == wanted
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
    assert ours.special_ids == set(theirs.all_special_ids) and ours.vocab_size == len(theirs)


def test_the_bytes_of_byte_tokens_and_spaces_are_true(opened):
    tokenizer = opened(fallback(), bos_token="<s>")
    ids = tokenizer.encode(" ab é日", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" " + " ab é日".encode()
    assert tokenizer.decode(ids) == " ab é日"


def test_random_ids_read_as_their_bytes_wherever_those_are_text(opened):
    tokenizer = opened(fallback())
    draw = np.random.default_rng(1)
    for ids in draw.integers(257, tokenizer.vocab_size, (100, 8)).tolist():
        raw = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert raw.removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_limit_and_a_padding_that_were_saved_are_taken_off(opened):
    backend = f.tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    assert len(opened(backend).encode("longer than three")) == 17


def test_tokens_that_the_settings_name_are_special(opened):
    backend = f.tokenizer()
    backend.add_tokens([AddedToken("<end>", normalized=False)])
    tokenizer = opened(backend, eos_token="<end>", pad_token="<nowhere>")
    assert tokenizer.eos_token_ids == (258,) and tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.decode([97, 258]) == "a" and tokenizer.decode([97, 258], skip_special_tokens=False) == "a<end>"


def test_the_first_token_is_added_when_only_the_settings_ask_for_it(opened):
    assert opened(f.tokenizer(), bos_token="<s>", add_bos_token=True).encode("") == [256]
    assert opened(f.tokenizer(), bos_token="<s>").encode("") == []
    assert opened(with_first_token(), bos_token="<s>", add_bos_token=True).encode("") == [256]


def test_older_folders_name_their_tokens_in_a_map(tmp_path):
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    tokenizer = folder_tokenizer(f.write(tmp_path, special_tokens_map__json=named, tokenizer_config__json=None))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, (257,))


def test_verbatim_text_never_becomes_a_special_token(opened):
    tokenizer = opened(f.tokenizer(), eos_token="</s>")
    ids = tokenizer.encode("a</s>", parse_special=False)
    assert tokenizer.special_ids.isdisjoint(ids) and tokenizer.decode(ids) == "a</s>"
    assert tokenizer.encode("a</s>", parse_special=True)[-1] == 257
