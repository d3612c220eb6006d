"""Events of the scheduler to what users get: one class for those who want the end only and those who want each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from headrace.engine.detokenize import StopText, TokenTexts
from headrace.words.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    Finish,
    FinishReason,
    Logprob,
    Move,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from headrace.words.params import Pooling, PoolingParams, Request, Sampling, SamplingParams
from headrace.words.plan import TokenEvent

Output = RequestOutput | EmbeddingOutput
OutputKind = Literal["cumulative", "delta", "final"]


class Life(NamedTuple):
    """One continuation as far as it is known; `timeline` is there when it has ended."""

    choice: int
    num_tokens: int
    finish: Finish | None
    num_preemptions: int
    timeline: tuple[Move, ...]
    seed: int | None


class Waits(NamedTuple):
    """What a request's reader waited, in seconds: for the first token (once), and for each later one of a choice."""

    first_s: float | None
    gaps_s: list[float]


class ChoiceText:
    """The text of one continuation as far as it may be shown: a tail that may begin a stop string is held back."""

    def __init__(self, texts: TokenTexts, sampling: Sampling) -> None:
        self._reader = StopText(texts, sampling.stop, sampling.skip_special_tokens)
        self._includes_stop = sampling.include_stop_str_in_output
        self._held = ""
        self._num_shown = 0

    def read(self, token_ids: Sequence[int], finish: Finish | None) -> str:
        """The text that these tokens add, the last of all if `finish` is set: then nothing is held any more."""
        stop = finish.stop_reason if finish is not None else None
        is_stopped = finish is not None and finish.reason is FinishReason.STOPPED
        if is_stopped and not isinstance(stop, str) and not self._includes_stop:
            token_ids = token_ids[:-1]
        match = None
        for token_id in token_ids:
            text, match = self._reader.read(token_id)
            self._held += text
        if finish is None:
            return self._show(len(self._held) - (0 if self._includes_stop else self._reader.num_held))
        if isinstance(stop, str) and match is not None:
            self._held += self._reader.ahead
            return self._show((match.end if self._includes_stop else match.start) - self._num_shown)
        self._held += self._reader.finish()
        return self._show(len(self._held))

    def _show(self, num_chars: int) -> str:
        text, self._held = self._held[:num_chars], self._held[num_chars:]
        self._num_shown += num_chars
        return text


class ChoiceState:
    """One continuation: its ids, its text, and how much of them was told. Text is made when somebody asks for it."""

    def __init__(self, index: int, request: Request, texts: TokenTexts | None) -> None:
        assert request.sampling is not None
        self.index = index
        self.sampling = request.sampling
        self.finish: Finish | None = None
        self.has_news = False
        self.token_ids: list[int] = []
        self.last_token_s: float | None = None
        self._seed = request.seed
        self._texts = texts if request.sampling.detokenize else None
        self._text = ChoiceText(self._texts, request.sampling) if self._texts else None
        self._told = ""
        self._num_told = 0
        self._entries: list[TokenLogprobs] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative = 0.0
        self._num_preemptions = 0
        self._timeline: tuple[Move, ...] = ()

    def take(self, event: TokenEvent) -> None:
        self.has_news = True
        self.token_ids += event.token_ids
        self._entries += event.logprobs
        self._num_preemptions = event.num_preemptions
        if event.finish is not None:
            self.finish, self._timeline = event.finish, event.timeline

    def output(self, delta: bool) -> CompletionOutput:
        """What there is now, or with `delta` what is new since the last call."""
        start, finish = self._num_told, self.finish
        text = self._text.read(self.token_ids[start:], finish) if self._text else ""
        logprobs = self._read_logprobs(start)
        self.has_news, self._num_told = False, len(self.token_ids)
        if not delta:
            self._told += text
            text, start, logprobs = self._told, 0, self._logprobs and list(self._logprobs)
        entries = self._entries[start:]
        wants = self.sampling
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[start:],
            cumulative_logprob=None if wants.logprobs is None else self._cumulative,
            logprobs=None if wants.logprobs is None else logprobs,
            finish_reason=finish and finish.reason.value,
            stop_reason=finish and finish.stop_reason,
            finish_detail=finish and finish.detail,
            sum_smaller_probs=[e.sum_smaller_probs or 0.0 for e in entries] if wants.sum_smaller_probs else None,
            token_confidence=[e.token_confidence or 0.0 for e in entries] if wants.token_confidence else None,
            num_preemptions=self._num_preemptions,
            timeline=self._timeline,
            seed=self._seed,
        )

    def life(self) -> Life:
        return Life(self.index, len(self.token_ids), self.finish, self._num_preemptions, self._timeline, self._seed)

    def _read_logprobs(self, start: int) -> list[PositionLogprobs]:
        num_top = self.sampling.logprobs
        if num_top is None:
            return []
        entries = self._entries[start:]
        self._cumulative += sum(entry.logprobs[0] for entry in entries)
        new = [shape(entry, num_top, self._texts) for entry in entries]
        self._logprobs += new
        return new


def shape(entry: TokenLogprobs, num_top: int, texts: TokenTexts | None) -> PositionLogprobs:
    """One position as a dict: the token that stands there first, then the most likely ones, each with its rank."""
    shaped: dict[int, Logprob] = {}
    for place, (token_id, logprob) in enumerate(zip(entry.token_ids[: num_top + 1], entry.logprobs, strict=False)):
        rank = entry.rank if place == 0 else place
        if token_id not in shaped:
            text, raw = (None, None) if texts is None else (texts.token_text(token_id), texts.token_bytes(token_id))
            shaped[token_id] = Logprob(logprob, rank, text, raw)
    return shaped


