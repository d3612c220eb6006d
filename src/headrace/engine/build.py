"""The only place that wires an engine's parts together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.engine.chat import ChatTemplate
from headrace.engine.core import EngineCore
from headrace.engine.detokenize import TokenTexts, stop_matcher
from headrace.engine.inputs import InputProcessor
from headrace.engine.metrics import EngineMetrics
from headrace.engine.processor import OutputProcessor
from headrace.engine.sampling_params import Bounds
from headrace.engine.tokenizer import Tokenizer
from headrace.schedule.scheduler import Scheduler
from headrace.words.config import ModelConfig, Resolved
from headrace.words.errors import RequestError
from headrace.words.params import SamplingParams
from headrace.words.plan import CacheLayout, Executor

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's parts, ready to run. Whoever runs `core` owns the engine and calls `close`."""

    resolved: Resolved
    model: ModelConfig
    layout: CacheLayout
    tokenizer: Tokenizer
    template: ChatTemplate | None
    special_tokens: Mapping[str, str]
    """What chat templates call bos_token, eos_token, …"""
    sampling_defaults: Mapping[str, Any]
    """Fields of SamplingParams that the checkpoint's generation_config sets."""
    inputs: InputProcessor
    outputs: OutputProcessor
    core: EngineCore
    metrics: EngineMetrics
    closers: tuple[Callable[[], None], ...] = field(default=(), repr=False)

    def default_sampling_params(self) -> SamplingParams:
        return SamplingParams(**self.sampling_defaults)

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """The model's chat template, or one from `source`; RequestError where there is none."""
        if source is not None:
            return ChatTemplate(source, self.tokenizer, self.special_tokens)
        if self.template is None:
            raise RequestError("chat_template", "this model has none; pass one, or use generate with a plain prompt")
        return self.template

    def close(self) -> None:
        """Twice is once."""
        self.core.close()
        for close in self.closers:
            close()


def assemble(
    resolved: Resolved,
    model: ModelConfig,
    layout: CacheLayout,
    executor: Executor,
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    sampling_defaults: Mapping[str, Any] | None = None,
    clock: Clock = time.monotonic,
    closers: tuple[Callable[[], None], ...] = (),
) -> Engine:
    """An engine around an executor. The scheduler comes last: it needs the block count that the worker measured."""
    texts = TokenTexts(tokenizer)
    eos_token_ids = resolved.scheduler.eos_token_ids
    bounds = Bounds(model.vocab_size, model.hidden_size, resolved.scheduler.max_model_len, eos_token_ids)
    inputs = InputProcessor(
        bounds, tokenizer, resolved.seed, resolved.queue_timeout_s, resolved.request_timeout_s, clock
    )
    scheduler = Scheduler(resolved.scheduler, layout, clock, make_matcher=partial(stop_matcher, texts))
    core = EngineCore(scheduler, executor, resolved.async_scheduling, clock)
    metrics = EngineMetrics(core)
    return Engine(
        resolved=resolved,
        model=model,
        layout=layout,
        tokenizer=tokenizer,
        template=None if chat_template is None else ChatTemplate(chat_template, tokenizer, special_tokens),
        special_tokens=dict(special_tokens or {}),
        sampling_defaults=dict(sampling_defaults or {}),
        inputs=inputs,
        outputs=OutputProcessor(texts, metrics.observe, clock),
        core=core,
        metrics=metrics,
        closers=closers,
    )
