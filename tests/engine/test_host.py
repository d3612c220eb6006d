"""The core in its thread: streams, cancellation, death, back-pressure, and no work when there is none."""

import asyncio
import time

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.engine.host import AsyncLLM
from headrace.llm import LLM
from headrace.words.errors import EngineDeadError, QueueFullError, RequestError
from headrace.words.params import PoolingParams, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)
LONG = SamplingParams(max_tokens=50)
EXPECTED = LLM.from_engine(fakes.engine()).generate("hello", GREEDY, use_tqdm=False)[0].outputs[0]


def within(work, engine=None, seconds=20):
    """Runs `await work(AsyncLLM)` and shuts the engine down."""

    async def body():
        llm = AsyncLLM(engine or fakes.engine())
        try:
            return await asyncio.wait_for(work(llm), seconds)
        finally:
            llm.shutdown()

    return asyncio.run(body())


async def collect(llm: AsyncLLM, *args, **options) -> list:
    return [output async for output in llm.generate(*args, **options)]


def slow(seconds: float = 0.005, **hooks) -> FakeExecutor:
    return FakeExecutor(on_sample=lambda plan: time.sleep(seconds), **hooks)


@pytest.mark.covers("D35", "D36")
@pytest.mark.parametrize("others", [{}, {"async_scheduling": True}], ids=["in order", "overlap"])
def test_a_stream_is_the_offline_answer_in_pieces(others):
    deltas = within(lambda llm: collect(llm, "hello", GREEDY, kind="delta"), fakes.engine(others=others))
    assert "".join(o.outputs[0].text for o in deltas) == EXPECTED.text
    assert [i for o in deltas for i in o.outputs[0].token_ids] == EXPECTED.token_ids
    assert [o.finished for o in deltas] == [False] * (len(deltas) - 1) + [True]


def test_without_delta_each_output_is_the_whole_so_far():
    outputs = within(lambda llm: collect(llm, "hello", GREEDY))
    assert outputs[-1].outputs[0].text == EXPECTED.text
    texts = [o.outputs[0].text for o in outputs]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))


def test_who_wants_the_end_only_is_told_once():
    (output,) = within(lambda llm: collect(llm, "hello", GREEDY, kind="final"))
    assert output.finished and output.outputs[0].text == EXPECTED.text


def test_many_streams_do_not_mix():
    async def work(llm):
        params = [SamplingParams(seed=i, max_tokens=8) for i in range(40)]
        return await asyncio.gather(*(collect(llm, f"prompt {i}", p, kind="delta") for i, p in enumerate(params)))

    alone = LLM.from_engine(fakes.engine()).generate(
        [f"prompt {i}" for i in range(40)], [SamplingParams(seed=i, max_tokens=8) for i in range(40)], use_tqdm=False
    )
    streamed = within(work)
    joined = ["".join(o.outputs[0].text for o in outputs) for outputs in streamed]
    assert joined == [output.outputs[0].text for output in alone]


def test_tokens_that_come_while_the_reader_is_busy_are_one_delta():
    async def work(llm):
        outputs = []
        async for output in llm.generate("hello", GREEDY, kind="delta"):
            outputs.append(output)
            await asyncio.sleep(0.05)
        return outputs

    outputs = within(work)
    assert len(outputs) <= 4 and sum(len(o.outputs[0].token_ids) for o in outputs) == 8


@pytest.mark.covers("D38")
@pytest.mark.parametrize("how", ["leave", "cancel"])
def test_a_reader_that_goes_away_aborts_its_request_and_nobody_else(how):
    engine = fakes.engine(slow())

    async def leave(llm):
        stream = llm.generate("goodbye", SamplingParams(max_tokens=50))
        await anext(stream)
        await stream.aclose()

    async def work(llm):
        staying = asyncio.create_task(collect(llm, "hello", GREEDY))
        going = asyncio.create_task(leave(llm) if how == "leave" else collect(llm, "bye", LONG))
        await asyncio.sleep(0.03)
        going.cancel()
        await asyncio.wait([going])
        kept = (await staying)[-1]
        while engine.core.scheduler.num_running:
            await asyncio.sleep(0.005)
        return kept, llm.num_open, llm.get_metrics()

    kept, num_open, metrics = within(work, engine)
    assert kept.outputs[0].token_ids == EXPECTED.token_ids and num_open == 0
    assert metrics.num_finished["abort"] == 1 and metrics.cache_usage == 0


