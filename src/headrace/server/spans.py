"""OpenTelemetry: one span for each request, its life as events. Nothing is imported where no endpoint is named."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from headrace.engine.output import Life, RequestState
from headrace.words.errors import ConfigError
from headrace.words.log import get_logger
from headrace.words.outputs import GOOD_ENDS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = get_logger(__name__)
PARENT: ContextVar[Mapping[str, str] | None] = ContextVar("headrace_parent", default=None)
"""The trace headers of the HTTP request that this task answers."""
HEADERS = ("traceparent", "tracestate")
EXPORT_S = 2.0
"""A collector that does not answer holds the end of the server up no longer."""


class Spans(Protocol):
    """Hears of every request when it is queued and when it ended; used from the event loop."""

    def opened(self, request_ids: Iterable[int]) -> None: ...

    def finished(self, state: RequestState) -> None: ...

    def close(self) -> None: ...


class NoSpans:
    def opened(self, request_ids: Iterable[int]) -> None:
        return

    def finished(self, state: RequestState) -> None:
        return

    def close(self) -> None:
        return


class TracedSpans:
    """Gives spans to a provider, below the span that a request's `traceparent` names."""

    def __init__(self, provider: TracerProvider, model_name: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace", metadata.version("headrace"))
        self._model_name = model_name
        self._parents: dict[int, Mapping[str, str]] = {}

    def opened(self, request_ids: Iterable[int]) -> None:
        if headers := PARENT.get():
            self._parents.update(dict.fromkeys(request_ids, headers))

    def finished(self, state: RequestState) -> None:
        """What goes wrong with a span is no trouble of the request's."""
        try:
            self._write(state)
        except Exception:
            log.exception("a span was lost")

    def _write(self, state: RequestState) -> None:
        from opentelemetry.trace import SpanKind

        ends_s = state.metrics.finished_s or time.monotonic()
        span = self._tracer.start_span(
            f"{'chat' if state.request.sampling else 'embeddings'} {self._model_name}",
            context=self._parent(state.request.request_id),
            kind=SpanKind.SERVER,
            attributes=_attributes(state, self._model_name),
            start_time=epoch_ns(state.request.arrival_s),
        )
        for life in state.lives():
            _tell(span, life, state.request.n > 1)
        span.end(epoch_ns(ends_s))

    def close(self) -> None:
        self._provider.shutdown()

    def _parent(self, request_id: int) -> Context | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = self._parents.pop(request_id, None)
        return None if headers is None else TraceContextTextMapPropagator().extract(headers)


def make_spans(endpoint: str | None, model_name: str) -> Spans:
    """Spans over OTLP and HTTP; raises ConfigError where the extra is not installed."""
    if endpoint is None:
        return NoSpans()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError("otlp_traces_endpoint", "needs more packages: pip install 'headrace[otel]'") from error
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "headrace"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_S * 1e3))
    return TracedSpans(provider, model_name)


def trace_headers(headers: Mapping[str, str]) -> Mapping[str, str] | None:
    """Those that name a parent, None if there is none."""
    return {name: headers[name] for name in HEADERS if name in headers} if "traceparent" in headers else None


def epoch_ns(monotonic_s: float) -> int:
    """A moment of the monotonic clock on the wall clock as it stands now."""
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


def _attributes(state: RequestState, model_name: str) -> dict[str, Any]:
    """OpenTelemetry's names for generative models, `headrace.` for what they do not have."""
    request, times = state.request, state.metrics
    sampling = request.sampling
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if sampling else "embeddings",
        "gen_ai.request.model": model_name,
        "gen_ai.response.id": request.client_id,
        "gen_ai.response.finish_reasons": [life.finish.reason.value for life in state.lives() if life.finish],
        "gen_ai.usage.input_tokens": len(request.prompt_ids),
        "gen_ai.usage.output_tokens": state.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": state.num_cached_tokens,
        "headrace.queue_s": times.queue_time_s,
        "headrace.time_to_first_token_s": times.time_to_first_token_s,
        "headrace.num_choices": request.n,
    }
    if sampling is not None:
        found |= {"gen_ai.request.temperature": sampling.temperature, "gen_ai.request.max_tokens": request.max_tokens}
    return {name: value for name, value in found.items() if value is not None}


def _tell(span: Span, life: Life, is_one_of_several: bool) -> None:
    """Every change of status as an event; a bad end is the span's."""
    from opentelemetry.trace import Status, StatusCode

    for move in life.timeline:
        told = {"from": move.source or "new", "where": move.where}
        more = {"choice": life.choice} if is_one_of_several else {}
        span.add_event(move.target, {**told, **more}, epoch_ns(move.time_s))
    if life.num_preemptions:
        span.set_attribute("headrace.num_preemptions", life.num_preemptions)
    if life.finish is not None and life.finish.reason.value not in GOOD_ENDS:
        span.set_status(Status(StatusCode.ERROR, life.finish.detail or life.finish.reason.value))
