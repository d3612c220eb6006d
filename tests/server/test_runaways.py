"""Templates that never end, and other work beside the event loop that takes too long: nobody else waits for it."""

import asyncio
import threading
import time

import pytest
from tests.engine import toys
from tests.server.inside import engine, within

from headrace.engine.chat import ChatTemplate
from headrace.server.beside import Beside
from headrace.words.errors import RequestError

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(9) %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}"
GROWS = "{% set ns = namespace(s=START) %}{% for i in range(99) %}{% set ns.s = NEXT %}{% endfor %}{{ ns.s }}"
RUNAWAYS = {
    "loops in loops": LOOPS,
    "a macro that calls itself twice": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for x in [1] recursive %}{{ loop([1, 2, 3]) }}{% endfor %}",
    "a filter in a loop": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "a sort in a loop": "{% for i in range(9999) %}{{ (range(9999) | list + range(9999) | list) | sort }}{% endfor %}",
    "text joined to itself": GROWS.replace("START", "'ab'").replace("NEXT", "ns.s ~ ns.s"),
    "text added to itself": GROWS.replace("START", "'ab'").replace("NEXT", "ns.s + ns.s"),
    "text in itself": GROWS.replace("START", "'aaaa'").replace("NEXT", "ns.s.replace('a', ns.s)"),
    "text between itself": GROWS.replace("START", "'aaaa'").replace("NEXT", "ns.s | join(ns.s)"),
    "a list added to itself": GROWS.replace("START", "[1]").replace("NEXT", "ns.s + ns.s"),
    "a number times itself": GROWS.replace("START", "3").replace("NEXT", "ns.s * ns.s"),
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a long text": "{{ 'a' * 9999999999 }}",
    "a wide text": "{{ 'a'.center(9999999999) }}",
    "a wide format": "{{ '%9999999999d' % 1 }}",
    "a wide format by a filter": "{{ '%9999999999d' | format(1) }}",
    "a wide format by a method": "{{ '{:9999999999}'.format(1) }}",
    "a precise number": "{{ 1.5 | round(999999999, 'ceil') }}",
    "a long range": "{{ range(10 ** 12) | list }}",
}


@pytest.mark.parametrize("name", RUNAWAYS)
def test_a_template_that_never_ends_is_refused_soon(name):
    template = ChatTemplate(RUNAWAYS[name], toys.bytewise())
    started_s = time.thread_time()
    with pytest.raises(RequestError, match="chat template"):
        template.render(USER)
    assert time.thread_time() - started_s < 3


def test_a_long_conversation_has_as_many_steps_as_it_needs():
    source = "{% for m in messages %}{% for w in m.content.split() %}{{ w | trim | upper }} {% endfor %}{% endfor %}"
    messages = [{"role": "user", "content": "a word and one more " * 200}] * 100
    assert ChatTemplate(source, toys.bytewise()).render(messages).text.count("WORD") == 20_000


def test_twenty_runaway_templates_do_not_keep_a_chat_waiting():
    source = toys.TEMPLATE + "{% if messages[0].content == 'run' %}" + LOOPS + "{% endif %}"
    made = engine(others={"chat_template": source})

    async def work(c):
        bad = {"messages": [{"role": "user", "content": "run"}]}
        runaways = [asyncio.create_task(c.post(CHAT, bad)) for _ in range(20)]
        await asyncio.sleep(0.05)
        started_s = time.monotonic()
        await c.chat(max_tokens=1)
        return time.monotonic() - started_s, [await task for task in runaways]

    took_s, refused = within(work, made, seconds=60)
    assert took_s < 10 and {response.status_code for response in refused} == {400}
    assert all("more steps" in response.text for response in refused)


def test_work_that_takes_too_long_is_ended_and_its_thread_replaced():
    def endless():
        while True:
            pass

    async def work():
        before = threading.active_count()
        beside = Beside(2, "test")
        ends = await asyncio.gather(*(beside.run(endless, 0.1) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(end, TimeoutError) for end in ends)
        assert await beside.run(lambda: 5, 5) == 5
        async with asyncio.timeout(5):
            while threading.active_count() > before + 2:
                await asyncio.sleep(0.01)
        beside.close()

    asyncio.run(work())


def test_work_that_stands_in_c_is_left_behind():
    async def work():
        gate = threading.Event()
        beside = Beside(1, "test")
        with pytest.raises(TimeoutError):
            await beside.run(gate.wait, 0.05)
        assert await beside.run(lambda: 5, 5) == 5
        gate.set()
        beside.close()

    asyncio.run(work())


def test_a_text_full_of_special_tokens_is_broken_once():
    template = ChatTemplate(toys.TEMPLATE, toys.bytewise())
    started_s = time.thread_time()
    template.render([{"role": "user", "content": "<|end|>" * 100_000}])
    assert time.thread_time() - started_s < 5
