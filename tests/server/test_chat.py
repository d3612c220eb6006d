"""POST /v1/chat/completions to the letter, whole and streamed."""

import asyncio

import pytest
from tests.server.inside import HELLO, engine, joined, speaking, within

PATH = "/v1/chat/completions"


def test_an_answer_has_openai_s_shape():
    answer = within(lambda c: c.chat(max_tokens=6))
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-") and answer["model"] == "toy"
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done():
    events = within(
        lambda c: c.events(PATH, messages=HELLO, temperature=0, max_tokens=6, stream_options={"include_usage": True})
    )
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {e["object"] for e in chunks} == {"chat.completion.chunk"} and len({e["id"] for e in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["delta"] == {} and chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert all(e["choices"][0]["finish_reason"] is None and e["usage"] is None for e in chunks[:-2])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6


def test_without_stream_options_no_chunk_speaks_of_usage():
    events = within(lambda c: c.events(PATH, messages=HELLO, max_tokens=3))
    assert not any("usage" in e for e in events[:-1])


def test_continuous_usage_counts_up():
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = within(lambda c: c.events(PATH, messages=HELLO, max_tokens=5, stream_options=options))
    counts = [e["usage"]["completion_tokens"] for e in events[:-1]]
    assert counts == sorted(counts) and counts[-1] == 5


def test_n_choices_are_streamed_each_under_its_index_and_equal_the_whole_answer():
    async def work(c):
        body = {"n": 3, "seed": 5, "max_tokens": 8, "temperature": 1}
        whole = await c.chat(**body)
        events = await c.events(PATH, messages=HELLO, **body)
        return whole, events

    whole, events = within(work)
    texts = {i: "" for i in range(3)}
    roles, ends = [], []
    for event in events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        roles += [choice["index"]] if "role" in choice["delta"] else []
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert sorted(roles) == sorted(ends) == [0, 1, 2]
    assert [texts[i] for i in range(3)] == [c["message"]["content"] for c in whole["choices"]]
    assert len(set(texts.values())) > 1


def test_the_same_seed_gives_the_same_answer():
    async def work(c):
        return [(await c.chat(seed=9, temperature=1, max_tokens=8))["choices"] for _ in range(2)]

    first, second = within(work)
    assert first == second


def test_logprobs_carry_true_bytes_and_as_many_alternatives_as_asked():
    answer = within(lambda c: c.chat(max_tokens=4, logprobs=True, top_logprobs=2), engine(speaking("é!")))
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content[:3]] == [[0xC3], [0xA9], [0x21]]
    assert all(len(entry["top_logprobs"]) >= 2 and entry["logprob"] <= 0 for entry in content)


def test_streamed_logprobs_are_those_of_the_whole_answer():
    async def work(c):
        body = {"max_tokens": 6, "logprobs": True, "top_logprobs": 1}
        whole = await c.chat(**body)
        events = await c.events(PATH, messages=HELLO, temperature=0, **body)
        return whole, [x for e in events[:-1] for x in (e["choices"][0]["logprobs"] or {"content": []})["content"]]

    whole, streamed = within(work)
    assert streamed == whole["choices"][0]["logprobs"]["content"]


def test_a_stop_string_ends_the_answer_and_is_named():
    answer = within(lambda c: c.chat(stop=["lo w", "zzz"]), engine(speaking("hello world")))
    assert answer["choices"][0]["message"]["content"] == "hel"
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["choices"][0]["stop_reason"] == "lo w"


def test_max_tokens_is_the_room_left_unless_told_otherwise():
    answer = within(lambda c: c.chat(ignore_eos=True))
    usage = answer["usage"]
    assert usage["total_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_an_error_names_the_field_that_was_sent(fields, name):
    async def work(c):
        return await c.post(PATH, {"messages": HELLO, **fields})

    error = within(work).json()["error"]
    assert error["param"] == name and error["message"].startswith(f"{name}: ")


def test_max_completion_tokens_is_an_alias():
    answer = within(lambda c: c.chat(max_completion_tokens=3, max_tokens=9))
    assert answer["usage"]["completion_tokens"] == 3


def test_more_tokens_than_there_is_room_for_are_capped_and_named():
    answer = within(lambda c: c.chat(max_tokens=10_000, ignore_eos=True))
    assert answer["usage"]["total_tokens"] == 512
    assert "10000 asked" in answer["warnings"][0] and "capped" in answer["warnings"][0]


def test_unknown_fields_are_named_and_change_nothing():
    async def work(c):
        plain = await c.chat(max_tokens=4)
        odd = await c.chat(max_tokens=4, frobnicate=1, metadata={"a": "b"}, store=False, service_tier="auto")
        events = await c.events(PATH, messages=HELLO, temperature=0, max_tokens=4, frobnicate=1)
        return plain, odd, events

    plain, odd, events = within(work)
    assert odd["choices"] == plain["choices"] and odd["warnings"] == ["frobnicate: unknown field, ignored"]
    assert events[0]["warnings"] == odd["warnings"] and joined(events) == plain["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"chat_template": "{{ messages }}"},
        {"documents": [{"text": "x"}]},
        {"reasoning_effort": "high"},
        {"store": True},
        {"audio": {"voice": "x"}},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_is_not_built_is_refused_by_name(asked):
    response = within(lambda c: c.post(PATH, {"messages": HELLO, **asked}))
    assert response.status_code == 400 and response.json()["error"]["param"] == next(iter(asked))


def test_what_asks_for_nothing_passes():
    body = {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": True}
    assert "warnings" not in within(lambda c: c.chat(max_tokens=2, **body))


def test_an_answer_that_was_begun_is_continued():
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]

    async def work(c):
        begun = await c.chat(messages=messages, continue_final_message=True, max_tokens=4, return_token_ids=True)
        return begun["prompt_token_ids"], c.engine.tokenizer

    ids, tokenizer = within(work)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant\nWell")


def test_token_ids_are_told_when_asked():
    async def work(c):
        whole = await c.chat(max_tokens=5, return_token_ids=True)
        events = await c.events(PATH, messages=HELLO, temperature=0, max_tokens=5, return_token_ids=True)
        return whole, events

    whole, events = within(work)
    streamed = [i for e in events[:-1] for i in e["choices"][0].get("token_ids", [])]
    assert streamed == whole["choices"][0]["token_ids"] and len(streamed) == 5
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_a_template_that_takes_for_ever_is_given_up():
    endless = "{% for i in range(99999) %}{% for j in range(9) %}{{ messages[0].content * 9 }}{% endfor %}{% endfor %}"
    made = engine(others={"chat_template": endless})

    async def work(c):
        slow = asyncio.create_task(c.post(PATH, {"messages": HELLO}))
        await asyncio.sleep(0.02)
        health = await c.get("/health")
        return health, await slow

    health, refused = within(work, made, template_timeout_s=0.05)
    assert health.status_code == 200
    assert refused.status_code == 400 and "0.05 s" in refused.json()["error"]["message"]


def test_a_model_without_a_template_says_so_and_completes_all_the_same():
    made = engine(others={"chat_template": None})

    async def work(c):
        return await c.post(PATH, {"messages": HELLO}), await c.complete(max_tokens=2)

    refused, completed = within(work, made)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "chat_template"
    assert completed["usage"]["completion_tokens"] == 2
