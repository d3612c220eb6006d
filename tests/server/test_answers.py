"""Whole answers: what is written, and on which thread."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref

import pytest

from headrace.server.answers import LARGE_ANSWER, in_pieces, json_answer, num_values
from headrace.server.sse import encode
from headrace.words.outputs import CompletionOutput, RequestOutput

VALUES = [
    {},
    {"a": []},
    {"a": [1], "b": None, "c": 'é\n"', "d": {"e": [[], {}]}},
    {"choices": [{"index": 0, "text": "\u2028", "logprobs": None}, {"index": 1, "text": "", "logprobs": [1.5e-9]}]},
]


@pytest.mark.parametrize("value", VALUES)
def test_an_answer_in_pieces_is_the_answer(value):
    assert in_pieces(value) == encode(value)


def test_members_of_a_list_are_made_one_by_one_as_they_are_written():
    alive: list[weakref.ref] = []

    class Member(dict):
        """Can be referred to weakly."""

    def members():
        for i in range(5):
            assert not any(ref() for ref in alive[:-1])
            yield (member := Member(index=i))
            alive.append(weakref.ref(member))

    assert in_pieces({"choices": members()}) == encode({"choices": [{"index": i} for i in range(5)]})


@pytest.mark.parametrize(("size", "is_beside"), [(LARGE_ANSWER, False), (LARGE_ANSWER + 1, True)])
def test_only_a_large_answer_is_made_beside_the_event_loop(size, is_beside):
    def make() -> dict[str, bool]:
        return {"is_beside": threading.current_thread() is not threading.main_thread()}

    response = asyncio.run(json_answer(make, size))
    assert json.loads(response.body) == {"is_beside": is_beside}
    assert response.headers["content-type"] == "application/json"


def test_what_goes_wrong_beside_is_raised():
    def make() -> dict[str, int]:
        raise ValueError("of ours")

    with pytest.raises(ValueError, match="of ours"):
        asyncio.run(json_answer(make, LARGE_ANSWER + 1))


def test_values_are_counted_by_what_was_asked_for():
    choices = [CompletionOutput(index=i, text="", token_ids=[1, 2]) for i in range(3)]
    outputs = [RequestOutput(request_id="a", prompt=None, prompt_token_ids=[1] * 4, outputs=choices, finished=True)] * 5
    assert [num_values(outputs, *tops) for tops in ((None, None), (0, None), (None, 20))] == [50, 100, 1_100]
