"""Text to token ids and back, over Hugging Face's `tokenizers`; true bytes of every token beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend

SPACE = "▁"
BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()


class Tokenizer:
    """`is_bytewise` says that tokens are written in GPT-2's byte alphabet; else spaces are ▁ and bytes may be `<0xNN>`.
    Or `continues` marks the tokens that go on with a word, and all others have a space in front of them (WordPiece).

    `adds_bos` and `adds_eos` put those ids around every text that asks for special tokens, where the backend does not
    do it itself. A limit or a padding that the backend came with is taken off: here texts have their own length.
    """

    def __init__(
        self,
        backend: Backend,
        is_bytewise: bool,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        adds_bos: bool = False,
        adds_eos: bool = False,
        chat_template: str | None = None,
        continues: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._parsing = backend
        self._is_bytewise = is_bytewise
        self._continues = continues
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._before = [bos_token_id] if adds_bos and bos_token_id is not None else []
        self._behind = [*self.eos_token_ids[:1]] if adds_eos else []

    @cached_property
    def _verbatim(self) -> Backend:
        """A twin that takes the text of special tokens as text."""
        twin = Backend.from_str(self._parsing.to_str())
        twin.encode_special_tokens = True
        return twin

    @cached_property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return max(self._parsing.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.id_to_token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self.id_to_token(self.eos_token_ids[0]) if self.eos_token_ids else None

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """`parse_special` False takes the text of special tokens as text."""
        backend = self._parsing if parse_special else self._verbatim
        # A batch, though of one: the backend encodes it without holding Python's lock, and counts no offsets.
        (encoded,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return [*self._before, *ids, *self._behind] if add_special_tokens else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._parsing.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        return self._parsing.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token stands for wherever it is not the first one; empty for an unknown id."""
        piece = self._parsing.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_bytewise:
            return letters_to_bytes(piece)
        if self._continues is not None:
            return (piece.removeprefix(self._continues) if piece.startswith(self._continues) else f" {piece}").encode()
        if BYTE_PIECE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()


def letters_to_bytes(piece: str) -> bytes:
    """Of a token in the byte alphabet; one with any other letter stands for its own text, as for the decoder."""
    try:
        return bytes(ALPHABET[letter] for letter in piece)
    except KeyError:
        return piece.encode()
