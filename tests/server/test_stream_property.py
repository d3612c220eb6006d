"""For any tokenizer, stop string and split character the pieces of a stream are the answer that comes at once."""

import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import fakes, toys
from tests.engine.fakes import FakeExecutor
from tests.server.inside import ROOM, URL, read_events

from headrace.engine.host import AsyncLLM
from headrace.server.app import make_app
from headrace.server.service import Service
from headrace.server.settings import Settings

TEXT = "the 😀 END stop é日本 hello world ing ab"
STOPS = ["E", "ND", "😀", "é", " ", "the st", "日本", "lo", "o w", "aa", "END", "\ufffd"]


class Standing:
    """One application for many examples, in an event loop that is run when it is needed."""

    def __init__(self, tokenizer: toys.ToyTokenizer) -> None:
        pool = [
            *tokenizer.encode(TEXT, add_special_tokens=False),
            *(i for i in range(0, 320, 29) if tokenizer.token_bytes(i)),
        ]

        def script(history, admission):
            return pool[fakes.digest(len(history), history[-1], admission.seed, admission.choice) % len(pool)]

        eos = frozenset(tokenizer.eos_token_ids)
        made = fakes.engine(FakeExecutor(script), 400, tokenizer, eos_token_ids=eos, **ROOM)
        self.loop = asyncio.new_event_loop()
        self.llm = AsyncLLM(made)
        self.service = Service(self.llm, Settings(model_names=("toy",)))
        transport = httpx.ASGITransport(make_app(self.service), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=URL)

    def post(self, path, body):
        return self.loop.run_until_complete(self.http.post(path, json=body))

    def close(self):
        self.loop.run_until_complete(self.http.aclose())
        self.service.close()
        self.llm.shutdown()
        self.loop.close()


@pytest.fixture(scope="module", params=toys.ALL, ids=lambda make: make.__name__)
def standing(request):
    made = Standing(request.param())
    yield made
    made.close()


asked = st.fixed_dictionaries(
    {"seed": st.integers(0, 10_000), "max_tokens": st.integers(1, 24), "n": st.integers(1, 3)},
    optional={
        "stop": st.lists(st.sampled_from(STOPS), min_size=1, max_size=4, unique=True),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "min_tokens": st.just(1),
    },
)


@settings(max_examples=40)
@given(body=asked)
def test_the_pieces_of_a_chat_are_the_answer(standing, body):
    body = {"messages": [{"role": "user", "content": "the"}], **body}
    whole = standing.post("/v1/chat/completions", body).json()
    events = read_events(standing.post("/v1/chat/completions", {**body, "stream": True}).text)
    texts = [""] * body["n"]
    reasons = [None] * body["n"]
    for event in events[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            assert reasons[choice["index"]] is None
            reasons[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
    assert events[-1] == "[DONE]"
    assert texts == [c["message"]["content"] for c in whole["choices"]]
    assert reasons == [(c["finish_reason"], c["stop_reason"]) for c in whole["choices"]]


@settings(max_examples=25)
@given(body=asked, logprobs=st.sampled_from([None, 0, 2]), echo=st.booleans())
def test_the_pieces_of_a_completion_are_the_answer(standing, body, logprobs, echo):
    body = {"prompt": ["the", "hello world"], "logprobs": logprobs, "echo": echo, **body}
    whole = standing.post("/v1/completions", body).json()
    events = read_events(standing.post("/v1/completions", {**body, "stream": True}).text)
    pieces = [("", []) for _ in whole["choices"]]
    for event in events[:-1]:
        (choice,) = event["choices"]
        text, tokens = pieces[choice["index"]]
        pieces[choice["index"]] = (text + choice["text"], tokens + ((choice["logprobs"] or {}).get("tokens") or []))
    expected = [(c["text"], (c["logprobs"] or {}).get("tokens") or []) for c in whole["choices"]]
    assert pieces == expected
