"""Token ids to text, one token at a time; the pieces always add up to what the tokenizer makes of the whole."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from headrace.engine.tokenizer import Tokenizer
from headrace.words.params import Request

REPLACEMENT = "\ufffd"
_RARE = "\U000f1234"
"""A private character that no vocabulary holds whole: encoding it yields a tokenizer's byte tokens."""


class Kind(Enum):
    """How a tokenizer's decoder makes text."""

    BYTES = "all tokens are bytes, joined and read as UTF-8 (byte-level BPE)"
    FALLBACK = "tokens are text; runs of byte tokens are characters, or one U+FFFD per byte if the run is not UTF-8"
    LOCAL = "a token's text depends on the token before it at most"


class TokenTexts:
    """What every sequence of one tokenizer shares: how its decoder works, found by asking it, and its byte tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special_ids = tokenizer.special_ids
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}
        self._is_byte: dict[int, bool] = {}
        rare = [i for i in tokenizer.encode(_RARE, add_special_tokens=False) if tokenizer.token_bytes(i)]
        rare = [i for i in rare if tokenizer.token_bytes(i) != b" "]
        self._lead = rare[0] if rare else None
        self.kind = self._find_kind(rare)

    def _find_kind(self, rare: list[int]) -> Kind:
        if not rare or b"".join(map(self.token_bytes, rare)) != _RARE.encode():
            return Kind.LOCAL
        text = self.decode([*rare, rare[0]])
        return Kind.BYTES if text == _RARE + REPLACEMENT else Kind.FALLBACK

    def token_bytes(self, token_id: int) -> bytes:
        """As the tokenizer says, remembered."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self.tokenizer.token_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Its bytes as text, what is no whole character as U+FFFD; remembered, for lists of alternatives name the same
        tokens again and again."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = self.token_bytes(token_id).decode("utf-8", "replace")
        return known

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def is_byte(self, token_id: int) -> bool:
        """Whether a token joins a run of bytes: behind a lead byte of four it then spoils the run."""
        known = self._is_byte.get(token_id)
        if known is None:
            assert self._lead is not None
            known = len(self.token_bytes(token_id)) == 1 and self.decode([self._lead, token_id]) == REPLACEMENT * 2
            self._is_byte[token_id] = known
        return known


class Detokenizer:
    """The text of one sequence. Settled text never changes; an incomplete character is held until it is settled.

    `ahead` is held text that will be settled as it stands unless a later token spoils it. Time per token does not
    grow with the length of the text.
    """

    def __init__(self, texts: TokenTexts, skip_special_tokens: bool = True) -> None:
        self._texts = texts
        self._skipped = texts.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._behind: list[int] = []
        """The last settled tokens, at most two: what the next token's text may depend on."""
        self._run: list[int] = []
        self._run_utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        self._is_spoiled = False
        self.ahead = ""

    def push(self, token_id: int) -> str:
        """Takes one token and gives the text that it settled."""
        if token_id in self._skipped:
            return ""
        texts = self._texts
        if texts.kind is Kind.BYTES:
            return self._utf8.decode(texts.token_bytes(token_id))
        if not texts.token_bytes(token_id):
            return ""
        if texts.kind is Kind.FALLBACK and texts.is_byte(token_id):
            self._extend_run(token_id)
            return ""
        return self._settle([*self._end_run(), token_id])

    def finish(self) -> str:
        """The text of what is held, read as the decoder reads an incomplete character."""
        if self._texts.kind is Kind.BYTES:
            return self._utf8.decode(b"", final=True)
        run = self._end_run()
        return self._settle(run) if run else ""

    def _settle(self, new: list[int]) -> str:
        behind = self._texts.decode(self._behind) if self._behind else ""
        text = self._texts.decode([*self._behind, *new])[len(behind) :]
        self._behind = [*self._behind, *new][-2:]
        return text

    def _extend_run(self, token_id: int) -> None:
        self._run.append(token_id)
        if self._is_spoiled:
            return
        try:
            text = self._run_utf8.decode(self._texts.token_bytes(token_id))
        except UnicodeDecodeError:
            self._is_spoiled, self.ahead = True, ""
            return
        if text and not self.ahead and not self._behind:
            text = self._texts.decode(self._run)
        self.ahead += text

    def _end_run(self) -> list[int]:
        run, self._run = self._run, []
        if run:
            self._run_utf8.reset()
            self._is_spoiled, self.ahead = False, ""
        return run


