"""Text to token ids and back, over Hugging Face's `tokenizers`; true bytes of every token beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend

SPACE = "▁"


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Tokenizer:
    """`is_bytewise` says that tokens are written in GPT-2's byte alphabet; else spaces are ▁ and bytes may be `<0xNN>`.

    `add_bos` puts the first id before every text that asks for special tokens, where the backend does not do it itself.
    """

    def __init__(
        self,
        backend: Backend,
        is_bytewise: bool,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        add_bos: bool = False,
        chat_template: str | None = None,
    ) -> None:
        self._parsing = backend
        self._is_bytewise = is_bytewise
        self._add_bos = add_bos
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added = {i: token.content for i, token in added.items()}

    @cached_property
    def _verbatim(self) -> Backend:
        """A twin that takes the text of special tokens as text."""
        twin = Backend.from_str(self._parsing.to_str())
        twin.encode_special_tokens = True
        return twin

    @property
    def vocab_size(self) -> int:
        return self._parsing.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.id_to_token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self.id_to_token(self.eos_token_ids[0]) if self.eos_token_ids else None

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """`parse_special` False takes the text of special tokens as text."""
        backend = self._parsing if parse_special else self._verbatim
        ids = backend.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._add_bos and self.bos_token_id is not None:
            return [self.bos_token_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._parsing.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        return self._parsing.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token stands for wherever it is not the first one; empty for an unknown id."""
        if (content := self._added.get(token_id)) is not None:
            return content.encode()
        piece = self._parsing.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_bytewise:
            return b"".join(bytes([ALPHABET[c]]) if c in ALPHABET else c.encode() for c in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()


ALPHABET = byte_alphabet()
