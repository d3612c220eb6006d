"""A SentencePiece vocabulary against a slow twin that merges as its inventors wrote (arXiv 1808.06226)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headrace.load.gguf_tokenizer import LONGEST_PIECE, merges_by_score, tokenizer_from_gguf

SPACE = "▁"
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [SPACE, *"abcdeé"]
PIECES = ["ab", "bc", "abc", "cd", f"{SPACE}a", f"{SPACE}ab", "de", "cde", "dede", f"{SPACE}{SPACE}", "ee"]
TOKENS = [*SPECIAL, *BYTES, *PIECES, *LETTERS]
KINDS = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) + len(LETTERS))
SCORES = [0.0] * 259 + [-float(rank) for rank in range(len(PIECES) + len(LETTERS))]


def vocabulary(**more):
    metadata = {"model": "llama", "tokens": TOKENS, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    metadata |= {"scores": np.array(SCORES, np.float32), "token_type": np.array(KINDS, np.int32)}
    named = {f"tokenizer.ggml.{name}": value for name, value in (metadata | more).items()}
    return tokenizer_from_gguf(named, "model.gguf")


def slow_encode(text: str) -> list[int]:
    """Of all neighbours that form a token, the pair with the best score merges first, the leftmost of equals."""
    ids = {token: i for i, token in enumerate(TOKENS) if KINDS[i] == 1}
    symbols = list((SPACE + text.replace(" ", SPACE)) if text else "")
    while True:
        pairs = [(-SCORES[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    spelt = [[ids[s]] if s in ids else [3 + byte for byte in s.encode()] for s in symbols]
    return [i for part in spelt for i in part]


def random_texts():
    draw = np.random.default_rng(7)
    return ["".join(draw.choice(list("abcde é日<"), draw.integers(0, 30))) for _ in range(300)]


def test_ids_equal_the_slow_twins():
    tokenizer = vocabulary()
    for text in random_texts():
        assert tokenizer.encode(text, add_special_tokens=False) == slow_encode(text), text


def test_texts_come_back_from_ids_and_from_bytes():
    tokenizer = vocabulary()
    for text in random_texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == (b" " if text else b"") + text.encode()


def test_the_text_of_a_special_token_never_becomes_it_unless_asked():
    tokenizer = vocabulary()
    assert tokenizer.encode("</s>", add_special_tokens=False, parse_special=True) == [2]
    verbatim = tokenizer.encode("</s>", add_special_tokens=False, parse_special=False)
    assert tokenizer.special_ids.isdisjoint(verbatim) and tokenizer.decode(verbatim) == "</s>"


def test_merging_never_makes_a_token_that_is_not_normal():
    tokens, kinds = ["<", "s", ">", "<s", "<s>"], [1, 1, 1, 1, 3]
    assert merges_by_score(tokens, [0.0] * 5, kinds) == [("<", "s")]


def test_a_sentencepiece_text_begins_with_the_first_token_unless_the_file_says_otherwise():
    assert vocabulary().encode("a")[0] == 1
    assert vocabulary(add_bos_token=False).encode("a") == vocabulary().encode("a")[1:]


def test_a_file_may_ask_for_no_space_in_front():
    tokenizer = vocabulary(add_space_prefix=False)
    assert tokenizer.encode("a", add_special_tokens=False) == [TOKENS.index("a")]
    assert tokenizer.decode(tokenizer.encode(" a", add_special_tokens=False)) == " a"


@pytest.mark.timeout(20)
def test_a_token_of_a_million_letters_takes_no_time():
    tokens = ["a", "a" * 1_000_000, "a" * (LONGEST_PIECE + 1)]
    assert merges_by_score(tokens, [0.0, -1.0, -2.0], [1, 1, 1]) == []
