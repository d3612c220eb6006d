"""What a user passes is checked and copied once, or refused with the parameter, the limit, the value, the way out."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine import toys

from headrace.engine.inputs import InputProcessor, derive_seed, pair_params, split_prompts
from headrace.engine.sampling_params import Bounds
from headrace.words.errors import PromptTooLongError, RequestError
from headrace.words.params import Limits, PoolingParams, Sampling, SamplingParams

VOCAB = 400
BOUNDS = Bounds(VOCAB, 16, 64, frozenset({0}))


def processor(**options) -> InputProcessor:
    return InputProcessor(BOUNDS, toys.bytewise(), **options)


def sampling(prompt="hello", **params) -> Sampling:
    return processor().check(prompt, SamplingParams(**params)).request.sampling


def refusal(prompt="hello", params=None, **fields) -> RequestError:
    with pytest.raises(RequestError) as caught:
        processor().check(prompt, params or SamplingParams(**fields))
    return caught.value


BAD = [
    *[{name: value} for value in (math.nan, math.inf, -math.inf, 1e308, -1, "1", True, None, 10**400)
      for name in ("temperature", "top_p", "repetition_penalty")],
    *[{name: value} for value in (math.nan, 2.1, -2.1, "0", False)
      for name in ("presence_penalty", "frequency_penalty")],
    {"min_p": 1.5}, {"min_p": math.nan}, {"top_p": 0.0}, {"repetition_penalty": 0.0},
    {"top_k": -2}, {"top_k": 1.5}, {"top_k": True}, {"top_k": 2**63},
    *[{"n": value} for value in (0, -1, 10**9, 1.0, "2", None)],
    *[{"max_tokens": value} for value in (0, -1, 1.5, 2**63, "5", True)],
    *[{"min_tokens": value} for value in (-1, 1.5, None, 10**9)],
    *[{name: value} for value in (-1, 21, 10**6, 2.0, True) for name in ("logprobs", "prompt_logprobs")],
    {"logprobs_mode": "both"}, {"logprobs_mode": None},
    *[{"stop": value} for value in (["a"] * 5, "", ["a", ""], "x" * 1_025, 5, [5], {"a": 1}, "a\ud800")],
    *[{name: value} for value in ([-1], [VOCAB], [2**40], ["1"], [1.0], [True], 7, "12", b"12", bytearray(b"1"))
      for name in ("stop_token_ids", "allowed_token_ids", "forced_tokens")],
    {"stop_token_ids": list(range(300)) * 4}, {"allowed_token_ids": []},
    *[{"logit_bias": value} for value in ({-1: 1}, {VOCAB: 1}, {"5": 1}, {5: math.nan}, {5: 101}, {5: "1"}, [5])],
    {"logit_bias": {i: 1.0 for i in range(1_025)}},
    {"bad_words": ["a"] * 129}, {"bad_words": [""]}, {"bad_words": [3]}, {"bad_words": ["\udfff"]},
    *[{name: value} for value in (1, None, "yes") for name in (
        "ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output",
        "sum_smaller_probs", "token_confidence", "spaces_between_special_tokens")],
    *[{"seed": value} for value in (1.5, "7", True, math.nan)],
    *[{"priority": value} for value in (None, 1.5, 2**40)],
    *[{name: value} for value in ("", 5, "x" * 2_000, "\ud800") for name in ("user", "cache_salt")],
]  # fmt: skip


@pytest.mark.covers("D3")
@pytest.mark.parametrize("fields", BAD, ids=lambda fields: str(fields)[:40])
def test_a_bad_parameter_is_refused_by_name(fields):
    error = refusal(**fields)
    assert isinstance(error, ValueError) and error.http_status == 400
    assert error.parameter == next(iter(fields))
    assert len(str(error)) < 300


def test_a_refusal_tells_the_limit_the_value_and_the_way_out():
    assert str(refusal(n=10**9)) == "n: must be from 1 to 16384, got 1000000000"
    assert str(refusal(temperature=math.nan)) == "temperature: must be from 0 to 100, got nan"
    assert "0 is for scoring, with prompt_logprobs" in str(refusal(max_tokens=0))


@pytest.mark.covers("D3")
@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {"prompt_token_ids": []}, np.array([], np.int64)])
def test_an_empty_prompt_is_refused(prompt):
    assert refusal(prompt).message == "is empty; it must hold at least one token"


@pytest.mark.covers("D3")
@pytest.mark.parametrize(
    "prompt",
    [[-1], [VOCAB], [2**40], ["a"], [1.5], [True], 5, None, {}, {"text": "a"}, {"prompt": 5},
     {"prompt_token_ids": "ab"}, {"prompt_token_ids": {"a": 1}}, b"ab", bytearray(b"ab"),
     pytest.param(memoryview(b"ab"), id="memoryview"), {"prompt_token_ids": bytearray(b"ab")}],
    ids=str,
)  # fmt: skip
def test_a_prompt_that_is_none_is_refused(prompt):
    assert refusal(prompt).parameter in ("prompt", "prompt_token_ids")


@pytest.mark.covers("D3")
@pytest.mark.parametrize("ids", [itertools.count(), itertools.repeat(1), range(10**12)], ids=str)
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "forced_tokens"])
def test_of_an_endless_list_of_ids_no_more_is_read_than_the_limit(name, ids):
    limits = dataclasses.replace(Limits(), prompt_tokens=1_000)
    with pytest.raises(RequestError, match=f"{name}: at most [0-9]+ ids are allowed"):
        InputProcessor(dataclasses.replace(BOUNDS, limits=limits), None).check([1], SamplingParams(**{name: ids}))


def test_of_a_prompt_of_too_many_ids_none_is_read():
    with pytest.raises(PromptTooLongError, match="at most 4000000 tokens are read, got 1000000000000; shorten it"):
        processor().check(range(10**12), SamplingParams())


def test_a_limit_that_is_no_limit_is_not_told():
    assert str(refusal(top_k=-2)) == "top_k: must be at least -1, got -2"
    assert str(refusal(min_tokens=1.5)) == "min_tokens: must be a whole number of at least 0, got 1.5"
    assert str(refusal(top_k=2**63)) == "top_k: must be below 2**63, got 9223372036854775808"


def test_foreign_parameters_are_refused():
    assert refusal(params={"temperature": 1.0}).parameter == "sampling_params"


def test_text_ids_arrays_and_dicts_are_the_same_prompt():
    ids = tuple(b"hi")
    forms = ["hi", [*ids], ids, np.array(ids), {"prompt": "hi"}, {"prompt_token_ids": [*ids]},
             {"prompt": "hi", "prompt_token_ids": np.array(ids)}]  # fmt: skip
    requests = [processor().check(form, SamplingParams()).request for form in forms]
    assert {request.prompt_ids for request in requests} == {ids}
    assert [request.prompt for request in requests] == ["hi", None, None, None, "hi", None, "hi"]


def test_ids_below_the_embeddings_rows_are_legal_though_the_tokenizer_lacks_them():
    assert toys.bytewise().vocab_size < VOCAB - 1
    assert processor().check([VOCAB - 1], SamplingParams()).request.prompt_ids == (VOCAB - 1,)


def test_a_list_that_holds_a_number_is_one_prompt():
    assert split_prompts([1, 2]) == [[1, 2]] and split_prompts(np_ids := [np.int64(1), np.int32(2)]) == [np_ids]
    assert split_prompts(b"ab") == [b"ab"]
    assert split_prompts("a") == ["a"] and split_prompts({"prompt": "a"}) == [{"prompt": "a"}]
    assert split_prompts(["a", [1], {"prompt": "b"}]) == ["a", [1], {"prompt": "b"}]
    assert split_prompts([]) == []


def test_parameters_are_none_one_or_one_for_each_prompt():
    one, two = SamplingParams(n=1), SamplingParams(n=2)
    assert pair_params(None, 2, lambda: one) == [one, one]
    assert pair_params(two, 2, lambda: one) == [two, two]
    assert pair_params([one, two], 2, lambda: one) == [one, two]
    with pytest.raises(RequestError, match="one for each of the 3 prompts is needed, got 2"):
        pair_params([one, two], 3, lambda: one)


@pytest.mark.covers("E1", "D25")
def test_without_max_tokens_the_room_left_is_the_limit():
    assert sampling([1] * 10).max_tokens == 54


@pytest.mark.covers("D7")
@pytest.mark.parametrize("asked", [55, 2**31, 2**63 - 1])
def test_max_tokens_beyond_the_room_is_capped(asked):
    assert sampling([1] * 10, max_tokens=asked).max_tokens == 54


@pytest.mark.covers("D23")
def test_max_tokens_0_is_for_scoring_only():
    assert sampling(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    assert refusal(max_tokens=0, logprobs=5).parameter == "max_tokens"


def test_min_tokens_must_fit_below_max_tokens_and_into_the_room():
    assert sampling(min_tokens=3, max_tokens=3).min_tokens == 3
    assert "at most max_tokens (3), got 4" in str(refusal(min_tokens=4, max_tokens=3))
    assert "room for 54 tokens, got 55" in str(refusal([1] * 10, min_tokens=55, max_tokens=60))


def test_a_prompt_that_is_too_long_in_tokens_is_left_to_the_scheduler():
    assert len(processor().check([1] * 99, SamplingParams(min_tokens=5)).request.prompt_ids) == 99


def test_a_prompt_that_is_too_long_in_characters_is_not_even_tokenized():
    bounds = dataclasses.replace(BOUNDS, limits=Limits(prompt_chars=10))
    with pytest.raises(PromptTooLongError, match="at most 10 characters are read, got 11"):
        InputProcessor(bounds, toys.bytewise()).check("x" * 11, SamplingParams())


@pytest.mark.covers("D2")
def test_the_request_does_not_see_later_changes_of_the_callers_objects():
    params = SamplingParams(max_tokens=5, stop=["a"], stop_token_ids=[3], logit_bias={3: 1.0})
    prompt = [1, 2]
    request = processor().check(prompt, params).request
    params.max_tokens, params.temperature = 50, 0.0
    params.stop.append("b")
    params.stop_token_ids[0] = 9
    params.logit_bias[4] = 2.0
    prompt.append(3)
    frozen = request.sampling
    assert (frozen.max_tokens, frozen.temperature, frozen.stop) == (5, 1.0, ("a",))
    assert (frozen.stop_token_ids, frozen.logit_bias, request.prompt_ids) == ((3,), ((3, 1.0),), (1, 2))


def test_values_that_mean_off_have_one_form():
    assert {sampling(top_k=k).top_k for k in (-1, 0, VOCAB, 2**62)} == {0}
    assert {sampling(temperature=t).temperature for t in (0, 0.0, 1e-6, 1e-320)} == {0.0}
    assert sampling(temperature=np.float32(0.5), top_k=np.int64(3)).top_k == 3


def test_bad_words_are_banned_at_the_beginning_and_behind_a_space():
    assert sampling(bad_words=["world"]).bad_words == ((*b"world",), tuple(toys.bytewise().encode(" world")))


def test_stop_strings_need_the_text():
    assert refusal(stop="a", detokenize=False).parameter == "stop"


def test_allowed_ids_that_are_all_forbidden_are_refused():
    assert refusal(allowed_token_ids=[0], min_tokens=1).parameter == "allowed_token_ids"
    assert refusal(allowed_token_ids=[97], bad_words=["a"]).parameter == "allowed_token_ids"
    assert sampling(allowed_token_ids=[98, 97, 98], bad_words=["a"]).allowed_token_ids == (97, 98)


def test_pooling_parameters_are_checked_too():
    check = processor().check("hi", PoolingParams(pooling="mean", dimensions=4)).request
    assert (check.sampling, check.pooling.dimensions, check.max_tokens) == (None, 4, 0)
    for params in (PoolingParams(pooling="max"), PoolingParams(dimensions=17), PoolingParams(normalize=1)):
        with pytest.raises(RequestError):
            processor().check("hi", params)


@pytest.mark.covers("E11")
def test_our_ids_are_unique_whatever_the_clients_choose():
    inputs = processor()
    checked = inputs.check("hi", SamplingParams())
    requests = [inputs.admit(checked, "same") for _ in range(3)]
    assert [request.request_id for request in requests] == [0, 1, 2]
    assert {request.client_id for request in requests} == {"same"}


@pytest.mark.parametrize("bad", [{"client_id": 5}, {"client_id": ["a"]}, {"arrival_s": math.nan}, {"arrival_s": "now"}])
def test_a_name_that_is_no_text_and_a_time_that_is_no_number_are_refused_before_anything_is_counted(bad):
    inputs = processor()
    checked = inputs.check("hi", SamplingParams())
    with pytest.raises(RequestError):
        inputs.admit(checked, **bad)
    assert inputs.admit(checked).request_id == 0


def test_a_refused_request_takes_no_ordinal_and_so_changes_no_later_seed():
    calm, troubled = processor(engine_seed=3), processor(engine_seed=3)
    with pytest.raises(RequestError):
        troubled.check("", SamplingParams())
    assert (
        calm.admit(calm.check("a", SamplingParams())).seed == troubled.admit(troubled.check("a", SamplingParams())).seed
    )


@pytest.mark.covers("E6")
def test_a_given_seed_is_kept_modulo_2_to_the_64_and_an_absent_one_derived():
    inputs = processor(engine_seed=5)
    seeds = [inputs.admit(inputs.check("a", SamplingParams(seed=s))).seed for s in (7, -1, 2**64 + 7, -(10**30), None)]
    assert seeds[:4] == [7, 2**64 - 1, 7, -(10**30) % 2**64]
    assert seeds[4] == derive_seed(5, 4)


def test_derived_seeds_are_splitmix64():
    """First outputs of SplitMix64 started at 0, whose mix is 0."""
    assert [derive_seed(0, i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert len({derive_seed(s, i) for s in range(-3, 50) for i in range(50)}) == 53 * 50


def test_lone_surrogates_are_read_as_replacement_characters():
    ids = processor().check("a\ud800b\ud83d\ude00", SamplingParams()).request.prompt_ids
    assert toys.bytewise().decode(ids) == "a\ufffdb😀"


@given(st.dictionaries(
    st.sampled_from([f.name for f in dataclasses.fields(SamplingParams)]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
    | st.lists(st.text(max_size=2), max_size=2) | st.dictionaries(st.integers(), st.floats(), max_size=2),
    max_size=3,
))  # fmt: skip
def test_whatever_is_passed_is_refused_as_a_request_error_or_frozen_and_finite(fields):
    try:
        frozen = processor().check("hello", SamplingParams(**fields)).request.sampling
    except RequestError as error:
        assert error.parameter in fields
        return
    assert hash(frozen) is not None
    assert all(math.isfinite(v) for v in dataclasses.astuple(frozen) if isinstance(v, float))
    assert 0 <= frozen.min_tokens <= frozen.max_tokens <= 64
