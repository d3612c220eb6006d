"""Embeddings, /tokenize and /detokenize."""

import base64
import struct

import pytest
from tests.server.inside import HELLO, done, within


def test_each_input_has_a_vector_of_length_one():
    async def work(c):
        return done(await c.post("/v1/embeddings", {"input": ["hello", "the"]}))

    answer = within(work)
    assert [row["index"] for row in answer["data"]] == [0, 1] and answer["usage"]["prompt_tokens"] == 2
    for row in answer["data"]:
        assert sum(x * x for x in row["embedding"]) == pytest.approx(1)


def test_base64_holds_the_same_numbers_and_dimensions_the_first_ones():
    async def work(c):
        floats = done(await c.post("/v1/embeddings", {"input": "hello", "dimensions": 3}))
        coded = done(await c.post("/v1/embeddings", {"input": "hello", "dimensions": 3, "encoding_format": "base64"}))
        return floats["data"][0]["embedding"], coded["data"][0]["embedding"]

    floats, coded = within(work)
    assert list(struct.unpack("<3f", base64.b64decode(coded))) == pytest.approx(floats)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 99}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": [[]]}, "input"),
        ({}, "input"),
    ],
)
def test_bad_inputs_of_embeddings_are_named(body, param):
    response = within(lambda c: c.post("/v1/embeddings", body))
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_text_is_tokenized_and_back():
    async def work(c):
        there = done(await c.post("/tokenize", {"prompt": "hello é", "return_token_strs": True}))
        back = done(await c.post("/detokenize", {"tokens": there["tokens"]}))
        return there, back

    there, back = within(work)
    assert back == {"prompt": "hello é"} and there["count"] == len(there["tokens"]) == len(there["token_strs"])
    assert there["max_model_len"] == 512


def test_a_conversation_is_tokenized_as_it_would_be_answered():
    async def work(c):
        counted = done(await c.post("/tokenize", {"messages": HELLO}))
        return counted["count"], (await c.chat(max_tokens=1))["usage"]["prompt_tokens"]

    counted, used = within(work)
    assert counted == used


@pytest.mark.parametrize("tokens", [[-1], [400], [2**40], ["1"], [1.5], [True], "x", None])
def test_ids_outside_the_vocabulary_are_refused(tokens):
    response = within(lambda c: c.post("/detokenize", {"tokens": tokens}))
    assert response.status_code == 400 and response.json()["error"]["param"] == "tokens"


def test_more_ids_than_a_context_holds_are_refused_and_long_lists_are_read():
    async def work(c):
        too_many = await c.post("/detokenize", {"tokens": [70] * 200_000})
        strings = done(await c.post("/tokenize", {"prompt": "ab" * 6_000, "return_token_strs": True}))["token_strs"]
        return too_many.status_code, done(await c.post("/detokenize", {"tokens": [70] * 10_000})), "".join(strings)

    assert within(work) == (400, {"prompt": "F" * 10_000}, "ab" * 6_000)


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": HELLO}])
def test_either_a_prompt_or_messages_are_tokenized(body):
    assert within(lambda c: c.post("/tokenize", body)).status_code == 400
