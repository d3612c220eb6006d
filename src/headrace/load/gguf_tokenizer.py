"""A GGUF file's vocabulary as a `tokenizers` tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from headrace.load.gguf import Strings
from headrace.load.gguf_pre import PRE_TOKENIZERS, Pre, cutter
from headrace.load.tokenizer import SPACE, Tokenizer
from headrace.words.errors import ModelError, brief, nearest

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
"""Control tokens of Phi-3 that leave the white space behind them; its others take it, which no file says."""
MAX_TOKENS = 1 << 21
"""And merges."""
MAX_CUTS = 1 << 23
"""Of all tokens of a vocabulary whose merges are found by trying."""
LONGEST_PIECE = 256
"""Characters of the longest token that merging may make; SentencePiece trains none above 16 unless asked."""


class Entries:
    """The entries of the metadata that begin with `tokenizer.ggml`, checked; absent ones are None."""

    def __init__(self, metadata: Mapping[str, Any], file: str) -> None:
        self._metadata = metadata
        self._file = file

    def refuse(self, name: str, cause: str) -> ModelError:
        return ModelError(self._file, f"tokenizer.ggml.{name} {cause}")

    def of_kind(self, name: str, kind: type | tuple[type, ...]) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is not None and not isinstance(value, kind):
            raise self.refuse(name, f"is of the wrong kind: {brief(value)}")
        return value

    def strings(self, name: str) -> list[str] | None:
        value = self.of_kind(name, (list, Strings))
        if value is not None and len(value) > MAX_TOKENS:
            raise self.refuse(name, f"has {len(value)} values; at most {MAX_TOKENS} are read")
        try:
            strings = None if value is None else list(value)
        except UnicodeDecodeError:
            raise self.refuse(name, "has a string that is not UTF-8") from None
        if strings and not isinstance(strings[0], str):
            raise self.refuse(name, "does not hold strings")
        return strings

    def per_token(self, name: str, num_tokens: int) -> list[Any] | None:
        numbers = self.of_kind(name, np.ndarray)
        if numbers is not None and len(numbers) != num_tokens:
            raise self.refuse(name, f"has {len(numbers)} values for {num_tokens} tokens")
        return None if numbers is None else numbers.tolist()

    def token_id(self, name: str, num_tokens: int) -> int | None:
        token_id = self.of_kind(name, int)
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise self.refuse(name, f"is {token_id}, but there are {num_tokens} tokens")
        return token_id

    def flag(self, name: str, default: bool) -> bool:
        value = self.of_kind(name, bool)
        return default if value is None else value


def tokenizer_from_gguf(metadata: Mapping[str, Any], file: str) -> Tokenizer:
    """Raises ModelError for a vocabulary that is damaged or of a kind that is not known."""
    entries = Entries(metadata, file)
    tokens = entries.strings("tokens")
    if not tokens:
        raise entries.refuse("tokens", "is missing, so the file holds no tokenizer")
    if len(set(tokens)) != len(tokens):
        raise entries.refuse("tokens", "has the same token twice")
    kinds = entries.per_token("token_type", len(tokens)) or [NORMAL] * len(tokens)
    kind = entries.of_kind("model", str)
    if kind == "gpt2":
        pre = pre_tokenizer(entries)
        backend, adds_bos = bytewise(entries, tokens, pre), pre.adds_bos
        add_special(backend, tokens, kinds, strips=False, in_marks=False)
    elif kind == "llama":
        tokens = spelt_with_marks(tokens, kinds)
        backend, adds_bos = sentencepiece(entries, tokens, kinds), True
        strips, in_marks = metadata.get("general.architecture") == "phi3", not entries.flag("add_space_prefix", True)
        add_special(backend, tokens, kinds, strips, in_marks)
    else:
        raise entries.refuse("model", f"{brief(kind)} is unknown; known are gpt2 and llama")
    ends = [entries.token_id(f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom")]
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        is_bytewise=kind == "gpt2",
        bos_token_id=entries.token_id("bos_token_id", len(tokens)),
        eos_token_ids=dict.fromkeys(end for end in ends if end is not None),
        adds_bos=entries.flag("add_bos_token", adds_bos),
        adds_eos=entries.flag("add_eos_token", False),
        chat_template=template if isinstance(template, str) else None,
    )


def pre_tokenizer(entries: Entries) -> Pre:
    name = entries.of_kind("pre", str) or "default"
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise entries.refuse("pre", f"{brief(name)} is unknown{nearest(name, PRE_TOKENIZERS)}; known are {known}")
    return PRE_TOKENIZERS[name]


def bytewise(entries: Entries, tokens: Sequence[str], pre: Pre) -> Backend:
    """Byte-level BPE: ranked merges over GPT-2's byte alphabet."""
    lines = entries.strings("merges") or []
    if not all(" " in line for line in lines):
        raise entries.refuse("merges", "has a merge that is not two tokens")
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre.takes_words))
    except Exception as error:
        raise entries.refuse("merges", f"does not fit the tokens: {' '.join(str(error).split())[:120]}") from None
    if pre.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cutter(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece(entries: Entries, tokens: list[str], kinds: Sequence[int]) -> Backend:
    """SentencePiece BPE: of two neighbours that form a token, those with the best score merge first; what has no token
    is spelt in bytes."""
    scores = entries.per_token("scores", len(tokens))
    if scores is None:
        raise entries.refuse("scores", "is missing")
    if sum(min(len(token), LONGEST_PIECE) for token in tokens) > MAX_CUTS:
        raise entries.refuse("tokens", f"has more than {MAX_CUTS} characters, too many to be put together by scores")
    unknown = entries.token_id("unknown_token_id", len(tokens)) or 0
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = merges_by_score(tokens, scores, kinds)
    backend = Backend(models.BPE(vocabulary, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True))
    adds_space = entries.flag("add_space_prefix", True)
    prefix = [normalizers.Prepend(SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(content=" ", left=1)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def spelt_with_marks(tokens: list[str], kinds: Sequence[int]) -> list[str]:
    """Tokens of nothing but spaces are written with spaces in some files, with SentencePiece's marks in others."""
    marked = [
        SPACE * len(token) if kind == USER_DEFINED and is_run(token, " ") else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    return marked if len(set(marked)) == len(marked) else tokens


def is_run(token: str, letter: str) -> bool:
    return bool(token) and not token.strip(letter)


def merges_by_score(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best scored token first, then the lower ids.

    Only normal tokens, and user-defined ones of nothing but spaces: of these the longest first, before all others.
    """
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    runs = {token: i for i, token in enumerate(tokens) if kinds[i] == USER_DEFINED and is_run(token, SPACE)}
    known = ids | runs
    merges = []
    for token, i in known.items():
        if len(token) > LONGEST_PIECE:
            continue
        rank = (0, -len(token)) if token in runs else (1, -scores[i])
        parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [(rank, i, known[a], known[b], a, b) for a, b in parts if a in known and b in known]
    return [(a, b) for *_, a, b in sorted(merges)]


def add_special(backend: Backend, tokens: Sequence[str], kinds: Sequence[int], strips: bool, in_marks: bool) -> None:
    """Control tokens are special; user-defined ones are found in every text. `strips` says that control tokens take
    the white space behind them, `in_marks` that user-defined ones are looked for where spaces are marks already."""
    pairs = list(zip(tokens, kinds, strict=True))
    special = [t for t, kind in pairs if kind in (CONTROL, UNKNOWN)]
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=strips and t not in UNSTRIPPED) for t in special]
    )
    found = [t for t, kind in pairs if kind == USER_DEFINED and not is_run(t, SPACE)]
    backend.add_tokens([AddedToken(token, normalized=in_marks) for token in found])
