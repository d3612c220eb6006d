"""From a protocol's fields to what the engine checks: the one way in for every route that generates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.host import AsyncLLM, num_prompt_tokens
from headrace.engine.inputs import Checked, Prompt
from headrace.server.errors import ApiError, bad_request
from headrace.server.protocol.fields import LIMITS, Body, SamplingFields, check_extra
from headrace.words.errors import RequestError
from headrace.words.params import PoolingParams, SamplingParams

SAME_NAMES = (
    "n temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed stop stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens max_tokens prompt_logprobs allowed_token_ids bad_words "
    "skip_special_tokens spaces_between_special_tokens cache_salt user"
).split()


def given(body: Body, names: Sequence[str]) -> dict[str, Any]:
    """The fields that have a value; null and empty names are as good as absent."""
    found = {name: getattr(body, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not (value == "" and name in ("user", "cache_salt"))
    }


def sampling_params(llm: AsyncLLM, body: SamplingFields, **more: Any) -> SamplingParams:
    """The checkpoint's defaults, what the body says, and what the route decides."""
    values = {**llm.engine.sampling_defaults, **given(body, SAME_NAMES)}
    if body.logit_bias is not None:
        values["logit_bias"] = read_bias(body.logit_bias)
    return SamplingParams(**{**values, **more})


def read_bias(value: Any) -> dict[int, float]:
    """JSON's keys are texts; here they are token ids."""
    if not isinstance(value, dict):
        raise bad_request("logit_bias", "must map token ids to numbers")
    if len(value) > LIMITS.logit_bias:
        raise bad_request("logit_bias", f"at most {LIMITS.logit_bias} ids are allowed, got {len(value)}")
    return {_token_id(key): bias for key, bias in value.items()}


def _token_id(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise bad_request("logit_bias", f"keys must be token ids, got {key[:60]!r}") from None


def check_stream(body: SamplingFields) -> None:
    """What only streams have, and what they cannot have."""
    if body.stream and body.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs", "cannot be streamed; set stream to false")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "is only for streams; set stream to true")


def split_prompts(value: Any, param: str) -> list[Prompt]:
    """One prompt (text or ids) or a list of prompts, as a list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise bad_request(param, "must be a text, token ids, or a list of either")
    if not value:
        raise bad_request(param, "is empty; it must hold at least one token")
    if not isinstance(value[0], str | list):
        return [value]
    if len(value) > LIMITS.prompts:
        most, number = LIMITS.prompts, len(value)
        raise bad_request(param, f"at most {most} prompts are allowed, got {number}; send several requests")
    if not all(isinstance(item, type(value[0])) for item in value):
        raise bad_request(param, "must be a text, token ids, or a list of either")
    return list(value)


async def check_all(
    llm: AsyncLLM,
    prompts: Sequence[Prompt],
    params: SamplingParams | PoolingParams,
    priority: int | None,
    param: str = "prompt",
    truncate: int | None = None,
    names: Mapping[str, str] | None = None,
) -> list[Checked]:
    """The validator of every route. What can never run is refused here, so that nothing is queued in vain.

    `names` are a protocol's own words for the engine's parameters; `param` is its word for the prompt.
    """
    names = {"prompt": param, "prompt_token_ids": param, **(names or {})}
    _check_number(llm, len(prompts) * max(1, params.n if isinstance(params, SamplingParams) else 1), params)
    found, num_tokens = [], 0
    for number, prompt in enumerate(prompts):
        if number:
            await asyncio.sleep(0)
        if truncate is not None:
            prompt = await _truncated(llm, prompt, truncate, names)
        try:
            checked = await llm.check(prompt, params, priority)
        except RequestError as error:
            raise _renamed(error, names) from None
        _check_room(llm, len(checked.request.prompt_ids), param)
        found.append(checked)
        num_tokens += num_prompt_tokens([checked])
        _check_tokens(llm, num_tokens, param)
    return found


def _check_number(llm: AsyncLLM, number: int, params: Any) -> None:
    """What is more than the whole queue would be told to come again for ever."""
    limit = llm.engine.resolved.max_num_queued_requests
    if limit is not None and isinstance(number, int) and number > limit:
        name = "n" if isinstance(params, SamplingParams) and params.n > 1 else "prompt"
        raise bad_request(name, f"{number} continuations in one request, the queue holds {limit}; ask for fewer")


def _check_tokens(llm: AsyncLLM, number: int, param: str) -> None:
    limit = llm.engine.resolved.max_num_queued_tokens
    if limit is not None and number > limit:
        raise bad_request(param, f"{number} tokens or more in one request, the queue holds {limit}; ask for less")


def _check_room(llm: AsyncLLM, num_tokens: int, param: str) -> None:
    limit = llm.engine.resolved.scheduler.max_model_len
    if num_tokens >= limit:
        raise bad_request(
            param,
            f"the prompt has {num_tokens} tokens, the model's context {limit}, and the answer needs one; shorten it",
            "context_length_exceeded",
        )
    capacity = llm.engine.layout.capacity_tokens
    if num_tokens + 1 > capacity:
        raise bad_request(
            param, f"the prompt has {num_tokens} tokens, the whole cache {capacity}; shorten it", "cache_size_exceeded"
        )


async def _truncated(llm: AsyncLLM, prompt: Any, length: int, names: Mapping[str, str]) -> Prompt:
    """The last `length` tokens of a prompt; −1 is as many as the model takes."""
    if length == 0 or length < -1:
        raise bad_request("truncate_prompt_tokens", f"must be at least 1, or -1, got {length}")
    try:
        request = (await llm.check(prompt, SamplingParams(max_tokens=1))).request
    except RequestError as error:
        raise _renamed(error, names) from None
    keep = llm.engine.resolved.scheduler.max_model_len - 1 if length == -1 else length
    return {"prompt": request.prompt, "prompt_token_ids": list(request.prompt_ids[-keep:])}


def _renamed(error: RequestError, names: Mapping[str, str]) -> ApiError:
    name = names.get(error.parameter, error.parameter)
    return bad_request(name, error.message)


def warnings_of(body: Body, asked_tokens: int | None, checked: Sequence[Checked]) -> list[str]:
    """What was not done as asked."""
    warnings = check_extra(body)
    rooms = [each.request.max_tokens for each in checked if each.request.sampling]
    if asked_tokens is not None and rooms and min(rooms) < asked_tokens:
        warnings.append(f"max_tokens: {asked_tokens} asked, the context leaves room for {min(rooms)}; capped")
    return warnings
