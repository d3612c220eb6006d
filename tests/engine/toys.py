"""Small tokenizers of every decoder there is, made by the tokenizers package itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIALS = ("<|end|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("the", "E", "ND", "END", "hello", " world", " the", "é", "😀", "日本", "stop", " stop", "ing", "a b")


class ToyTokenizer:
    """The engine's view of a `tokenizers.Tokenizer`; its first special token ends sequences."""

    def __init__(self, backend: Tokenizer, is_bytewise: bool) -> None:
        self.backend = backend
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self.eos_token_ids = (min(self.special_ids),)
        self.bos_token_id = None
        self.chat_template = TEMPLATE
        self.vocab_size = backend.get_vocab_size()
        self._is_bytewise = is_bytewise
        self._bytes = {char: byte for byte, char in _byte_characters().items()}

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        self.backend.encode_special_tokens = not parse_special
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self.special_ids:
            return token.encode()
        if self._is_bytewise:
            return bytes(self._bytes[char] for char in token)
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()


def _byte_characters() -> dict[int, str]:
    """GPT-2's visible stand-ins for the 256 bytes."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def _with_specials(backend: Tokenizer) -> Tokenizer:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return backend


@cache
def bytewise() -> ToyTokenizer:
    """Byte-level BPE: 256 bytes and a few words, some of which end inside a character."""
    letters = _byte_characters()
    vocab = {letters[byte]: byte for byte in range(256)}
    merges = []
    for word in MERGES:
        pieces = [letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            merged = pieces[0] + pieces[1]
            if merged not in vocab:
                vocab[merged] = len(vocab)
                merges.append((pieces[0], pieces[1]))
            pieces[:2] = [merged]
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return ToyTokenizer(_with_specials(backend), is_bytewise=True)


def _sentencepiece_vocab() -> list[str]:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyzEND.", "é"]
    return [*pieces, "▁▁", "▁the", "END", "ing", "▁a", "▁world"]


@cache
def fallback() -> ToyTokenizer:
    """SentencePiece as Llama 2 has it: byte fallback, a dummy prefix, and one leading space stripped again."""
    vocab = {piece: i for i, piece in enumerate(_sentencepiece_vocab())}
    merges = [("▁", "▁"), ("E", "N"), ("EN", "D"), ("i", "n"), ("in", "g"), ("▁", "a")]
    for first, second in merges:
        vocab.setdefault(first + second, len(vocab))
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return ToyTokenizer(_with_specials(backend), is_bytewise=False)


@cache
def metaspace() -> ToyTokenizer:
    """Pieces with visible spaces and no byte tokens."""
    vocab = [(piece, -float(i)) for i, piece in enumerate(p for p in _sentencepiece_vocab() if p[:3] != "<0x")]
    backend = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return ToyTokenizer(_with_specials(backend), is_bytewise=False)


@cache
def wordpiece() -> ToyTokenizer:
    words = ["[UNK]", "the", "hello", "world", "##ing", "##s", ".", ",", "'", "s", "do", "not", *"abc"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return ToyTokenizer(_with_specials(backend), is_bytewise=False)


@cache
def undecoded() -> ToyTokenizer:
    """Whole words and no decoder: they are joined by spaces."""
    words = ["<unk>", "the", "hello", "world", *"abc"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return ToyTokenizer(_with_specials(backend), is_bytewise=False)


ALL = (bytewise, fallback, metaspace, wordpiece, undecoded)
