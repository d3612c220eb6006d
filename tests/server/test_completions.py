"""POST /v1/completions: all kinds of prompts, echo, scoring, log-probabilities, streams."""

import pytest
from tests.server.inside import engine, speaking, within

PATH = "/v1/completions"


def texts(answer):
    return [choice["text"] for choice in answer["choices"]]


def streamed(events):
    """Text and log-probabilities of each choice of a stream."""
    found = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            text, tokens = found.setdefault(choice["index"], ("", []))
            found[choice["index"]] = (text + choice["text"], tokens + (choice["logprobs"] or {"tokens": []})["tokens"])
    return [found[index] for index in sorted(found)]


def test_an_answer_has_openai_s_shape():
    answer = within(lambda c: c.complete(max_tokens=4))
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["finish_reason"] == "length" and answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 1 and answer["usage"]["completion_tokens"] == 4


def test_text_and_ids_and_lists_of_either_are_the_same_prompts():
    async def work(c):
        ids = c.engine.tokenizer.encode("hello")
        alone = texts(await c.complete("hello", max_tokens=6))
        assert texts(await c.complete(ids, max_tokens=6)) == alone
        assert texts(await c.complete([ids], max_tokens=6)) == alone
        return alone, texts(await c.complete(["hello", "the", "hello"], max_tokens=6))

    alone, several = within(work)
    assert [several[0]] == [several[2]] == alone and several[1] != several[0]


def test_absent_max_tokens_are_sixteen_and_null_is_the_room_left():
    async def work(c):
        return (await c.complete(ignore_eos=True))["usage"], (await c.complete(ignore_eos=True, max_tokens=None))[
            "usage"
        ]

    absent, null = within(work)
    assert absent["completion_tokens"] == 16 and null["total_tokens"] == 512


def test_choices_are_numbered_over_all_prompts():
    answer = within(lambda c: c.complete(["hello", "the"], n=2, temperature=1, seed=3, max_tokens=4))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 16


def test_echo_repeats_the_prompt_before_the_answer():
    async def work(c):
        plain = texts(await c.complete(max_tokens=4))[0]
        ids = c.engine.tokenizer.encode("hello")
        return (
            plain,
            texts(await c.complete(max_tokens=4, echo=True)),
            texts(await c.complete(ids, max_tokens=4, echo=True)),
        )

    plain, echoed, from_ids = within(work)
    assert echoed == from_ids == ["hello" + plain]


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_no_tokens_with_echo_score_the_prompt(logprobs):
    answer = within(lambda c: c.complete("the world", max_tokens=0, echo=True, logprobs=logprobs))
    (choice,) = answer["choices"]
    assert choice["text"] == "the world" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    if logprobs is None:
        assert choice["logprobs"] is None
    else:
        shaped = choice["logprobs"]
        assert "".join(shaped["tokens"]) == "the world" and shaped["text_offset"][:2] == [0, 3]
        assert shaped["token_logprobs"][0] is None and shaped["top_logprobs"][0] is None
        assert all(value <= 0 for value in shaped["token_logprobs"][1:])


def test_offsets_point_into_the_text_and_split_characters_are_written_as_bytes():
    answer = within(lambda c: c.complete("the", max_tokens=4, echo=True, logprobs=1), engine(speaking("é!")))
    (choice,) = answer["choices"]
    assert choice["text"] == "theé!"
    assert choice["logprobs"]["tokens"] == ["the", "bytes:\\xc3", "bytes:\\xa9", "!", "\x00"][:5]
    assert choice["logprobs"]["text_offset"][:4] == [0, 3, 3, 4]


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_is_the_whole_answer_in_pieces(echo):
    async def work(c):
        body = {"n": 2, "temperature": 1, "seed": 4, "max_tokens": 6, "echo": echo, "logprobs": 1}
        whole = await c.complete(["hello", "the world"], **body)
        return whole, await c.events(PATH, prompt=["hello", "the world"], **body)

    whole, events = within(work)
    assert events[-1] == "[DONE]"
    assert streamed(events) == [(c["text"], c["logprobs"]["tokens"]) for c in whole["choices"]]
    assert sum(e["choices"][0]["finish_reason"] is not None for e in events[:-1]) == 4


def test_a_stream_tells_each_choice_s_prompt_ids_once_when_asked():
    async def work(c):
        body = {"prompt": ["hello", "the world"], "n": 2, "max_tokens": 3, "return_token_ids": True}
        return (await c.post(PATH, body)).json(), await c.events(PATH, **body)

    whole, events = within(work)
    told = [choice for event in events[:-1] for choice in event["choices"]]
    for index, choice in enumerate(whole["choices"]):
        chunks = [each for each in told if each["index"] == index]
        ids = [each["prompt_token_ids"] for each in chunks if "prompt_token_ids" in each]
        assert ids == [choice["prompt_token_ids"]]
        assert "prompt_token_ids" in chunks[0]


def test_prompt_logprobs_have_vllm_s_shape():
    answer = within(lambda c: c.complete("the world", max_tokens=1, prompt_logprobs=1))
    first, *others = answer["choices"][0]["prompt_logprobs"]
    assert first is None and all({"logprob", "rank", "decoded_token"} == set(e) for p in others for e in p.values())


def test_a_text_without_special_tokens_is_tokenized_all_the_same():
    async def work(c):
        long = "the world " * 3_000
        refused = await c.post(PATH, {"prompt": long, "add_special_tokens": False})
        return texts(await c.complete("hello", add_special_tokens=False)), texts(await c.complete("hello")), refused

    without, with_them, refused = within(work)
    assert without == with_them and refused.status_code == 400 and "9000 tokens" in refused.text


def test_only_the_last_tokens_of_a_prompt_are_kept_when_asked():
    async def work(c):
        cut = await c.complete([*b"abcdefgh"], max_tokens=4, truncate_prompt_tokens=3)
        return (
            cut,
            await c.complete([*b"fgh"], max_tokens=4),
            await c.complete("x" * 900, max_tokens=1, truncate_prompt_tokens=-1),
        )

    cut, short, longest = within(work)
    assert cut["usage"]["prompt_tokens"] == 3 and texts(cut) == texts(short)
    assert longest["usage"]["prompt_tokens"] == 511


def test_cached_tokens_are_reported():
    async def work(c):
        await c.complete([*b"a long shared prompt"], max_tokens=2)
        return await c.complete([*b"a long shared prompt"], max_tokens=2)

    assert within(work)["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
