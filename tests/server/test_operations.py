"""What operators see: health, readiness, metrics, lives of requests, steps, aborts, a full queue, a dead engine."""

import asyncio
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.fakes import FakeExecutor
from tests.server.inside import HELLO, done, engine, read_events, within
from tests.server.raw import RawClient

from headrace.words.errors import EngineDeadError

CHAT = "/v1/chat/completions"


def slow(seconds=0.005, **more):
    return engine(FakeExecutor(on_sample=lambda plan: time.sleep(seconds)), **more)


def held(**more):
    """An engine that stands in its first step until it is let go."""
    gate = threading.Event()
    return engine(FakeExecutor(on_sample=lambda plan: gate.wait(10)), **more), gate


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def are_running(c, number):
    """Whether so many requests are open and each has a token."""
    streams = c.service.llm.streams
    return len(streams) == number and all(stream.state.num_output_tokens for stream in streams)


def start(c, **body):
    return asyncio.create_task(c.post(CHAT, {"messages": HELLO, "max_tokens": 300, "ignore_eos": True, **body}))


def test_a_healthy_server_says_so():
    async def work(c):
        return [done(await c.get(path)) for path in ("/health", "/ready", "/version")]

    health, ready, version = within(work)
    assert health["status"] == "ok" and ready["ready"] is True and version["version"]


def test_models_are_listed_under_every_name():
    async def work(c):
        listed = done(await c.get("/v1/models"))
        one = done(await c.get("/v1/models/org/second"))
        answer = await c.chat(model="org/second", max_tokens=1)
        return listed, one, answer, await c.get("/v1/models/third")

    listed, one, answer, missing = within(work, model_names=("toy", "org/second"))
    assert [m["id"] for m in listed["data"]] == ["toy", "org/second"] and listed["data"][0]["max_model_len"] == 512
    assert listed["data"][0]["default_sampling_params"] == {}
    assert one == listed["data"][1] and answer["model"] == "org/second" and missing.status_code == 404


def test_a_life_can_be_read_while_it_goes_on_and_when_it_is_over():
    async def work(c):
        task = start(c, max_tokens=200, request_id="mine")
        await until(lambda: are_running(c, 1))
        (running,) = done(await c.get("/v1/requests/mine"))["data"]
        listed = done(await c.get("/v1/requests"))["data"]
        await task
        (over,) = done(await c.get("/v1/requests/chatcmpl-mine"))["data"]
        return running, listed, over

    running, listed, over = within(work, slow())
    assert running["status"] == "running" and listed[0]["id"] == running["id"] == "chatcmpl-mine"
    assert [m["to"] for m in running["choices"][0]["timeline"]] == ["waiting", "running"]
    assert over["status"] == "finished" and over["finish_reason"] == "length" and over["num_output_tokens"] == 200
    timeline = over["choices"][0]["timeline"]
    assert [m["to"] for m in timeline] == ["waiting", "running", "finished"] and all(m["where"] for m in timeline)
    assert over["time_to_first_token_s"] > 0 and over["choices"][0]["seed"] is not None


