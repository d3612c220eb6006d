"""OpenTelemetry: one span for each request, its life as events, below the caller's span."""

import asyncio
import sys
import time

import pytest
from tests.engine.fakes import FakeExecutor
from tests.server.inside import HELLO, engine, within

from headrace.cli.app import run
from headrace.server.spans import NoSpans, TracedSpans, make_spans

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(work, made=None):
    """What `work` gives, and the spans that came of it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    result = within(work, made, spans=TracedSpans(provider, "toy"))
    return result, exporter.get_finished_spans()


def test_a_request_is_a_span_with_its_life_as_events():
    before_ns = time.time_ns()
    answer, (span,) = traced(lambda c: c.chat(max_tokens=5, ignore_eos=True))
    assert span.name == "chat toy" and span.parent is None and span.status.is_ok
    assert [event.name for event in span.events] == ["waiting", "running", "finished"]
    assert all(event.attributes["where"] for event in span.events)
    assert before_ns <= span.start_time <= span.events[0].timestamp <= span.events[-1].timestamp <= time.time_ns()
    told = span.attributes
    assert told["gen_ai.response.id"] == answer["id"] and list(told["gen_ai.response.finish_reasons"]) == ["length"]
    assert told["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == 5 and told["headrace.time_to_first_token_s"] > 0


def test_a_traceparent_is_the_parent_and_only_of_its_own_request():
    async def work(c):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"}
        body = {"model": "toy", "messages": HELLO, "max_tokens": 2}
        await asyncio.gather(c.post(CHAT, body, headers=headers), c.post(CHAT, body), c.post("/v1/messages", body))
        await c.post(CHAT, body, headers={"traceparent": "nonsense"})

    _, spans = traced(work)
    parents = [span.parent and (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") for span in spans]
    assert sorted(parents, key=str) == sorted([(TRACE, PARENT), None, None, None], key=str)


def test_a_caller_that_is_not_sampled_has_no_span():
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    _, spans = traced(lambda c: c.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers=headers))
    assert spans == ()


def test_a_bad_end_is_the_span_s():
    made = engine(FakeExecutor(poison=lambda admission: True))
    response, (span,) = traced(lambda c: c.post(CHAT, {"messages": HELLO, "max_tokens": 2}), made)
    assert response.status_code == 500 and not span.status.is_ok and "finite" in span.status.description


def test_each_prompt_has_a_span_and_each_choice_its_events():
    _, spans = traced(lambda c: c.complete(["a", "b"], n=2, max_tokens=1, temperature=1))
    assert len(spans) == 2 and [e.attributes["choice"] for e in spans[0].events] == [0, 0, 0, 1, 1, 1]


def test_a_vector_has_a_span_too():
    _, (span,) = traced(lambda c: c.post("/v1/embeddings", {"input": "a"}))
    assert span.name == "embeddings toy" and "gen_ai.request.temperature" not in span.attributes


def test_a_collector_that_is_not_there_holds_nothing_up():
    spans = make_spans("http://127.0.0.1:9/v1/traces", "toy")
    within(lambda c: c.chat(max_tokens=1), spans=spans)


def test_without_an_endpoint_nothing_of_it_is_imported():
    assert isinstance(make_spans(None, "toy"), NoSpans)


def test_a_missing_extra_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert run(["serve", "no-such-model", "--port", "0", "--otlp-traces-endpoint", "http://127.0.0.1:9"]) == 1
    text = capsys.readouterr().err
    assert "headrace[otel]" in text and len(text.splitlines()) == 1
