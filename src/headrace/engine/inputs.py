"""From what users pass to frozen requests: one validator for every route, run before anything is queued."""

from __future__ import annotations

import itertools
import numbers
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.engine import checks
from headrace.engine.sampling_params import MAX_NAME_CHARS, Bounds, check_pooling, check_sampling
from headrace.engine.tokenizer import Tokenizer
from headrace.words.errors import PromptTooLongError, RequestError
from headrace.words.params import PoolingParams, Request, SamplingParams

Params = SamplingParams | PoolingParams
Prompt = str | Sequence[int] | Mapping[str, Any]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MAX_PRIORITY = (1 << 31) - 1
PIECE_CHARS = 4_096
LONE_HALF = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
"""Of a surrogate pair."""


class Checked(NamedTuple):
    """A request that lacks only what is decided at its admission: its id, its times, and its seed if none is given."""

    request: Request
    is_seeded: bool


class InputProcessor:
    """Checks prompts and parameters against a model's bounds and makes requests of them."""

    def __init__(
        self,
        bounds: Bounds,
        tokenizer: Tokenizer | None,
        engine_seed: int = 0,
        queue_timeout_s: float | None = None,
        request_timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bounds = bounds
        self.tokenizer = tokenizer
        self._engine_seed = engine_seed
        self._timeouts_s = (queue_timeout_s, request_timeout_s)
        self._clock = clock
        self._ordinals = itertools.count()

    def check(self, prompt: Prompt, params: Params, priority: int | None = None) -> Checked:
        """Everything that can be refused at once is refused here, with a RequestError; nothing is counted or queued."""
        if not isinstance(params, SamplingParams | PoolingParams):
            raise RequestError("sampling_params", f"must be SamplingParams, got {checks.shown(params)}")
        text, ids = self._read_prompt(prompt)
        order = params.priority if priority is None else priority
        queue_timeout_s, timeout_s = self._timeouts_s
        request = Request(
            request_id=0,
            client_id="",
            prompt_ids=ids,
            prompt=text,
            priority=checks.whole("priority", order, -MAX_PRIORITY, MAX_PRIORITY),
            user=checks.optional_text("user", params.user, MAX_NAME_CHARS),
            cache_salt=checks.optional_text("cache_salt", params.cache_salt, MAX_NAME_CHARS),
            queue_timeout_s=queue_timeout_s,
            timeout_s=timeout_s,
        )
        if isinstance(params, PoolingParams):
            return Checked(replace(request, pooling=check_pooling(params, self.bounds)), is_seeded=True)
        seed = None if params.seed is None else checks.any_whole("seed", params.seed)
        request = replace(
            request,
            sampling=check_sampling(params, len(ids), self.bounds, self.tokenizer),
            n=checks.whole("n", params.n, 1, self.bounds.limits.n),
            seed=(seed or 0) & _MASK,
        )
        return Checked(request, is_seeded=seed is not None)

    def admit(self, checked: Checked, client_id: str | None = None, arrival_s: float | None = None) -> Request:
        """Gives a checked request its id, which is also its arrival ordinal, and what follows from it."""
        if not isinstance(client_id, str | None):
            raise RequestError("request_id", f"must be a text, got {checks.shown(client_id)}")
        if arrival_s is not None:
            arrival_s = checks.real("arrival_time", arrival_s, 0.0, checks.MAX_INT)
        ordinal = next(self._ordinals)
        request = checked.request
        return replace(
            request,
            request_id=ordinal,
            client_id=str(ordinal) if client_id is None else client_id,
            arrival_s=self._clock() if arrival_s is None else arrival_s,
            seed=request.seed if checked.is_seeded else derive_seed(self._engine_seed, ordinal),
        )

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """(text, ids) of one prompt; the text is None where only ids are given."""
        if isinstance(prompt, Mapping):
            return self._read_mapping(prompt)
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if hasattr(prompt, "tolist") and not isinstance(prompt, checks.BYTES):
            prompt = prompt.tolist()
        if isinstance(prompt, Sequence) and not isinstance(prompt, str | checks.BYTES):
            return None, self._check_ids(prompt)
        raise RequestError("prompt", f"must be a text, token ids or a dict, got {checks.shown(prompt)}")

    def _read_mapping(self, prompt: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
        if unknown := [key for key in prompt if key not in ("prompt", "prompt_token_ids")]:
            raise RequestError("prompt", f"unknown key {checks.shown(unknown[0])}; use prompt or prompt_token_ids")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise RequestError("prompt", f"must be a text, got {checks.shown(text)}")
        if ids is not None:
            _, checked = self._read_prompt(ids) if not isinstance(ids, str | Mapping) else (None, None)
            if checked is None:
                raise RequestError("prompt_token_ids", f"must be a list of token ids, got {checks.shown(ids)}")
            return text, checked
        if text is None:
            raise RequestError("prompt", "the dict holds no prompt; give it prompt or prompt_token_ids")
        return text, self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        if self.tokenizer is None:
            raise RequestError("prompt", "this engine has no tokenizer; pass prompt_token_ids")
        if len(text) > self.bounds.limits.prompt_chars:
            limit = self.bounds.limits.prompt_chars
            raise PromptTooLongError("prompt", f"at most {limit} characters are read, got {len(text)}; shorten it")
        return self._check_ids(self.tokenizer.encode(clean_text(text)))

    def _check_ids(self, ids: Sequence[Any]) -> tuple[int, ...]:
        if not ids:
            raise RequestError("prompt", "is empty; it must hold at least one token")
        limit = self.bounds.limits.prompt_tokens
        if len(ids) > limit:
            raise PromptTooLongError("prompt", f"at most {limit} tokens are read, got {len(ids)}; shorten it")
        return checks.token_ids("prompt", ids, self.bounds.vocab_size, limit)


def split_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list. A list that holds a number is one prompt of ids."""
    if isinstance(prompts, str | Mapping | checks.BYTES) or hasattr(prompts, "tolist"):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError("prompts", f"must be a prompt or a list of prompts, got {checks.shown(prompts)}")
    if any(isinstance(item, numbers.Number) for item in prompts):
        return [prompts]
    return list(prompts)


def pair_params(params: Any, num_prompts: int, default: Callable[[], Params]) -> list[Params]:
    """Parameters for each prompt: none given, one for all, or a list of as many."""
    if params is None:
        return [default() for _ in range(num_prompts)]
    if not isinstance(params, Sequence):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(
            "sampling_params", f"one for each of the {num_prompts} prompts is needed, got {len(params)}; or pass one"
        )
    return list(params)


def clean_text(text: str) -> str:
    """Halves of surrogate pairs are joined where they meet and U+FFFD where they stand alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_joined, pieces(text)))
    return text


def pieces(text: str) -> Iterator[str]:
    """The text in parts that end before no second half of a pair: each takes a blink, and others run between."""
    start = 0
    while start < len(text):
        end = start + PIECE_CHARS
        if "\udc00" <= text[end : end + 1] <= "\udfff":
            end += 1
        yield text[start:end]
        start = end


def _joined(text: str) -> str:
    return LONE_HALF.sub("\ufffd", text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def derive_seed(engine_seed: int, ordinal: int) -> int:
    """The seed of an unseeded request, 64 bits: output `ordinal` of SplitMix64 (Steele, Lea, Flood 2014) started at the
    mixed engine seed."""
    return _mix((_mix(engine_seed & _MASK) + (ordinal + 1) * _GOLDEN) & _MASK)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