def test_retry_after_is_the_time_in_which_half_of_the_queue_has_begun(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("headrace.server.service.time.monotonic", lambda: now_s[0])

    async def work(c):
        told = [c.service.retry_after_s()]
        monkeypatch.setattr(type(c.engine.core), "num_queued", 40)
        c.service._finish_times_s.extend([100.0, 101.0, 102.0, 103.0])
        for now_s[0] in (104.0, 102.0, 4_000.0):
            told.append(c.service.retry_after_s())
        return told

    assert within(work) == [1, 20, 10, 60]


def test_a_life_tells_the_parts_of_the_prompt_that_each_step_computed():
    made = engine(max_num_batched_tokens=64)

    async def work(c):
        await c.complete([65, 66] * 75, n=2, max_tokens=3, ignore_eos=True, request_id="long")
        (life,) = done(await c.get("/v1/requests/long"))["data"]
        return life, [c.service.flight.chunks(request_id) for request_id in range(4)]

    life, left = within(work, made)
    for choice in life["choices"]:
        chunks, moves = choice["prefill_chunks"], choice["timeline"]
        computed = [position for c in chunks for position in range(c["start"], c["start"] + c["length"])]
        assert computed == list(range(chunks[0]["start"], 150)) and len(chunks) >= 2 - choice["index"]
        assert all(moves[1]["at_s"] <= c["at_s"] and c["took_s"] >= 0 for c in chunks)
    assert life["queue_s"] >= 0 and life["prefill_s"] > 0 and life["decode_s"] > 0
    assert not any(left), "what has ended is forgotten by the recorder"


@pytest.mark.parametrize("name", ["mine", "chatcmpl-mine"])
def test_an_operator_aborts_a_request_and_its_client_is_told(name):
    async def work(c):
        whole = start(c, request_id="mine")
        streamed = start(c, request_id="mine", stream=True)
        other = start(c, max_tokens=30, request_id="yours", temperature=0)
        await until(lambda: are_running(c, 3))
        answer = done(await c.http.delete(f"/v1/requests/{name}"))
        again = await c.http.delete(f"/v1/requests/{name}")
        return answer, again, await whole, await streamed, await other

    answer, again, whole, streamed, other = within(work, slow())
    assert answer["aborted"] == 2
    assert whole.status_code == 499 and whole.json()["error"]["code"] == "aborted"
    events = read_events(streamed.text)
    assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "aborted"
    assert "operator" in events[-2]["error"]["message"]
    assert other.status_code == 200 and again.status_code == 200


def test_an_unknown_request_is_not_found():
    async def work(c):
        return await c.get("/v1/requests/nobody"), await c.http.delete("/v1/requests/nobody")

    assert [r.status_code for r in within(work)] == [404, 404]


def test_a_client_that_goes_away_has_an_end_in_the_books():
    async def work(c):
        task = start(c, request_id="left")
        await until(lambda: are_running(c, 1))
        c.service.llm.streams[0].news.set()
        generation = c.service.llm.streams[0]
        c.service.llm.close(generation)
        await c.settle()
        task.cancel()
        await asyncio.sleep(0.02)
        return done(await c.get("/v1/requests/left"))["data"][0]

    assert within(work, slow())["finish_reason"] == "abort"


def test_the_flight_recorder_has_the_last_steps():
    async def work(c):
        await c.complete([*b"abcdefgh"], max_tokens=5)
        assert (await c.get(f"/v1/steps?last={'9' * 6_000}")).status_code == 200
        return done(await c.get("/v1/steps"))["data"], done(await c.get("/v1/steps?last=2"))["data"]

    steps, last = within(work)
    assert [s["num_tokens"] for s in steps] == [8, 1, 1, 1, 1] and steps[0]["num_prefills"] == 1
    assert steps[0]["num_admissions"] == 1 and all(s["took_s"] >= 0 for s in steps) and last == last[-2:]


def metric(text, name, **labels):
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no {name} with {labels}")


def test_metrics_count_what_happened_under_vllm_s_names():
    async def work(c):
        await c.complete([*b"abcdefgh"], max_tokens=5)
        await c.complete([*b"abcdefgh"], max_tokens=1)
        await c.post(CHAT, {})
        return (await c.get("/metrics")).text

    text = within(work)
    assert metric(text, "vllm:generation_tokens_total", model_name="toy") == 6
    assert metric(text, "vllm:prefix_cache_hits_total") == 4
    assert metric(text, "vllm:request_success_total", finished_reason="length") == 2
    assert metric(text, "vllm:request_success_total", finished_reason="error") == 0
    assert metric(text, "vllm:time_to_first_token_seconds_count") == 2
    assert metric(text, "vllm:inter_token_latency_seconds_count") == 4
    assert metric(text, "vllm:request_generation_tokens_bucket", le="1.0") == 1
    assert metric(text, "vllm:iteration_tokens_total_sum") == 8 + 4 + 4
    assert metric(text, "vllm:num_requests_running") == metric(text, "vllm:kv_cache_usage_perc") == 0
    assert metric(text, "vllm:cache_config_info", block_size="4") == 1
    assert metric(text, "headrace:http_responses_total", route=CHAT, status="400") == 1


def test_waits_are_counted_while_an_answer_is_under_way():
    async def work(c):
        tasks = [start(c, max_tokens=40, n=2)]
        await until(lambda: c.service.llm.streams and c.service.llm.streams[0].state.num_output_tokens > 5)
        during = (await c.get("/metrics")).text
        assert not c.service.llm.streams[0].state.is_finished
        return during, [await task for task in tasks], (await c.get("/metrics")).text

    during, _, after = within(work, slow(0.02))
    gaps, first = "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds"
    assert 2 <= metric(during, f"{gaps}_count") < 78 and metric(during, f"{first}_count") == 1
    assert metric(after, f"{gaps}_count") == 78 and metric(after, f"{gaps}_sum") > 78 * 0.02
    assert metric(after, f"{first}_count") == 1


def test_every_metric_that_dashboards_ask_for_is_there():
    text = within(lambda c: c.get("/metrics")).text
    for name in (
        "num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions prompt_tokens generation_tokens "
        "prefix_cache_queries prefix_cache_hits time_to_first_token_seconds inter_token_latency_seconds "
        "request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds "
        "request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_success "
        "iteration_tokens_total request_prompt_tokens request_generation_tokens cache_config_info corrupted_requests "
        "admission_rejections"
    ).split():
        assert f"# TYPE vllm:{name}" in text, name


def test_a_full_queue_is_503_with_retry_after_and_not_ready():
    made, gate = held(max_num_seqs=1, others={"max_num_queued_requests": 2})

    async def work(c):
        tasks = []
        for number in range(3):
            tasks.append(start(c, max_tokens=2))
            await until(
                lambda number=number: c.service.llm.num_open == number + 1 and c.engine.core.num_queued == number
            )
        refused = [await c.post(CHAT, {"messages": HELLO}), await c.post("/v1/messages", {})]
        ready, health = await c.get("/ready"), await c.get("/health")
        gate.set()
        ends = [await task for task in tasks]
        text = (await c.get("/metrics")).text
        return refused, ready, health, ends, await c.chat(max_tokens=1), text

    (refused, anthropic), ready, health, ends, _, text = within(work, made)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1" and "queue" in refused.text
    assert anthropic.json()["error"]["type"] == "overloaded_error"
    assert ready.status_code == 503 and health.status_code == 200
    assert [end.status_code for end in ends] == [200] * 3
    assert metric(text, "vllm:admission_rejections_total") == 2


def test_a_queue_of_tokens_that_is_full_is_503():
    made, gate = held(max_num_seqs=1, others={"max_num_queued_tokens": 30})

    async def work(c):
        tasks = []
        for number in range(2):
            tasks.append(start(c, max_tokens=2))
            await until(
                lambda number=number: c.service.llm.num_open == number + 1 and c.engine.core.num_queued == number
            )
        refused = await c.post(CHAT, {"messages": HELLO})
        gate.set()
        return refused, [await task for task in tasks]

    refused, ends = within(work, made)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
    assert [end.status_code for end in ends] == [200] * 2


def test_more_continuations_than_the_queue_ever_holds_are_400():
    made = engine(others={"max_num_queued_requests": 4})
    response = within(lambda c: c.post(CHAT, {"messages": HELLO, "n": 5}), made)
    assert response.status_code == 400 and response.json()["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("option", "status", "code"), [("queue_timeout_s", 503, "queue_timeout"), ("request_timeout_s", 504, "timeout")]
)
def test_timeouts_are_told_apart(option, status, code):
    made = slow(0.02, max_num_seqs=1, others={option: 0.15})

    async def work(c):
        first = start(c, max_tokens=30)
        await asyncio.sleep(0.03)
        second = start(c, max_tokens=2)
        return [await first, await second]

    first, second = within(work, made)
    late = second if option == "queue_timeout_s" else first
    assert late.status_code == status and late.json()["error"]["code"] == code


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_wall_clock_that_jumps_ends_nothing(jump_s, monkeypatch):
    made = slow(others={"queue_timeout_s": 5.0, "request_timeout_s": 5.0})

    async def work(c):
        task = start(c, max_tokens=20)
        await asyncio.sleep(0.03)
        now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: now_s + jump_s)
        return await task, await c.chat(max_tokens=1), now_s

    first, second, now_s = within(work, made)
    assert first.status_code == 200 and abs(second["created"] - now_s - jump_s) < 2


