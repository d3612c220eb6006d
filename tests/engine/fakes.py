"""An executor whose model is a function of the history, and engines around it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.engine import toys

from headrace.engine.build import Engine, assemble
from headrace.words.config import ModelConfig, Resolved, RopeConfig, SchedulerConfig
from headrace.words.outputs import TokenLogprobs
from headrace.words.plan import Admission, CacheLayout, Emits, RowResult, Segment, StepPlan, StepResult

EOS = 0
WIDTH = 97
"""Ids of the toy model stay below this; the logits are wider."""
HIDDEN = 4


def digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def next_token(history: Sequence[int], seed: int = 0, choice: int = 0) -> int:
    """A letter, mostly; a draw depends on seed and choice, greedy calls leave them at 0."""
    return digest(tuple(history), seed, choice) % WIDTH + 32


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Done(NamedTuple):
    """A step whose tokens are there; `error` is raised by whoever asks for them."""

    step: int
    rows: tuple[RowResult, ...]
    error: BaseException | None = None

    def result(self) -> StepResult:
        if self.error is not None:
            raise self.error
        return StepResult(self.step, self.rows)


@dataclass
class FakeExecutor:
    """Rows as the worker keeps them. `script` gives a row's next token, None where the toy model is to speak.

    `on_forward`, `on_sample` and `on_result` may raise for a step; `poison` names rows whose logits are not finite.
    """

    script: Callable[[Sequence[int], Admission], int | None] = lambda history, admission: None
    on_forward: Callable[[StepPlan], None] = lambda plan: None
    on_sample: Callable[[StepPlan], None] = lambda plan: None
    on_result: Callable[[StepPlan], BaseException | None] = lambda plan: None
    poison: Callable[[Admission], bool] = lambda admission: False
    plans: list[StepPlan] = field(default_factory=list)
    rows: dict[int, tuple[Admission, list[int]]] = field(default_factory=dict)
    num_closed: int = 0

    def forward(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.on_forward(plan)
        for row in plan.retired_rows:
            self.rows.pop(row, None)
        for admission in plan.admissions:
            self.rows[admission.row] = (admission, list(admission.token_ids))

    def sample(self, plan: StepPlan, masks: object | None = None) -> Done:
        self.on_sample(plan)
        rows = tuple(self._row(segment) for segment in plan.segments)
        return Done(plan.step, rows, self.on_result(plan))

    def close(self) -> None:
        self.num_closed += 1

    def _row(self, segment: Segment) -> RowResult:
        admission, tokens = self.rows[segment.row]
        assert admission.seq_id == segment.seq_id and segment.start + segment.length <= len(tokens)
        result = RowResult(segment.seq_id, segment.epoch)
        if self.poison(admission):
            return result._replace(failure="its logits are not finite")
        if segment.emits is Emits.NOTHING:
            return result
        if segment.emits is Emits.HIDDEN:
            return result._replace(hidden=self._hidden(admission, tokens, segment))
        if segment.emits is Emits.LOGPROBS:
            last = min(segment.start + segment.length, admission.num_prompt_tokens - 1)
            result = result._replace(
                prompt_logprobs=tuple(entry(tokens[: p + 1], tokens[p + 1]) for p in range(segment.start, last))
            )
        if segment.start + segment.length < len(tokens) or not admission.sampling.max_tokens:
            return result
        token = self._draw(admission, tokens)
        result = result._replace(token_ids=(token,), logprobs=self._logprobs(admission, tokens, token))
        tokens.append(token)
        return result

    def _draw(self, admission: Admission, tokens: list[int]) -> int:
        sampling = admission.sampling
        index = len(tokens) - admission.num_prompt_tokens
        if index < len(sampling.forced_tokens):
            return sampling.forced_tokens[index]
        if (token := self.script(tokens, admission)) is not None:
            return token
        return next_token(tokens) if sampling.is_greedy else next_token(tokens, admission.seed, admission.choice)

    def _logprobs(self, admission: Admission, tokens: list[int], token: int) -> tuple[TokenLogprobs, ...]:
        sampling = admission.sampling
        wanted = sampling.logprobs is not None or sampling.sum_smaller_probs or sampling.token_confidence
        return (entry(tokens, token, sampling.logprobs or 0),) if wanted else ()

    def _hidden(self, admission: Admission, tokens: list[int], segment: Segment) -> tuple[float, ...]:
        first = segment.start if admission.pooling.pooling == "mean" else segment.start + segment.length - 1
        positions = range(first, segment.start + segment.length)
        return tuple(float(sum(digest(tokens[: p + 1], i) % 100 for p in positions)) for i in range(HIDDEN))


def entry(history: Sequence[int], token: int, num_top: int = 2) -> TokenLogprobs:
    """The token, then `num_top` others; numbers that only the history decides."""
    top = [32 + (len(history) + i) % WIDTH for i in range(num_top)]
    score = -(digest(tuple(history), token) % 100) / 100
    return TokenLogprobs((token, *top), (score, *(-1.0 - i for i in range(num_top))), 1 + digest(token) % 5, 0.25, 1.5)


MODEL = ModelConfig("Toy", 400, HIDDEN, 8, 1, 1, 1, 4, 64, 1e-5, RopeConfig(), eos_token_ids=(EOS,))


def resolved(clock_limits: dict[str, Any] | None = None, **scheduler: Any) -> Resolved:
    """What was decided, for a small engine; `clock_limits` are the fields outside the scheduler's."""
    options: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    eos = scheduler.pop("eos_token_ids", frozenset({EOS}))
    return Resolved(
        **{
            "model": "toy",
            "dtype": "float32",
            "quantization": None,
            "backend": "reference",
            "block_size": 4,
            "num_threads": 1,
            "seed": 0,
            "memory_share": 0.9,
            "kv_cache_dtype": "float32",
            "kv_cache_memory_bytes": None,
            "num_blocks": None,
            "max_model_len_is_explicit": True,
            "scheduler": SchedulerConfig(**options | scheduler, eos_token_ids=eos),
            "queue_timeout_s": None,
            "request_timeout_s": None,
            "max_num_queued_requests": None,
            "max_num_queued_tokens": None,
            "async_scheduling": False,
            **(clock_limits or {}),
        }
    )


def engine(
    executor: FakeExecutor | None = None,
    num_blocks: int = 200,
    tokenizer: toys.ToyTokenizer | None = None,
    others: dict[str, Any] | None = None,
    **scheduler: Any,
) -> Engine:
    """An engine over a fake executor; `others` are arguments of assemble or fields of Resolved but the scheduler's."""
    others = dict(others or {})
    parts = {name: others.pop(name) for name in ("clock", "sampling_defaults", "chat_template") if name in others}
    return assemble(
        resolved(others, **scheduler),
        MODEL,
        CacheLayout(num_blocks, 4),
        executor or FakeExecutor(),
        tokenizer or toys.bytewise(),
        **{"chat_template": toys.TEMPLATE} | parts,
    )
