"""Streams: their pieces are the whole, waiting tokens are one delta, and readers that leave or stall hurt nobody."""

import asyncio
import faulthandler
import time

import pytest
from tests.engine.fakes import FakeExecutor
from tests.server.inside import HELLO, Inside, engine, within
from tests.server.raw import RawClient

from headrace.server.watch import Watchdog

CHAT = "/v1/chat/completions"


def slow(seconds=0.002, **more):
    return engine(FakeExecutor(on_sample=lambda plan: time.sleep(seconds)), **more)


def body(**more):
    return {"messages": HELLO, "temperature": 0, "max_tokens": 30, "stream": True, "ignore_eos": True, **more}


def text(events):
    return "".join(c["delta"].get("content", "") for e in events if e != "[DONE]" for c in e["choices"])


async def until(condition, seconds=1.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def used_blocks(c: Inside) -> int:
    return c.engine.core.scheduler.stats().num_used_blocks


def test_200_clients_that_leave_in_mid_stream_give_their_blocks_back_and_disturb_nobody():
    made = slow(max_num_seqs=256, num_blocks=6_000, max_num_batched_tokens=8_192)

    async def work(c):
        alone = await RawClient(c.app, CHAT, body(max_tokens=60)).run()
        staying = [RawClient(c.app, CHAT, body(max_tokens=60)) for _ in range(8)]
        leaving = [
            RawClient(
                c.app,
                CHAT,
                body(max_tokens=400, seed=i, temperature=1),
                lambda r: r.leave() if len(r.chunks) > 2 else None,
            )
            for i in range(200)
        ]
        stay = [asyncio.create_task(client.run()) for client in staying]
        leave = [asyncio.create_task(client.run()) for client in leaving]
        await asyncio.wait(leave)
        await asyncio.wait(stay)
        await until(lambda: used_blocks(c) == 0)
        return text(alone.events), [text(s.events) for s in staying], leaving, c.engine.metrics.snapshot()

    alone, stayed, left, metrics = within(work, made)
    assert stayed == [alone] * 8 and len(alone) > 30
    assert all(client.status == 200 and not client.is_complete for client in left)
    assert metrics.num_finished["abort"] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_leaves_nothing_behind(stream):
    made = slow(0.02, max_num_seqs=1)

    async def work(c):
        first = asyncio.create_task(RawClient(c.app, CHAT, body(max_tokens=10)).run())
        await until(lambda: used_blocks(c) > 0)
        waiting = RawClient(c.app, CHAT, body(stream=stream))
        task = asyncio.create_task(waiting.run())
        await until(lambda: c.service.llm.num_open == 2)
        waiting.leave()
        await asyncio.wait_for(task, 1)
        await first
        await until(lambda: used_blocks(c) == 0)
        return waiting.chunks, c.engine.metrics.snapshot().num_finished["abort"], c.service.llm.num_open

    assert within(work, made) == ([], 1, 0)


def test_an_answer_that_nobody_waits_for_is_not_computed_to_its_end():
    async def work(c):
        client = RawClient(c.app, CHAT, body(stream=False, max_tokens=400))
        task = asyncio.create_task(client.run())
        await asyncio.sleep(0.05)
        client.leave()
        await asyncio.wait_for(task, 1)
        await c.settle()
        return c.engine.metrics.snapshot().num_generated_tokens

    assert within(work, slow()) < 200


def test_tokens_that_wait_for_a_slow_reader_are_sent_as_one_delta():
    async def work(c):
        client = RawClient(c.app, CHAT, body(), lambda r: r.pause() if len(r.chunks) == 1 else None)
        task = asyncio.create_task(client.run())
        await until(lambda: len(client.chunks) == 1)
        await c.settle()
        client.resume()
        await task
        whole = await c.chat(max_tokens=30, ignore_eos=True)
        return client, whole["choices"][0]["message"]["content"]

    client, whole = within(work, slow())
    assert text(client.events) == whole and len(client.chunks) <= 4


def test_a_reader_that_stalls_is_cut_and_its_request_aborted():
    async def work(c):
        watchdog = Watchdog(c.service)
        stalled = RawClient(c.app, CHAT, body(max_tokens=400), lambda r: r.pause())
        good = RawClient(c.app, CHAT, body(max_tokens=60))
        tasks = [asyncio.create_task(client.run()) for client in (stalled, good)]
        await until(lambda: bool(stalled.chunks))
        assert watchdog.look(0.0) is None and stalled.num_cuts == 0
        await asyncio.sleep(0.15)
        watchdog.look(0.1)
        await asyncio.wait_for(asyncio.gather(*tasks), 3)
        await c.settle()
        return stalled.num_cuts, good.is_complete, c.engine.metrics.snapshot().num_finished

    cuts, is_complete, finished = within(work, slow(), send_timeout_s=0.1)
    assert cuts == 1 and is_complete and finished["abort"] == 1 and finished["length"] == 1


def test_a_prompt_that_fails_before_its_first_token_has_a_status_of_its_own():
    made = engine(FakeExecutor(poison=lambda admission: True))

    async def work(c):
        return await RawClient(c.app, CHAT, body()).run()

    client = within(work, made)
    assert client.status == 500 and b"finite" in client.chunks[0]


def test_a_stream_that_fails_later_ends_with_one_error_event_and_done():
    made = slow()

    def die(plan):
        if plan.step > 20:
            raise MemoryError("no memory")

    made.core.executor.on_forward = die

    async def work(c):
        return await RawClient(c.app, CHAT, body(max_tokens=100)).run()

    client = within(work, made)
    assert client.status == 200 and client.is_complete and client.events[-1] == "[DONE]"
    errors = [e for e in client.events if e != "[DONE]" and "error" in e]
    assert len(errors) == 1 and client.events[-2] == errors[0] and "MemoryError" in errors[0]["error"]["message"]


def test_a_step_that_fails_once_is_not_seen():
    made = slow()
    failures = [MemoryError("once")]

    def fail(plan):
        if plan.step > 20 and failures:
            raise failures.pop()

    made.core.executor.on_forward = fail

    async def work(c):
        client = await RawClient(c.app, CHAT, body(max_tokens=40)).run()
        return client, await c.chat(max_tokens=40, ignore_eos=True)

    client, whole = within(work, made)
    assert not failures and text(client.events) == whole["choices"][0]["message"]["content"]


def test_a_small_cache_preempts_and_nobody_sees_it():
    async def work(c):
        bodies = [body(messages=[{"role": "user", "content": f"prompt {i}"}], max_tokens=12) for i in range(24)]
        clients = [RawClient(c.app, CHAT, each) for each in bodies]
        await asyncio.gather(*(client.run() for client in clients))
        return [text(client.events) for client in clients], c.engine.metrics.snapshot().num_preemptions

    roomy, none = within(work, engine(num_blocks=4_000))
    tight, some = within(work, engine(num_blocks=24))
    assert tight == roomy and none == 0 and some > 0


def test_a_step_that_stands_still_is_a_wedge_and_time_without_work_is_not(monkeypatch):
    hold = {"seconds": 0.0}
    made = engine(FakeExecutor(on_sample=lambda plan: time.sleep(hold["seconds"])))

    async def work(c):
        watchdog = Watchdog(c.service)
        assert watchdog.look(1e6) is None
        await c.chat(max_tokens=2)
        assert watchdog.look(1e6) is None
        hold["seconds"] = 0.4
        task = asyncio.create_task(c.post(CHAT, {"messages": HELLO, "max_tokens": 1}))
        await asyncio.sleep(0.1)
        looks = [watchdog.look(0.6) for _ in range(3)]
        return looks, await task, await c.get("/health")

    armed = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *seconds, **more: armed.append(seconds))
    looks, response, health = within(work, made, wedge_timeout_s=1.0)
    assert armed == [], "a look by itself leaves no timer that would end this process"
    assert looks[:2] == [None, None] and "no step ended for 1 s" in looks[2]
    assert response.status_code == 500 and health.status_code == 503