def test_while_it_drains_new_work_is_503_and_open_work_ends():
    async def work(c):
        open_one = start(c, max_tokens=100)
        await until(lambda: are_running(c, 1))
        c.service.is_draining = True
        refused, ready = await c.post(CHAT, {"messages": HELLO}), await c.get("/ready")
        return refused, ready, await c.get("/health"), await open_one

    refused, ready, health, finished = within(work, slow())
    assert refused.status_code == ready.status_code == 503 and refused.headers["retry-after"]
    assert health.status_code == 200 and finished.status_code == 200


def test_a_body_that_never_comes_is_told_that_the_server_ends():
    async def work(c):
        client = RawClient(c.app, CHAT, {})
        client.holds_back = True
        task = asyncio.create_task(client.run())
        await until(lambda: c.service.num_inside == 1)
        c.service.is_draining = True
        task.cancel()
        await asyncio.wait_for(task, 5)
        return client.status, b"".join(client.chunks)

    status, told = within(work)
    assert status == 503 and b"shutting down" in told


def test_a_dead_engine_ends_every_request_with_its_cause():
    made = slow()

    async def work(c):
        tasks = [start(c), start(c, stream=True)]
        await until(lambda: are_running(c, 2))
        await asyncio.sleep(0.02)
        made.core.scheduler.schedule = lambda: {}["the books"]
        whole, streamed = [await task for task in tasks]
        return whole, streamed, await c.get("/health"), await c.post(CHAT, {"messages": HELLO})

    whole, streamed, health, later = within(work, made)
    assert whole.status_code == 500 and "KeyError" in whole.json()["error"]["message"]
    events = read_events(streamed.text)
    assert events[-2]["error"]["code"] == "engine_dead" and events[-1] == "[DONE]"
    assert health.status_code == 503 and health.json()["status"] == "dead" and later.status_code == 503


def test_a_row_that_is_not_finite_fails_alone_and_is_counted():
    poisoned = FakeExecutor(poison=lambda admission: admission.sampling.max_tokens == 7)

    async def work(c):
        good = [start(c, temperature=0, max_tokens=20) for _ in range(3)]
        bad = start(c, temperature=0, max_tokens=7)
        return await bad, [(await task).json()["choices"] for task in good], (await c.get("/metrics")).text

    bad, good, text = within(work, engine(poisoned))
    assert bad.status_code == 500 and "finite" in bad.json()["error"]["message"]
    assert good[0] == good[1] == good[2] and metric(text, "vllm:corrupted_requests_total") == 1


def test_an_engine_that_ends_between_check_and_queue_is_503():
    async def work(c):
        c.service.llm.fail(EngineDeadError("gone"))
        return await c.post("/v1/embeddings", {"input": "a"})

    assert within(work).status_code == 503