@pytest.mark.covers("E11", "D38")
def test_an_abort_by_name_ends_every_stream_of_that_name_with_a_final_output():
    async def work(llm):
        streams = [asyncio.create_task(collect(llm, "hello", SamplingParams(max_tokens=55), name)) for name in "aab"]
        await asyncio.sleep(0.03)
        llm.abort("a")
        llm.abort("nobody")
        return await asyncio.gather(*streams)

    ends = [outputs[-1].outputs[0].finish_reason for outputs in within(work, fakes.engine(slow()))]
    assert ends == ["abort", "abort", "length"]


def test_the_death_of_the_engine_ends_every_stream_with_its_root_cause():
    engine = fakes.engine(slow())

    async def work(llm):
        streams = [asyncio.create_task(collect(llm, "hello", SamplingParams(max_tokens=50))) for _ in range(4)]
        await asyncio.sleep(0.03)
        assert not llm.is_dead
        engine.core.scheduler.schedule = lambda: {}["the books"]
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert llm.is_dead
        with pytest.raises(EngineDeadError, match="KeyError"):
            await collect(llm, "hello", GREEDY)
        return ends

    for end in within(work, engine):
        assert isinstance(end, EngineDeadError) and end.http_status == 503
        assert str(end) == "the engine stopped: KeyError: 'the books'" and isinstance(end.__cause__, KeyError)


def test_shutting_down_ends_open_streams_and_twice_is_once():
    executor = slow()

    async def work(llm):
        stream = asyncio.create_task(collect(llm, "hello", SamplingParams(max_tokens=50)))
        await asyncio.sleep(0.02)
        llm.shutdown()
        llm.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await stream

    within(work, fakes.engine(executor))


@pytest.mark.covers("D3")
def test_a_bad_request_raises_in_its_own_stream_only():
    async def work(llm):
        good = asyncio.create_task(collect(llm, "hello", GREEDY))
        with pytest.raises(RequestError, match="temperature"):
            await collect(llm, "hello", SamplingParams(temperature=-1))
        with pytest.raises(RequestError, match="prompt"):
            await collect(llm, "", GREEDY)
        return await good

    assert within(work)[-1].outputs[0].token_ids == EXPECTED.token_ids


@pytest.mark.parametrize("options", [{"kind": "all"}, {"request_id": 5}, {"arrival_s": "now"}], ids=str)
def test_options_that_are_none_are_refused_and_open_nothing(options):
    async def scenario(llm):
        with pytest.raises(RequestError):
            await collect(llm, "hi", SamplingParams(max_tokens=2), **options)
        return llm.num_open

    assert within(scenario) == 0


@pytest.mark.covers("T2", "D37")
def test_a_prompt_that_never_fits_is_one_finished_output():
    (output,) = within(lambda llm: collect(llm, "x" * 99, GREEDY))
    assert output.finished and output.outputs[0].finish_reason == "prompt_length_exceeded"


@pytest.mark.parametrize("limit", [{"max_num_queued_requests": 2}, {"max_num_queued_tokens": 20}])
def test_a_full_queue_refuses_and_may_be_tried_again(limit):
    engine = fakes.engine(slow(0.02), others=limit, max_num_seqs=1)

    async def work(llm):
        open_streams = []
        for _ in range(3):
            open_streams.append(asyncio.create_task(collect(llm, [*b"hi there"], GREEDY)))
            await asyncio.sleep(0.03)
        with pytest.raises(QueueFullError, match="is full; try again later"):
            await collect(llm, [*b"hi there"], GREEDY)
        await asyncio.gather(*open_streams)
        return await collect(llm, [*b"hi there"], GREEDY)

    assert within(work, engine)[-1].finished


def test_a_long_text_is_tokenized_beside_the_event_loop():
    async def work(llm):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        clock = asyncio.create_task(tick())
        (output,) = await collect(llm, "a long text " * 40_000, GREEDY)
        clock.cancel()
        return output, ticks

    output, ticks = within(work)
    assert output.outputs[0].finish_reason == "prompt_length_exceeded" and ticks > 3


def test_encode_gives_a_vector():
    output = within(lambda llm: llm.encode("hello", PoolingParams()))
    assert output.finished and len(output.embedding) == fakes.HIDDEN


@pytest.mark.covers("T27")
def test_an_idle_engine_uses_no_processor_time():
    async def work(llm):
        await collect(llm, "hello", GREEDY)
        before = time.process_time()
        await asyncio.sleep(0.2)
        return time.process_time() - before

    assert within(work) < 0.05


def test_one_engine_serves_several_event_loops_in_turn():
    llm = AsyncLLM(fakes.engine())
    try:
        texts = {asyncio.run(collect(llm, "hello", GREEDY))[-1].outputs[0].text for _ in range(2)}
    finally:
        llm.shutdown()
    assert texts == {EXPECTED.text}
