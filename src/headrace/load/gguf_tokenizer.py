"""A GGUF file's vocabulary as a `tokenizers` tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headrace.load.tokenizer import SPACE, Tokenizer
from headrace.words.errors import ModelError, nearest

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT2_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r")
PATTERNS = {
    "gpt-2": GPT2,
    "default": GPT2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    **dict.fromkeys(GPT2_DIGIT_BY_DIGIT, GPT2),
}
"""`tokenizer.ggml.pre` → how text is cut before merging."""


def tokenizer_from_gguf(metadata: Mapping[str, Any], file: str) -> Tokenizer:
    """Raises ModelError for a vocabulary whose kind is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(file, "holds no tokenizer (tokenizer.ggml.tokens is missing)")
    if kind == "gpt2":
        backend = bytewise(metadata, tokens, file)
    elif kind == "llama":
        backend = sentencepiece(metadata, tokens, file)
    else:
        raise ModelError(file, f"has a tokenizer of the unknown kind {kind!r}; known are gpt2 and llama")
    add_special(backend, metadata, tokens)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        is_bytewise=kind == "gpt2",
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=end_ids(metadata),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        chat_template=template if isinstance(template, str) else None,
    )


def end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """The end of a sequence and the end of a turn, where a file names both."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(metadata[name] for name in names if name in metadata))


def bytewise(metadata: Mapping[str, Any], tokens: list[str], file: str) -> Backend:
    """Byte-level BPE: ranked merges over GPT-2's byte alphabet."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PATTERNS:
        hint = nearest(str(pre), PATTERNS)
        raise ModelError(file, f"tokenizer.ggml.pre {pre!r} is unknown{hint}; known are {', '.join(PATTERNS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if any(len(pair) != 2 for pair in merges):
        raise ModelError(file, "has a merge that is not two tokens (tokenizer.ggml.merges)")
    takes_whole_words = PATTERNS[pre] == LLAMA3
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=takes_whole_words))
    backend.pre_tokenizer = cutter(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def cutter(pre: str) -> pre_tokenizers.PreTokenizer:
    if PATTERNS[pre] == GPT2:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if pre not in GPT2_DIGIT_BY_DIGIT:
            return words
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    words = pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(metadata: Mapping[str, Any], tokens: list[str], file: str) -> Backend:
    """SentencePiece BPE: of two neighbours that form a token, those with the best score merge first; what has no token
    is spelt in bytes."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(file, "has no score for every token (tokenizer.ggml.scores)")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)},
        merges_by_score(tokens, scores),
        unk_token=tokens[unknown] if unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend(SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(content=" ", left=1)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def merges_by_score(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best scored token first."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        halves = [(ids[a], ids[b], a, b) for a, b in parts if a in ids and b in ids]
        merges += [(-score, a_id, b_id, a, b) for a_id, b_id, a, b in sorted(halves)]
    merges.sort(key=lambda merge: merge[0])
    return [(a, b) for *_, a, b in merges]


def add_special(backend: Backend, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Control tokens are special; user-defined ones are found in every text."""
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    pairs = list(zip(tokens, kinds, strict=False))
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in pairs if kind in (CONTROL, UNKNOWN)]
    )
    backend.add_tokens([AddedToken(t, normalized=False) for t, kind in pairs if kind == USER_DEFINED])
