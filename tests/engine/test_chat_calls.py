"""LLM.chat and priorities: what is no conversation is refused by name; one that is too long loses nobody."""

import pytest
from tests.engine import fakes

from headrace.llm import LLM
from headrace.words.errors import RequestError
from headrace.words.params import SamplingParams

HI = [{"role": "user", "content": "hi"}]
PARAMS = SamplingParams(max_tokens=3)


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"messages": [1]}, "messages"),
        ({"messages": [None]}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [HI, "hi"]}, "messages"),
        ({"messages": [HI, HI[0]]}, "messages"),
        ({"messages": HI, "chat_template": 5}, "chat_template"),
        ({"messages": HI, "chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"messages": HI, "chat_template_kwargs": {1: 2}}, "chat_template_kwargs"),
        ({"messages": HI, "chat_template_kwargs": {"self": 2}}, "chat_template_kwargs"),
        ({"messages": HI, "chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_what_is_no_conversation_and_no_option_is_refused_by_name(options, parameter):
    model = LLM.from_engine(fakes.engine())
    with pytest.raises(RequestError) as caught:
        model.chat(sampling_params=PARAMS, use_tqdm=False, **options)
    assert caught.value.parameter == parameter and model.llm_engine.get_num_unfinished_requests() == 0


@pytest.mark.covers("E12")
@pytest.mark.parametrize("length", [200, 4_000_001], ids=["too many tokens", "too many characters"])
def test_a_conversation_that_is_too_long_becomes_an_output_and_loses_nobody(length):
    long = [{"role": "user", "content": "x" * length}]
    model = LLM.from_engine(fakes.engine(max_model_len=100))
    outputs = model.chat([HI, long, HI], PARAMS, use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "prompt_length_exceeded", "length"]
    assert str(length // 1_000) in outputs[1].finish_detail


@pytest.mark.parametrize("priority", [5, "a", [1, 2], iter([1])])
def test_priorities_are_a_list_of_as_many_as_prompts(priority):
    with pytest.raises(RequestError, match="priority"):
        LLM.from_engine(fakes.engine()).generate("a", PARAMS, use_tqdm=False, priority=priority)
