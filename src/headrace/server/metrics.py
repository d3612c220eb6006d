"""GET /metrics: vLLM's names, so that its dashboards and routers work, and `headrace:` for what only Headrace has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.engine.host import AsyncLLM
from headrace.engine.metrics import Metrics
from headrace.engine.output import RequestState
from headrace.server.flight import FlightRecorder
from headrace.server.histogram import SECONDS, TOKENS, Histogram, gap_s
from headrace.words.outputs import FinishReason

LABELS = ("model_name", "engine")
GAUGES = {
    "vllm:num_requests_running": ("num_running", "Sequences that run."),
    "vllm:num_requests_waiting": ("num_waiting", "Sequences that wait."),
    "vllm:kv_cache_usage_perc": ("cache_usage", "Share of the cache blocks in use, 1 is all."),
    "headrace:num_requests_blocked": ("num_blocked", "Sequences before a gate (image, grammar)."),
}
COUNTERS = {
    "vllm:num_preemptions": ("num_preemptions", "Preemptions."),
    "vllm:prompt_tokens": ("num_prompt_tokens", "Prompt tokens, computed or cached."),
    "vllm:generation_tokens": ("num_generated_tokens", "Generated tokens."),
    "vllm:prefix_cache_queries": ("num_prefix_queries", "Tokens looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("num_prefix_hits", "Tokens found in the prefix cache."),
    "headrace:steps": ("num_steps", "Steps."),
    "headrace:failed_steps": ("num_failed_steps", "Steps that raised."),
    "headrace:recomputed_tokens": ("num_recomputed_tokens", "Tokens computed again after a preemption or a failure."),
    "headrace:busy_seconds": ("busy_s", "Seconds in steps."),
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": (SECONDS, "Arrival to first token."),
    "vllm:inter_token_latency_seconds": (SECONDS, "Between tokens of one request."),
    "vllm:request_time_per_output_token_seconds": (SECONDS, "Mean time between tokens, by request."),
    "vllm:e2e_request_latency_seconds": (SECONDS, "Arrival to end."),
    "vllm:request_queue_time_seconds": (SECONDS, "Queued to first scheduled."),
    "vllm:request_prefill_time_seconds": (SECONDS, "First scheduled to first token."),
    "vllm:request_decode_time_seconds": (SECONDS, "First token to last."),
    "vllm:request_inference_time_seconds": (SECONDS, "First scheduled to last token."),
    "vllm:request_prompt_tokens": (TOKENS, "Prompt tokens by request."),
    "vllm:request_generation_tokens": (TOKENS, "Generated tokens by request."),
    "vllm:iteration_tokens_total": (TOKENS, "Tokens of a step."),
}


class ServerMetrics:
    """Hears of tokens and of every finished request; what the engine counts itself is read when somebody asks."""

    def __init__(self, llm: AsyncLLM, model_name: str, flight: FlightRecorder) -> None:
        self._llm = llm
        self._flight = flight
        self._labels = (model_name, "0")
        self._histograms = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self._rejections: Counter[str] = Counter()
        self._responses: Counter[tuple[str, str]] = Counter()
        self._num_corrupted = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def rejected(self, code: str) -> None:
        """A request that was refused for lack of room or because the server is ending."""
        self._rejections[code] += 1

    def responded(self, route: str, status: int) -> None:
        self._responses[route, str(status)] += 1

    def finished(self, state: RequestState) -> None:
        times, add = state.metrics, self._add
        add("vllm:request_prompt_tokens", float(len(state.request.prompt_ids)))
        add("vllm:request_generation_tokens", float(state.num_output_tokens))
        add("vllm:request_queue_time_seconds", times.queue_time_s)
        add("vllm:e2e_request_latency_seconds", gap_s(times.arrival_s, times.finished_s))
        add("vllm:request_prefill_time_seconds", gap_s(times.first_scheduled_s, times.first_token_s))
        add("vllm:request_decode_time_seconds", gap_s(times.first_token_s, times.last_token_s))
        add("vllm:request_inference_time_seconds", gap_s(times.first_scheduled_s, times.last_token_s))
        self._add_pace(state)
        for life in state.lives():
            finish = life.finish
            is_bad = finish is not None and finish.reason is FinishReason.FAILED
            self._num_corrupted += bool(is_bad and finish and "finite" in (finish.detail or ""))

    def progressed(self, state: RequestState) -> None:
        """As tokens come, so that a slow answer is seen while it is slow."""
        waits = state.take_waits()
        self._add("vllm:time_to_first_token_seconds", waits.first_s)
        self._histograms["vllm:inter_token_latency_seconds"].add_all(waits.gaps_s)

    def _add_pace(self, state: RequestState) -> None:
        """Mean time between tokens; of several choices the times are mixed and say nothing."""
        times, num_gaps = state.metrics, state.num_output_tokens - 1
        if state.request.n == 1 and num_gaps > 0 and times.first_token_s is not None and times.last_token_s is not None:
            pace_s = (times.last_token_s - times.first_token_s) / num_gaps
            self._add("vllm:request_time_per_output_token_seconds", pace_s)

    def _add(self, name: str, value: float | None) -> None:
        self._histograms[name].add(value)

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        now = self._llm.get_metrics()
        for name, (field, text) in GAUGES.items():
            yield self._gauge(name, text, float(getattr(now, field)))
        for name, (field, text) in COUNTERS.items():
            yield self._counter(name, text, float(getattr(now, field)))
        yield self._gauge("headrace:open_requests", "Requests with a reader.", float(self._llm.num_open))
        yield self._counter("vllm:corrupted_requests", "Requests whose logits were not finite.", self._num_corrupted)
        yield from self._labelled(now)
        yield from self._distributions()

    def _labelled(self, now: Metrics) -> Iterator[Metric]:
        success = CounterMetricFamily(
            "vllm:request_success", "Sequences that ended, by reason.", labels=(*LABELS, "finished_reason")
        )
        for reason, count in now.num_finished.items():
            success.add_metric((*self._labels, reason), count)
        yield success
        refused = CounterMetricFamily("vllm:admission_rejections", "Refused, by cause.", labels=(*LABELS, "reason"))
        for code, count in self._rejections.items():
            refused.add_metric((*self._labels, code), count)
        yield refused
        responses = CounterMetricFamily("headrace:http_responses", "By route and status.", labels=("route", "status"))
        for (route, status), count in self._responses.items():
            responses.add_metric((route, status), count)
        yield responses
        yield self._cache_info()

    def _cache_info(self) -> Metric:
        layout, resolved = self._llm.engine.layout, self._llm.engine.resolved
        facts = {
            "block_size": str(layout.block_size),
            "num_gpu_blocks": str(layout.num_blocks - 1),
            "enable_prefix_caching": str(resolved.scheduler.enable_prefix_caching),
            "cache_dtype": resolved.kv_cache_dtype,
        }
        info = GaugeMetricFamily("vllm:cache_config_info", "The cache in labels.", labels=(*LABELS, *facts))
        info.add_metric((*self._labels, *facts.values()), 1.0)
        return info

    def _distributions(self) -> Iterator[Metric]:
        tokens, counts = self._flight.token_counts, self._histograms["vllm:iteration_tokens_total"]
        while tokens:
            counts.add(float(tokens.popleft()))
        for name, (_, text) in HISTOGRAMS.items():
            buckets, total = self._histograms[name].read()
            family = HistogramMetricFamily(name, text, labels=LABELS)
            family.add_metric(self._labels, buckets, total)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family