class RequestState:
    """A request on its way: collects its events and gives outputs, at each step or once at the end."""

    def __init__(self, request: Request, texts: TokenTexts | None, enqueued_s: float) -> None:
        self.request = request
        self.metrics = RequestMetrics(arrival_s=request.arrival_s, enqueued_s=enqueued_s)
        self._texts = texts
        self._prompt_ids = list(request.prompt_ids)
        self._choices = [ChoiceState(i, request, texts) for i in range(request.n)] if request.sampling else []
        self._num_open = request.n
        self._prompt_logprobs: list[PositionLogprobs | None] = [None]
        self._num_cached_tokens = 0
        self._last: TokenEvent | None = None
        self._waits = Waits(None, [])

    @property
    def is_finished(self) -> bool:
        return self._num_open == 0

    @property
    def num_output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def num_cached_tokens(self) -> int:
        return self._num_cached_tokens

    def lives(self) -> list[Life]:
        """Every continuation (one, of a request for a vector); reads no text."""
        if self._choices:
            return [choice.life() for choice in self._choices]
        event = self._last
        if event is None:
            return [Life(0, 0, None, 0, (), None)]
        return [Life(0, 0, event.finish, event.num_preemptions, event.timeline, None)]

    def take(self, event: TokenEvent) -> None:
        """Takes one event; the scheduler gives exactly one with `finish` for each choice, as its last."""
        self._last = event
        if event.choice == 0:
            self._num_cached_tokens = event.num_cached_tokens
            self._take_prompt_logprobs(event.prompt_logprobs)
        if self._choices:
            self._choices[event.choice].take(event)
        if event.token_ids:
            self._note_tokens(event)
        if event.finish is not None:
            self._num_open -= 1
            self.metrics.finished_s = event.time_s
            self._note_schedule(event.timeline)

    def take_waits(self) -> Waits:
        """Those since the last call."""
        waits, self._waits = self._waits, Waits(None, [])
        return waits

    def _note_tokens(self, event: TokenEvent) -> None:
        times, choice, now_s = self.metrics, self._choices[event.choice], event.time_s
        if times.first_token_s is None:
            times.first_token_s = now_s
            self._waits = self._waits._replace(first_s=now_s - times.arrival_s)
        times.last_token_s = now_s
        times.token_times_s += [now_s] * len(event.token_ids)
        if choice.last_token_s is not None:
            self._waits.gaps_s.append(now_s - choice.last_token_s)
        self._waits.gaps_s.extend([0.0] * (len(event.token_ids) - 1))
        choice.last_token_s = now_s

    def _note_schedule(self, timeline: Iterable[Move]) -> None:
        started = next((move.time_s for move in timeline if move.target == "running"), None)
        before = self.metrics.first_scheduled_s
        if started is not None and (before is None or started < before):
            self.metrics.first_scheduled_s = started

    def _take_prompt_logprobs(self, entries: Iterable[TokenLogprobs]) -> None:
        sampling = self.request.sampling
        if sampling is not None and sampling.prompt_logprobs is not None:
            self._prompt_logprobs += [shape(entry, sampling.prompt_logprobs, self._texts) for entry in entries]

    def output(self, delta: bool = False) -> Output:
        """The request as it stands, or with `delta` only the choices, tokens and text new since the last call."""
        request, sampling = self.request, self.request.sampling
        if sampling is None:
            return self._embedding()
        choices = [choice for choice in self._choices if choice.has_news] if delta else self._choices
        wants_prompt = sampling.prompt_logprobs is not None
        prompt_logprobs = self._prompt_logprobs if wants_prompt else None
        if delta:
            self._prompt_logprobs = []
        return RequestOutput(
            request_id=request.client_id,
            prompt=request.prompt,
            prompt_token_ids=self._prompt_ids,
            outputs=[choice.output(delta) for choice in choices],
            finished=self.is_finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
            metrics=self.metrics,
        )

    def _embedding(self) -> EmbeddingOutput:
        request, event = self.request, self._last
        assert request.pooling is not None and event is not None
        finish = event.finish
        return EmbeddingOutput(
            request_id=request.client_id,
            prompt_token_ids=self._prompt_ids,
            embedding=finish_vector(event.hidden, request.pooling) if event.hidden else [],
            finished=self.is_finished,
            finish_reason=finish and finish.reason.value,
            finish_detail=finish and finish.detail,
            num_cached_tokens=self._num_cached_tokens,
            timeline=event.timeline,
        )


def finish_vector(hidden: Sequence[float], pooling: Pooling) -> list[float]:
    """The first `dimensions` numbers, then length 1 (a zero vector stays)."""
    vector = list(hidden[: pooling.dimensions])
    if not pooling.normalize:
        return vector
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else vector


def refused(prompt: str | None, params: SamplingParams | PoolingParams, error: Exception) -> Output:
    """The output of a prompt too long to be read at all."""
    reason = FinishReason.PROMPT_TOO_LONG.value
    if isinstance(params, PoolingParams):
        return EmbeddingOutput("", [], [], finished=True, finish_reason=reason, finish_detail=str(error))
    choice = CompletionOutput(0, "", [], finish_reason=reason, finish_detail=str(error))
    return RequestOutput("", prompt, [], [choice], finished=True)
