"""Text token by token is the text that the tokenizer makes of the whole, for every kind of decoder."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine import toys
from tests.load.test_sentencepiece import vocabulary

from headrace.engine.detokenize import Detokenizer, Kind, StopScanner, StopText, TokenTexts, stop_matcher
from headrace.words.params import Request, Sampling

SHARED = {make.__name__: TokenTexts(make()) for make in toys.ALL}


def ids_of(texts: TokenTexts) -> st.SearchStrategy[list[int]]:
    """Any ids, byte tokens and unknown ids among them."""
    size = texts.tokenizer.vocab_size
    return st.lists(st.integers(0, size + 2) | st.integers(0, min(size, 260)), max_size=40)


def deltas(texts: TokenTexts, ids: list[int], skip: bool) -> list[str]:
    detokenizer = Detokenizer(texts, skip)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


def test_each_decoder_is_recognized():
    kinds = {name: texts.kind for name, texts in SHARED.items()}
    assert kinds == {
        "bytewise": Kind.BYTES,
        "fallback": Kind.FALLBACK,
        "metaspace": Kind.LOCAL,
        "wordpiece": Kind.LOCAL,
        "undecoded": Kind.LOCAL,
    }


@pytest.mark.covers("E4", "I17")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_of_any_ids_add_up_to_the_tokenizers_text(name, skip):
    texts = SHARED[name]

    @settings(max_examples=150)
    @given(ids_of(texts))
    def check(ids):
        assert "".join(deltas(texts, ids, skip)) == texts.tokenizer.decode(ids, skip_special_tokens=skip)

    check()


@pytest.mark.covers("E4")
@settings(max_examples=300)
@given(st.lists(st.integers(0, 255), max_size=12))
@example([0xF0, 0x9F, 0x98])
@example([0xE2, 0x28, 0xA1])
@example([0xED, 0xA0, 0x80, 0xF4, 0x90, 0x80, 0x80])
@example([0xF0, 0x80, 0x80, 0x41])
def test_invalid_utf8_is_replaced_as_the_tokenizer_replaces_it(data):
    for name, first in (("bytewise", 0), ("fallback", 1)):
        ids = [byte + first for byte in data]
        assert "".join(deltas(SHARED[name], ids, True)) == SHARED[name].tokenizer.decode(ids)


def test_a_character_split_over_tokens_is_held_until_it_is_whole():
    texts = SHARED["bytewise"]
    assert deltas(texts, list("a😀b".encode()), True) == ["a", "", "", "", "😀", "b", ""]
    assert deltas(texts, list("😀".encode())[:3], True) == ["", "", "", "\ufffd"]


def test_a_run_of_byte_tokens_is_ahead_until_it_ends_or_is_spoiled():
    texts = SHARED["fallback"]
    detokenizer = Detokenizer(texts)
    assert [detokenizer.push(byte + 1) for byte in "日".encode()] == ["", "", ""]
    assert detokenizer.ahead == "日"
    assert detokenizer.push(1 + 0xFF) == "" and detokenizer.ahead == ""
    assert detokenizer.push(texts.tokenizer.encode("END")[-1]) == "\ufffd" * 4 + "END"


def test_the_leading_space_rule_holds_for_whichever_token_comes_first():
    texts = SHARED["fallback"]
    the, space = texts.tokenizer.backend.token_to_id("▁the"), texts.tokenizer.backend.token_to_id("▁")
    end = min(texts.special_ids)
    assert deltas(texts, [end, the, the], True) == ["", "the", " the", ""]
    assert "".join(deltas(texts, [space, the], True)) == " the" == texts.tokenizer.decode([space, the])


def test_the_time_per_token_does_not_grow_with_the_text():
    texts = SHARED["fallback"]
    ids = texts.tokenizer.encode("the hello world ending " * 50)

    def seconds(rounds: int) -> float:
        detokenizer = Detokenizer(texts)
        started = time.perf_counter()
        for _ in range(rounds):
            for i in ids:
                detokenizer.push(i)
        return time.perf_counter() - started

    seconds(1)
    assert seconds(8) < 8 * 6 * min(seconds(1) for _ in range(3))


STOPS = st.lists(st.text("abE", min_size=1, max_size=4), min_size=1, max_size=4)


def first_completed(text: str, stops: list[str]) -> tuple[str, int, int] | None:
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return stop, end - len(stop), end
    return None


@pytest.mark.covers("E3")
@settings(max_examples=300)
@given(st.lists(st.text("abE", max_size=3), max_size=12), STOPS)
def test_the_scanner_finds_the_stop_string_completed_first_in_whatever_pieces_the_text_comes(pieces, stops):
    scanner = StopScanner(stops)
    found = next((match for match in map(scanner.scan, pieces) if match), None)
    assert found == first_completed("".join(pieces), stops)


@settings(max_examples=300)
@given(st.text("abE", max_size=12), STOPS)
def test_what_is_held_is_the_longest_tail_that_may_begin_a_stop_string(text, stops):
    scanner = StopScanner(stops)
    scanner.scan(text)
    beginnings = [stop[:n] for stop in stops for n in range(len(stop))]
    assert scanner.num_held(scanner.states) == max(len(b) for b in beginnings if text.endswith(b))


def watch(stops: list[str], ids: list[int], name: str = "bytewise", active_from: int = 0) -> tuple[int, str] | None:
    """(number of tokens, stop string) when the matcher stops the sequence."""
    matcher = StopText(SHARED[name], stops)
    for count, token_id in enumerate(ids, start=1):
        if (stop := matcher.push(token_id, count > active_from)) is not None:
            return count, stop
    return None


@pytest.mark.covers("D25", "E3")
def test_a_stop_string_is_found_across_token_edges():
    tokenizer = SHARED["bytewise"].tokenizer
    ids = [*tokenizer.encode("hello"), *tokenizer.encode("E"), *tokenizer.encode("ND"), *tokenizer.encode("!")]
    count, stop = watch(["END"], ids)
    assert stop == "END" and tokenizer.decode(ids[:count]) == "helloEND"


def test_before_min_tokens_a_stop_string_is_ignored_and_one_that_ends_later_counts():
    ids = list(b"abab")
    assert watch(["ab"], ids, active_from=2) == (4, "ab")
    assert watch(["ab"], ids, active_from=1) == (2, "ab")
    assert watch(["ab"], ids, active_from=4) is None


def test_a_stop_string_in_byte_tokens_ends_the_sequence_at_its_last_byte():
    ids = [byte + 1 for byte in "日本".encode()]
    assert watch(["本"], ids, "fallback") == (6, "本")
    assert watch(["\ufffd"], [ids[0], 1 + 0xFF, 258], "fallback") == (3, "\ufffd")


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 300), max_size=14),
    st.lists(st.text("aEé日", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_the_matcher_stops_at_the_first_token_whose_text_so_far_holds_a_stop_string(ids, stops):
    for name in ("bytewise", "fallback"):
        texts = SHARED[name]
        shown = [texts.tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
        expected = next((n for n, text in enumerate(shown) if first_completed(text, stops)), None)
        found = watch(stops, ids, name)
        assert (found and found[0]) == expected


def test_a_request_without_stop_strings_needs_no_matcher():
    texts = SHARED["bytewise"]
    assert stop_matcher(texts, Request(1, "a", (1,), sampling=Sampling())) is None
    assert stop_matcher(texts, Request(1, "a", (1,), sampling=Sampling(stop=("x",)))) is not None


def test_deltas_only_ever_append():
    texts = SHARED["fallback"]
    ids = texts.tokenizer.encode("the 日本 END é")
    parts = deltas(texts, ids, True)
    shown = ["".join(parts[: n + 1]) for n in range(len(parts))]
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))


def test_the_loaders_own_sentencepiece_is_read_rightly_too():
    texts = TokenTexts(vocabulary())
    assert texts.kind is Kind.FALLBACK

    @settings(max_examples=200)
    @given(ids_of(texts), st.booleans())
    def check(ids, skip):
        assert "".join(deltas(texts, ids, skip)) == texts.tokenizer.decode(ids, skip_special_tokens=skip)

    check()
