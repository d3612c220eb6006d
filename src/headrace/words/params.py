"""What a user asks for: the mutable SamplingParams, and the frozen values it is copied into once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LogprobsMode = Literal["raw", "processed"]


@dataclass(slots=True)
class SamplingParams:
    """How to continue a prompt, with vLLM's names. Validated and copied when the request is added, never read again.

    `temperature` 0 is greedy. `top_k` 0 or −1, `top_p` 1 and `min_p` 0 are off. `max_tokens` None is the room left to
    max_model_len. `logprobs` and `prompt_logprobs` count alternatives beside the token itself, at most 20.
    `priority`: lower values come first. `forced_tokens` replaces the draws one by one (their logprobs are the model's).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None
    forced_tokens: list[int] | None = None
    sum_smaller_probs: bool = False
    token_confidence: bool = False


@dataclass(slots=True)
class PoolingParams:
    """One vector for a prompt instead of text. `dimensions` keeps the first ones (Matryoshka), then normalizes."""

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    dimensions: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """SamplingParams after validation: every value finite and in range, every id within the logits' width."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 16
    """Already capped to the room; 0 only scores the prompt."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Each bad word as token ids: the last one is forbidden after the others."""
    forced_tokens: tuple[int, ...] = ()
    sum_smaller_probs: bool = False
    token_confidence: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Pooling:
    """PoolingParams after validation."""

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """`length` prompt positions from `start` that stand for one media item; an atomic one is never split over steps."""

    start: int
    length: int
    handle: str
    digest: str
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One validated request on its way to the scheduler. Exactly one of `sampling` and `pooling` is set.

    `request_id` is ours and unique; `client_id` is the caller's and may repeat. Times are monotonic seconds.
    `gates` name what must be ready before it may wait in the queue (an image, a grammar).
    """

    request_id: int
    client_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling | None = None
    pooling: Pooling | None = None
    n: int = 1
    seed: int = 0
    prompt: str | None = None
    arrival_s: float = 0.0
    priority: int = 0
    user: str | None = None
    cache_salt: str | None = None
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    spans: tuple[MediaSpan, ...] = ()
    adapter: str | None = None

    @property
    def max_tokens(self) -> int:
        return self.sampling.max_tokens if self.sampling else 0

    @property
    def reads_cache(self) -> bool:
        """A request that wants logprobs or hidden states of its whole prompt computes every position itself."""
        if self.sampling:
            return self.sampling.prompt_logprobs is None
        return self.pooling is not None and self.pooling.pooling == "last"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for at most (SERVING.md section 5)."""

    n: int = 16_384
    prompts: int = 1_024
    stop_strings: int = 4
    stop_chars: int = 1_024
    stop_token_ids: int = 1_024
    bad_words: int = 128
    logprobs: int = 20
    prompt_chars: int = 4_000_000
    prompt_tokens: int = 4_000_000
    logit_bias: int = 1_024
