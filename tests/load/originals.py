"""Tokenizers as their makers publish them (tokenizer.json's parts), trained small on the project's own text, and what
a GGUF file keeps of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre
from transformers.convert_slow_tokenizer import generate_merges

ROOT = Path(__file__).parents[2]
ALPHABET = pre.ByteLevel.alphabet()
CONTROLS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TOOL = "<tool_call>"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
NO_WORD = r"[^\r\n\p{L}\p{N}]?"
SLASHED = REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)


class Kind(NamedTuple):
    """One maker's tokenizer. `names` are what GGUF calls its way of cutting."""

    names: tuple[str, ...]
    cuts: pre.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    takes_words: bool = False


def split(*patterns: str) -> pre.PreTokenizer:
    cuts = [pre.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre.Sequence([*cuts, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(*before: pre.PreTokenizer) -> pre.PreTokenizer:
    return pre.Sequence([*before, pre.ByteLevel(add_prefix_space=False, use_regex=True)])


BYTEWISE = {
    "GPT-2": Kind(("default", "gpt-2", "phi-2"), gpt2()),
    "GPT-NeoX": Kind(("olmo", "mpt"), gpt2(), normalizers.NFC()),
    "SmolLM": Kind(("smollm", "starcoder", "refact", "codeshell"), gpt2(pre.Digits(individual_digits=True))),
    "Command R": Kind(("command-r",), gpt2(pre.Digits(individual_digits=True)), normalizers.NFC()),
    "Llama 3": Kind(
        ("llama-bpe", "llama3", "llama-v3"), split(rf"{SUFFIXES}|{WORDS}|\p{{N}}{{1,3}}|{REST}"), None, True
    ),
    "cl100k": Kind(("smaug-bpe", "dbrx"), split(rf"{SUFFIXES}|{WORDS}|\p{{N}}{{1,3}}|{REST}")),
    "Qwen 2": Kind(("qwen2", "deepseek-r1-qwen"), split(rf"{SUFFIXES}|{WORDS}|\p{{N}}|{REST}"), normalizers.NFC()),
    "Tekken": Kind(("tekken",), split(rf"{NO_WORD}{CASED}|{NO_WORD}{CAPITALS}|\p{{N}}|{SLASHED}"), None, True),
    "GPT-4o": Kind(
        ("gpt-4o", "llama4"),
        split(rf"{NO_WORD}{CASED}{SUFFIXES}?|{NO_WORD}{CAPITALS}{SUFFIXES}?|\p{{N}}{{1,3}}|{SLASHED}"),
        None,
        True,
    ),
    "DeepSeek 3": Kind(
        ("deepseek-v3",),
        split(
            r"\p{N}{1,3}",
            "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
        ),
    ),
    "DeepSeek Coder": Kind(
        ("deepseek-coder",),
        split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"),
    ),
}
BY_NAME = {name: kind for kind, original in BYTEWISE.items() for name in original.names}


@cache
def text() -> list[str]:
    """Lines of the project: prose, code, and a few other scripts."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src/headrace").glob("*/*.py"))]
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [*lines[:6000], *["naïve café 日本語のテキスト 12345 …", "Привет, мир", "    if x:  # twice  spaced"] * 9]


def special(backend: Tokenizer) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROLS])
    backend.add_tokens([AddedToken(TOOL, normalized=False)])
    return backend


@cache
def bytewise(kind: str) -> Tokenizer:
    original = BYTEWISE[kind]
    backend = Tokenizer(models.BPE(ignore_merges=original.takes_words))
    if original.normalizer is not None:
        backend.normalizer = original.normalizer
    backend.pre_tokenizer = original.cuts
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=ALPHABET, show_progress=False)
    backend.train_from_iterator(text(), trainer)
    return special(backend)


def marked(adds_space: bool) -> normalizers.Normalizer:
    prefix = [normalizers.Prepend("▁")] if adds_space else []
    return normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RUNS = ["▁" * length for length in range(2, 9)]


class Pieces(NamedTuple):
    """A SentencePiece vocabulary: normal pieces by rank; `defined` ones are user-defined."""

    tokens: list[str]
    scores: list[float]
    kinds: list[int]


@cache
def pieces(has_runs: bool) -> Pieces:
    """Trained as BPE within words; with runs of spaces as user-defined pieces as Gemma has them, or as normal ones."""
    backend = Tokenizer(models.BPE())
    backend.normalizer, backend.pre_tokenizer = marked(True), pre.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=150)
    backend.train_from_iterator(text(), trainer)
    ranked = [token for token, _ in sorted(backend.get_vocab().items(), key=lambda item: item[1])]
    merged = [token for token in ranked if len(token) > 1 and not (has_runs and set(token) == {"▁"})]
    letters = [token for token in ranked if len(token) == 1]
    normal = [*merged, *letters]
    defined = ["\n\n", *RUNS] if has_runs else []
    head = ["<unk>", "<s>", "</s>", "<|user|>", TOOL]
    return Pieces(
        [*head, *BYTES, *defined, *normal],
        [0.0] * (len(head) + 256 + len(defined)) + [-float(rank) for rank in range(len(normal))],
        [2, 3, 3, 3, 4, *[6] * 256, *[4] * len(defined), *[1] * len(normal)],
    )


@cache
def sentencepiece(adds_space: bool, has_runs: bool) -> Tokenizer:
    """As transformers converts a SentencePiece BPE model: merges made of the scores, special pieces added."""
    found = pieces(has_runs)
    vocabulary = {token: i for i, token in enumerate(found.tokens)}
    mergeable = {t: i for t, i in vocabulary.items() if found.kinds[i] in (1, 4) and t != TOOL}
    merges = generate_merges(mergeable, {t: found.scores[i] for t, i in mergeable.items()})
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = marked(adds_space)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    controls = [token for token, kind in zip(found.tokens, found.kinds, strict=True) if kind in (2, 3)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    backend.add_tokens([AddedToken(token, normalized=False) for token in (TOOL, *(["\n\n"] if has_runs else []))])
    return backend


@cache
def unigram() -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(text()[:800], trainer)
    return special(backend)


@cache
def wordpiece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=["[UNK]"], show_progress=False)
    backend.train_from_iterator(text(), trainer)
    return special(backend)


def with_first_token(backend: Tokenizer) -> Tokenizer:
    """A copy that puts <s> in front of texts."""
    copy = Tokenizer.from_str(backend.to_str())
    first = ("<s>", copy.token_to_id("<s>"))
    copy.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[first])
    return copy


def metadata_of_bytewise(backend: Tokenizer, name: str) -> dict[str, Any]:
    """What a converter writes of a byte-level tokenizer."""
    state = json.loads(backend.to_str())
    ids = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    added = {token["content"]: 3 if token["special"] else 4 for token in state["added_tokens"]}
    told = {
        "model": "gpt2",
        "pre": name,
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "token_type": np.array([added.get(token, 1) for token in tokens], np.int32),
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}


def metadata_of_pieces(adds_space: bool, has_runs: bool, spells_runs: bool = False) -> dict[str, Any]:
    """What a converter writes of a SentencePiece model; newer ones spell user-defined runs with spaces."""
    found = pieces(has_runs)
    pairs = zip(found.tokens, found.kinds, strict=True)
    told = {
        "model": "llama",
        "tokens": [t.replace("▁", " ") if spells_runs and kind == 4 else t for t, kind in pairs],
        "scores": np.array(found.scores, np.float32),
        "token_type": np.array(found.kinds, np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": adds_space,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}
