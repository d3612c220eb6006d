"""A GGUF file's vocabulary as a `tokenizers` tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headrace.load.gguf import Strings
from headrace.load.tokenizer import SPACE, Tokenizer
from headrace.words.errors import ModelError, brief, nearest

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
MAX_TOKENS = 1 << 21
"""And merges."""
MAX_CUTS = 1 << 23
"""Of all tokens of a vocabulary whose merges are found by trying."""
LONGEST_PIECE = 256
"""Characters of the longest token that merging may make; SentencePiece trains none above 16 unless asked."""


class Pre(NamedTuple):
    """How a byte-level vocabulary's text is cut before merging. No pattern: GPT-2's, the byte alphabet's own.

    `takes_words` takes a piece that is a token as it is, unmerged; `composes` brings text to NFC first.
    """

    pattern: str | None = None
    splits_digits: bool = False
    takes_words: bool = False
    composes: bool = False
    adds_bos: bool = False


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ONE_DIGIT = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    **dict.fromkeys(("default", "gpt-2"), Pre()),
    **dict.fromkeys(("smollm", "starcoder", "refact"), Pre(splits_digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Pre(LLAMA3, takes_words=True, adds_bos=True)),
    "smaug-bpe": Pre(LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Pre(ONE_DIGIT, composes=True)),
    "tekken": Pre(TEKKEN, takes_words=True, adds_bos=True),
}
"""By `tokenizer.ggml.pre`."""


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
    elif kind == "llama":
        backend, adds_bos = sentencepiece(entries, tokens, kinds), True
    else:
        raise entries.refuse("model", f"{brief(kind)} is unknown; known are gpt2 and llama")
    add_special(backend, tokens, kinds)
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
        raise entries.refuse("merges", f"does not fit the tokens: {error}") from None
    if pre.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cutter(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def cutter(pre: Pre) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.splits_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None))
    return pre_tokenizers.Sequence(steps)


def sentencepiece(entries: Entries, tokens: Sequence[str], kinds: Sequence[int]) -> Backend:
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


def merges_by_score(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to put a normal token together from two others, the best scored token first, then the lower ids."""
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    merges = []
    for token, i in ids.items():
        if len(token) > LONGEST_PIECE:
            continue
        parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [(-scores[i], i, ids[a], ids[b], a, b) for a, b in parts if a in ids and b in ids]
    return [(a, b) for *_, a, b in sorted(merges)]


def add_special(backend: Backend, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Control tokens are special; user-defined ones are found in every text."""
    pairs = list(zip(tokens, kinds, strict=True))
    special = [t for t, kind in pairs if kind in (CONTROL, UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in pairs if kind == USER_DEFINED])