class Match(NamedTuple):
    """A stop string in the text: characters [start, end) since the beginning."""

    stop: str
    start: int
    end: int


class StopScanner:
    """Finds the stop string that is completed first, ties by their order; each character is looked at once.

    For every stop string it keeps how many of its characters the text ends with (Knuth, Morris, Pratt 1977).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._tables = [_borders(stop) for stop in self.stops]
        self._firsts = frozenset(stop[0] for stop in self.stops)
        self.states = [0] * len(self.stops)
        self.position = 0

    def scan(self, text: str) -> Match | None:
        """Takes more text and gives the first stop string that ends in it."""
        if not any(self.states) and self._firsts.isdisjoint(text):
            self.position += len(text)
            return None
        found = None
        for char in text:
            self.position += 1
            for i, (stop, table) in enumerate(zip(self.stops, self._tables, strict=True)):
                length = _advance(stop, table, self.states[i], char)
                self.states[i] = length
                if length == len(stop) and found is None:
                    found = Match(stop, self.position - length, self.position)
        return found

    def num_held(self, states: Sequence[int]) -> int:
        """Characters at the end of the text that may be the beginning of a stop string, in the given states."""
        tables = zip(states, self._tables, strict=True)
        return max((n if n < len(table) else table[-1] for n, table in tables), default=0)


def _borders(text: str) -> list[int]:
    """For each prefix of `text`: the length of its longest proper prefix that is its suffix too."""
    table = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = table[length - 1]
        length += text[i] == text[length]
        table[i] = length
    return table


def _advance(stop: str, table: list[int], length: int, char: str) -> int:
    if length == len(stop):
        length = table[-1]
    while length and stop[length] != char:
        length = table[length - 1]
    return length + (stop[length] == char)


class StopText:
    """A sequence's text watched for stop strings: the scheduler's StopMatcher, and the output's source of text.

    `text` is what is settled. Text that is only `ahead` is watched too, so that a stop string written in byte tokens
    ends the sequence at its last byte.
    """

    def __init__(self, texts: TokenTexts, stops: Sequence[str] = (), skip_special_tokens: bool = True) -> None:
        self._detokenizer = Detokenizer(texts, skip_special_tokens)
        self._scanner = StopScanner(stops)
        self._settled_states: tuple[list[int], int] = ([0] * len(stops), 0)
        self._seen_ahead = ""
        self.num_settled = 0

    def push(self, token_id: int, active: bool) -> str | None:
        """Takes one token; gives the stop string it completed, if `active`."""
        _, match = self.read(token_id)
        return match.stop if match is not None and active else None

    def read(self, token_id: int) -> tuple[str, Match | None]:
        """Takes one token; gives the text that it settled and the first stop string that it completed."""
        text = self._detokenizer.push(token_id)
        self.num_settled += len(text)
        return text, self._watch(text) if self._scanner.stops else None

    def finish(self) -> str:
        """The text that is still held."""
        return self._detokenizer.finish()

    @property
    def ahead(self) -> str:
        return self._detokenizer.ahead

    @property
    def num_held(self) -> int:
        """Settled characters at the end that may be the beginning of a stop string."""
        return self._scanner.num_held(self._settled_states[0])

    def _watch(self, text: str) -> Match | None:
        scanner, match = self._scanner, None
        if text:
            if not text.startswith(self._seen_ahead):
                scanner.states, scanner.position = list(self._settled_states[0]), self._settled_states[1]
                self._seen_ahead = ""
            match = scanner.scan(text[len(self._seen_ahead) :])
            self._settled_states = (list(scanner.states), scanner.position)
            self._seen_ahead = ""
        ahead = self._detokenizer.ahead
        if len(ahead) > len(self._seen_ahead):
            match = match or scanner.scan(ahead[len(self._seen_ahead) :])
            self._seen_ahead = ahead
        return match


def stop_matcher(texts: TokenTexts, request: Request) -> StopText | None:
    """The watcher of one sequence's stop strings, or None where there are none."""
    sampling = request.sampling
    if sampling is None or not sampling.stop:
        return None
    return StopText(texts, sampling.stop, sampling.skip_special_tokens)
