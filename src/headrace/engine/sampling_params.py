"""SamplingParams and PoolingParams, checked once and copied into frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engine import checks
from headrace.engine.tokenizer import Tokenizer
from headrace.words.errors import RequestError
from headrace.words.params import Limits, Pooling, PoolingParams, Sampling, SamplingParams

MAX_TEMPERATURE = 100.0
GREEDY_BELOW = 1e-5
"""Smaller temperatures overflow fp32 logits and differ from the limit, the argmax, in nothing."""
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Beyond them logits overflow."""
MAX_BIAS = 100.0
MAX_NAME_CHARS = 1_024
LOGPROBS_MODES = ("raw", "processed")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the model allows: the logits' width, the length of a hidden state, the longest sequence in tokens."""

    vocab_size: int
    hidden_size: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    limits: Limits = Limits()


def check_sampling(
    params: SamplingParams, num_prompt_tokens: int, bounds: Bounds, tokenizer: Tokenizer | None
) -> Sampling:
    """A frozen copy with every value in range; raises RequestError. `max_tokens` is capped to the room left."""
    limits, width = bounds.limits, bounds.vocab_size
    prompt_logprobs = checks.optional_whole("prompt_logprobs", params.prompt_logprobs, 0, limits.logprobs)
    max_tokens = _max_tokens(params, prompt_logprobs, bounds.max_model_len - num_prompt_tokens)
    sampling = Sampling(
        **_shape_of_the_draw(params, width),
        stop=checks.texts("stop", params.stop, limits.stop_strings, limits.stop_chars),
        stop_token_ids=checks.token_ids("stop_token_ids", params.stop_token_ids, width, limits.stop_token_ids),
        include_stop_str_in_output=checks.flag("include_stop_str_in_output", params.include_stop_str_in_output),
        ignore_eos=checks.flag("ignore_eos", params.ignore_eos),
        min_tokens=_min_tokens(params, max_tokens, bounds.max_model_len - num_prompt_tokens),
        max_tokens=max_tokens,
        logprobs=checks.optional_whole("logprobs", params.logprobs, 0, limits.logprobs),
        prompt_logprobs=prompt_logprobs,
        logprobs_mode=checks.one_of("logprobs_mode", params.logprobs_mode, LOGPROBS_MODES),
        logit_bias=_logit_bias(params.logit_bias, width, limits.logit_bias),
        allowed_token_ids=_allowed(params.allowed_token_ids, width),
        bad_words=_bad_words(params.bad_words, limits, tokenizer),
        forced_tokens=checks.token_ids("forced_tokens", params.forced_tokens, width, limits.prompt_tokens)[:max_tokens],
        sum_smaller_probs=checks.flag("sum_smaller_probs", params.sum_smaller_probs),
        token_confidence=checks.flag("token_confidence", params.token_confidence),
        skip_special_tokens=checks.flag("skip_special_tokens", params.skip_special_tokens),
        detokenize=checks.flag("detokenize", params.detokenize),
    )
    checks.flag("spaces_between_special_tokens", params.spaces_between_special_tokens)
    _check_together(sampling, bounds.eos_token_ids)
    return sampling


def _shape_of_the_draw(params: SamplingParams, width: int) -> dict[str, Any]:
    temperature = checks.real("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    top_k = checks.whole("top_k", params.top_k, -1, checks.MAX_INT)
    penalties = ("presence_penalty", "frequency_penalty")
    return {
        "temperature": 0.0 if temperature < GREEDY_BELOW else temperature,
        "top_p": checks.real("top_p", params.top_p, 0.0, 1.0, above=True),
        "top_k": 0 if top_k <= 0 or top_k >= width else top_k,
        "min_p": checks.real("min_p", params.min_p, 0.0, 1.0),
        "repetition_penalty": checks.real(
            "repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        ),
        **{name: checks.real(name, getattr(params, name), -MAX_PENALTY, MAX_PENALTY) for name in penalties},
    }


def _max_tokens(params: SamplingParams, prompt_logprobs: int | None, room: int) -> int:
    """Capped to the room; a prompt that leaves none is refused by the scheduler, with both numbers."""
    room = max(room, 1)
    if params.max_tokens is None:
        return room
    least = 1 if prompt_logprobs is None else 0
    hint = "" if least == 0 else "; 0 is for scoring, with prompt_logprobs; None means the room left"
    return min(checks.whole("max_tokens", params.max_tokens, least, checks.MAX_INT, hint), room)


def _min_tokens(params: SamplingParams, max_tokens: int, room: int) -> int:
    number = checks.whole("min_tokens", params.min_tokens, 0, checks.MAX_INT)
    if room <= 0:
        return min(number, max_tokens)
    if number > room:
        raise RequestError("min_tokens", f"the prompt leaves room for {room} tokens, got {number}; lower it")
    if number > max_tokens:
        raise RequestError("min_tokens", f"must be at most max_tokens ({max_tokens}), got {number}; lower it")
    return number


def _logit_bias(value: Mapping[int, float] | None, width: int, max_items: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise RequestError("logit_bias", f"must map token ids to numbers, got {checks.shown(value)}")
    ids = checks.token_ids("logit_bias", list(value), width, max_items)
    numbers = (checks.real("logit_bias", bias, -MAX_BIAS, MAX_BIAS) for bias in value.values())
    return tuple(zip(ids, numbers, strict=True))


def _allowed(value: list[int] | None, width: int) -> tuple[int, ...]:
    ids = checks.token_ids("allowed_token_ids", value, width, width)
    if value is not None and not ids:
        raise RequestError("allowed_token_ids", "must hold at least one id; leave it out to allow all")
    return tuple(sorted(set(ids)))


def _bad_words(value: list[str] | None, limits: Limits, tokenizer: Tokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Each word as it is written at the beginning of a text and behind a space."""
    words = checks.texts("bad_words", value, limits.bad_words, limits.stop_chars)
    if not words:
        return ()
    if tokenizer is None:
        raise RequestError("bad_words", "needs a tokenizer; this engine has none")
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word.lstrip()}"):
            if ids := tuple(tokenizer.encode(text, add_special_tokens=False)):
                found[ids] = None
    return tuple(found)


def _check_together(sampling: Sampling, eos_token_ids: frozenset[int]) -> None:
    """Rules that hold between parameters."""
    if sampling.stop and not sampling.detokenize:
        raise RequestError("stop", "stop strings need the text; leave detokenize at True or use stop_token_ids")
    if not sampling.allowed_token_ids:
        return
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned |= {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
    if banned.issuperset(sampling.allowed_token_ids):
        raise RequestError(
            "allowed_token_ids", "bad_words and min_tokens forbid every one of the ids; allow at least one more"
        )


def check_pooling(params: PoolingParams, bounds: Bounds) -> Pooling:
    return Pooling(
        pooling=checks.one_of("pooling", params.pooling, ("last", "mean")),
        normalize=checks.flag("normalize", params.normalize),
        dimensions=checks.optional_whole("dimensions", params.dimensions, 1, bounds.hidden_size),
    )
