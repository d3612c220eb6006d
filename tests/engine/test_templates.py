"""Templates in the form that the most used families have, rendered as transformers renders them."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.engine import toys
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from headrace.engine.chat import ChatTemplate
from headrace.words.errors import RequestError

TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("templates/*.jinja")}
NAMED = {"bos_token": "<|end|>", "eos_token": "<|im_end|>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> & here: “ça va”",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Zürich", "Οsaka"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object"}}}
DOCUMENTS = [{"title": "One", "text": "A <b>fact</b>."}, {"title": "Two", "text": "Another."}]


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: dict[str, Any], call_id: str = "abcdefghi") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = said("system", " You are <terse> & kind. ")
HELLO = [said("user", "  Hello\n\n“world” 😀  ")]
TURNS = [said("user", "one?"), said("assistant", "\n\nOne.  "), said("user", "and <b>two</b>?")]
REASONED = [
    said("user", "q"),
    said("assistant", "<think>\nhm\n</think>\n\nso"),
    said("user", "w"),
    said("assistant", "v"),
]
CALLED = [
    said("user", "How is Zürich?"),
    said("assistant", None, tool_calls=[call("get_weather", {"city": "Zürich", "days": 2, "x": [None, True, 0.5]})]),
    said("tool", '{"sky": "blue & <high>"}', tool_call_id="abcdefghi", name="get_weather"),
]
TWO_CALLS = [
    said("user", "Weather and time?"),
    said("assistant", "Let me see.", tool_calls=[call("get_weather", {"city": "Οsaka"}), call("clock", {})]),
    said("tool", "rain", tool_call_id="abcdefghi"),
    said("tool", "noon", tool_call_id="abcdefghi"),
    said("assistant", "Rain at noon."),
    said("user", "Thanks"),
    said("system", "late"),
]
CONVERSATIONS = {
    "hello": HELLO,
    "system": [SYSTEM, *HELLO],
    "turns": TURNS,
    "system and turns": [SYSTEM, *TURNS],
    "reasoned": REASONED,
    "called": CALLED,
    "system and called": [SYSTEM, *CALLED],
    "two calls": TWO_CALLS,
    "an answer first": [said("assistant", "hi")],
    "switches": [said("system", "be brief /no_think"), *TURNS],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": [WEATHER, CLOCK]},
    "documents": {"documents": DOCUMENTS, "controls": {"citations": True}},
    "switches": {"enable_thinking": False, "date_string": "1 Jan 2030", "thinking": True, "xml_tools": [CLOCK]},
}


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=toys.bytewise().backend, **NAMED)


def theirs(oracle, source: str, messages, options, add_generation_prompt: bool):
    """Text and ids, or None where the template refuses or fails."""
    asked = {"chat_template": source, "add_generation_prompt": add_generation_prompt, **options}
    try:
        text = oracle.apply_chat_template(messages, tokenize=False, **asked)
        return text, list(oracle.apply_chat_template(messages, tokenize=True, return_dict=False, **asked))
    except Exception:
        return None


@functools.cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, toys.bytewise(), NAMED)


def ours(source: str, messages, options, add_generation_prompt: bool):
    try:
        return tuple(template(source).render(messages, add_generation_prompt, **options))
    except RequestError:
        return None


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_familys_template_gives_the_text_and_the_ids_that_transformers_gives(oracle, name, options):
    given, num_rendered = OPTIONS[options], 0
    for messages, prompts in itertools.product(CONVERSATIONS.values(), (True, False)):
        wanted = theirs(oracle, TEMPLATES[name], messages, given, prompts)
        if wanted is not None or not reads_none(name, messages):
            assert ours(TEMPLATES[name], messages, given, prompts) == wanted
        num_rendered += wanted is not None
    assert num_rendered >= 6


def reads_none(name: str, messages) -> bool:
    """Whether the template asks for a content of None, which transformers takes away before."""
    return name == "deepseek" and any(message["content"] is None for message in messages)


def test_a_template_that_asks_for_a_content_of_none_gets_it():
    got = ChatTemplate(TEMPLATES["deepseek"], toys.bytewise(), NAMED).render(CALLED)
    (wanted,), _ = render_jinja_template([CALLED], chat_template=TEMPLATES["deepseek"], **NAMED)
    assert got.text == wanted and "get_weather" in wanted


def test_what_is_none_is_absent_as_in_transformers(oracle):
    messages = [said("user", "q", name=None), said("assistant", "a", tool_calls=None), said("user", "r")]
    for name in TEMPLATES:
        assert ours(TEMPLATES[name], messages, {}, True) == theirs(oracle, TEMPLATES[name], messages, {}, True)


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_is_known_by_every_name(oracle, name):
    messages = [*HELLO, said("assistant", "so", **{name: "because"})]
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{% endfor %}"
    for each in (source, TEMPLATES["qwen3"]):
        assert ours(each, messages, {}, False) == theirs(oracle, each, messages, {}, False)


def test_ten_families_and_more_are_there():
    assert len(TEMPLATES) >= 12


FEATURES = {
    "gemma2": ("System role not supported", "system"),
    "llama2": ("Roles must take turns", "an answer first"),
    "mistral": ("roles must alternate", "an answer first"),
    "llama3": ("One call at a time", "two calls"),
}


@pytest.mark.parametrize("name", FEATURES)
def test_what_a_template_refuses_is_told_in_its_words(name):
    words, conversation = FEATURES[name]
    with pytest.raises(RequestError, match=words):
        ChatTemplate(TEMPLATES[name], toys.bytewise(), NAMED).render(CONVERSATIONS[conversation])


@pytest.mark.parametrize("name", ["gemma3", "qwen2", "smollm2", "llama3"])
def test_an_answer_is_continued_where_transformers_continues_it(oracle, name):
    messages = [*TURNS[:1], said("assistant", "One and")]
    wanted = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    got = template(TEMPLATES[name]).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert got.text == wanted and got.text.endswith("One and")


def test_arguments_of_a_call_may_be_json_as_clients_send_them():
    as_text = [CALLED[0], {**CALLED[1], "tool_calls": [call("get_weather", {})]}, CALLED[2]]
    as_text[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Zürich", "days": 2, "x": [null, true, 0.5]}'
    for name in ("llama3", "qwen2", "qwen3", "mistral", "deepseek"):
        found = template(TEMPLATES[name])
        assert found.render(as_text).text == found.render(CALLED).text
    assert as_text[1]["tool_calls"][0]["function"]["arguments"].startswith("{")
