"""How text is cut before its pieces are merged, by the name that a GGUF file gives to it."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers


class Pre(NamedTuple):
    """Cuts are made by `patterns`, one after the other; by GPT-2's own at the end if `cuts_as_gpt2`.

    `takes_words` takes a piece that is a token as it is, unmerged; `composes` brings text to NFC first.
    """

    patterns: tuple[str, ...] = ()
    cuts_as_gpt2: bool = False
    splits_digits: bool = False
    takes_words: bool = False
    composes: bool = False
    adds_bos: bool = False


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ONE_DIGIT = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
PLAIN = Pre(cuts_as_gpt2=True)
DIGIT_BY_DIGIT = Pre(cuts_as_gpt2=True, splits_digits=True)
PRE_TOKENIZERS = {
    **dict.fromkeys(("default", "gpt-2", "phi-2"), PLAIN),
    **dict.fromkeys(("olmo", "mpt"), PLAIN._replace(composes=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), DIGIT_BY_DIGIT),
    "command-r": DIGIT_BY_DIGIT._replace(composes=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Pre((LLAMA3,), takes_words=True, adds_bos=True)),
    **dict.fromkeys(("smaug-bpe", "dbrx"), Pre((LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Pre((ONE_DIGIT,), composes=True)),
    "tekken": Pre((TEKKEN,), takes_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Pre((GPT4O,), takes_words=True)),
    "deepseek-v3": Pre(DEEPSEEK3),
    "deepseek-coder": Pre(DEEPSEEK_CODER),
}
"""By `tokenizer.ggml.pre`."""


def cutter(pre: Pre) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.splits_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.cuts_as_gpt2))
    return pre_tokenizers.Sequence(steps)
