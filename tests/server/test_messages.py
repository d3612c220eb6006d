"""Anthropic's protocol over the same engine."""

from tests.server.inside import HELLO, done, engine, speaking, within

PATH = "/v1/messages"
BODY = {"model": "toy", "max_tokens": 6, "temperature": 0, "messages": HELLO}


async def create(c, **more):
    return done(await c.post(PATH, {**BODY, **more}))


def test_a_last_answer_without_text_is_as_good_as_none():
    async def work(c):
        body = {"model": "toy", "max_tokens": 3, "temperature": 0}
        user, blank = {"role": "user", "content": "hello"}, {"role": "assistant", "content": " "}
        answers = [await c.post("/v1/messages", {**body, "messages": m}) for m in ([user], [user, blank], [blank])]
        return [answer.json() for answer in answers]

    plain, blank, alone = within(work)
    assert plain["content"] == blank["content"] and alone["type"] == "message"


def test_a_message_has_anthropic_s_shape_and_the_chat_route_s_text():
    async def work(c):
        return await create(c), await c.chat(max_tokens=6)

    message, chat = within(work)
    assert message["type"] == "message" and message["role"] == "assistant" and message["id"].startswith("msg_")
    assert message["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert message["stop_reason"] == "max_tokens" and message["usage"]["output_tokens"] == 6


def test_a_system_text_and_blocks_stand_before_the_turns():
    async def work(c):
        text = await create(c, system="be brief")
        blocks = await create(c, system=[{"type": "text", "text": "be brief"}])
        chat = await c.chat(messages=[{"role": "system", "content": "be brief"}, *HELLO], max_tokens=6)
        return text["content"], blocks["content"], chat["choices"][0]["message"]["content"]

    text, blocks, chat = within(work)
    assert text == blocks == [{"type": "text", "text": chat}]


def test_stop_reasons():
    async def work(c):
        ended = await create(c, max_tokens=50)
        stopped = await create(c, max_tokens=50, stop_sequences=["lo"])
        return ended, stopped

    ended, stopped = within(work, engine(speaking("hello")))
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lo")
    assert stopped["content"][0]["text"] == "hel"


def test_a_stream_has_all_events_in_order_and_the_whole_text():
    async def work(c):
        return await create(c), await c.events(PATH, **BODY)

    whole, events = within(work)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(e["delta"]["text"] for e in events[2:-3]) == whole["content"][0]["text"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens" and events[-2]["usage"]["output_tokens"] == 6


def test_tokens_are_counted_as_they_would_be_used():
    async def work(c):
        counted = done(await c.post(f"{PATH}/count_tokens", {"model": "toy", "messages": HELLO}))
        return counted["input_tokens"], (await create(c))["usage"]

    counted, usage = within(work)
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_begun_answer_is_continued():
    async def work(c):
        turns = [*HELLO, {"role": "assistant", "content": "Well"}]
        return await create(c, messages=turns), await c.chat(messages=turns, continue_final_message=True, max_tokens=6)

    message, chat = within(work)
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]


def test_errors_have_anthropic_s_shape_and_openai_s_fields():
    async def work(c):
        bad = await c.post(PATH, {**BODY, "temperature": -1})
        unknown = await c.post(PATH, {**BODY, "model": "gpt"})
        no_room = await c.post(PATH, {"model": "toy", "messages": HELLO})
        tools = await c.post(PATH, {**BODY, "tools": [{"name": "f", "input_schema": {}}]})
        role = await c.post(PATH, {**BODY, "messages": [{"role": "system", "content": "x"}]})
        return bad, unknown, no_room, tools, role

    bad, unknown, no_room, tools, role = within(work)
    assert [r.status_code for r in (bad, unknown, no_room, tools, role)] == [400, 404, 400, 400, 400]
    shaped = bad.json()
    assert shaped["type"] == "error" and shaped["error"]["type"] == "invalid_request_error"
    assert shaped["error"]["param"] == "temperature" and shaped["request_id"] == bad.headers["x-request-id"]
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert no_room.json()["error"]["param"] == "max_tokens" and tools.json()["error"]["param"] == "tools"
