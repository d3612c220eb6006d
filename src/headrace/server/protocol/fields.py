"""Fields that several routes share, and the tables of those that are not built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headrace.engine.checks import MAX_INT
from headrace.engine.inputs import MAX_PRIORITY
from headrace.engine.sampling_params import MAX_NAME_CHARS
from headrace.server.errors import bad_request
from headrace.words.params import Limits

LIMITS = Limits()
MAX_ID_CHARS = 256
TEXT = {"type": "string", "minLength": 1, "maxLength": LIMITS.stop_chars}
AT_MOST = "x-at-most"
"""A bound that the served model has: its name here, a number in what /openapi.json says."""
TOKEN_ID = {"type": "integer", "minimum": 0, AT_MOST: "last_token_id"}


def texts(most: int) -> Any:
    """A text or a list of at most so many; the engine says what is wrong with it."""
    several = {"type": "array", "items": TEXT, "maxItems": most}
    return Annotated[Any, WithJsonSchema({"anyOf": [TEXT, several, {"type": "null"}]})]


def ids(least: int, most: int | None = None) -> Any:
    """A list of token ids."""
    several = {"type": "array", "items": TOKEN_ID, "minItems": least} | ({} if most is None else {"maxItems": most})
    return Annotated[list[Any] | None, WithJsonSchema({"anyOf": [several, {"type": "null"}]})]


BIAS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": LIMITS.logit_bias,
}
Bias = Annotated[Any, WithJsonSchema({"anyOf": [BIAS, {"type": "null"}]})]


def limits(**bounds: float | str) -> Any:
    """Bounds of a number for readers of the schema; the engine's checks are those that hold, and say more."""
    return Field(json_schema_extra={AT_MOST if name == "at_most" else name: value for name, value in bounds.items()})


Priority = Annotated[int | None, limits(minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)]
Truncation = Annotated[int | None, Field(json_schema_extra={"minimum": -1, "not": {"const": 0}})]
Name = Annotated[str | None, limits(maxLength=MAX_NAME_CHARS)]
ChosenId = Annotated[str | None, limits(maxLength=MAX_ID_CHARS, pattern="^[ -~]*$")]


class Body(BaseModel):
    """Numbers are numbers and texts are texts; fields nobody knows are kept, to be named in `warnings`."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Body):
    """OpenAI's and vLLM's sampling parameters; null is the default everywhere."""

    model: str | None = None
    n: Annotated[int | None, limits(minimum=1, at_most="most_continuations")] = None
    temperature: Annotated[float | None, limits(minimum=0, maximum=100)] = None
    top_p: Annotated[float | None, limits(exclusiveMinimum=0, maximum=1)] = None
    top_k: Annotated[int | None, limits(minimum=-1, maximum=MAX_INT)] = None
    min_p: Annotated[float | None, limits(minimum=0, maximum=1)] = None
    presence_penalty: Annotated[float | None, limits(minimum=-2, maximum=2)] = None
    frequency_penalty: Annotated[float | None, limits(minimum=-2, maximum=2)] = None
    repetition_penalty: Annotated[float | None, limits(minimum=0.01, maximum=100)] = None
    seed: int | None = None
    stop: texts(LIMITS.stop_strings) = None  # type: ignore[valid-type]
    stop_token_ids: ids(0, LIMITS.stop_token_ids) = None  # type: ignore[valid-type]
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int | None, limits(minimum=0, at_most="max_model_len")] = None
    max_tokens: Annotated[int | None, limits(minimum=0, maximum=MAX_INT)] = None
    prompt_logprobs: Annotated[int | None, limits(minimum=0, maximum=20)] = None
    logit_bias: Bias = None
    allowed_token_ids: ids(1) = None  # type: ignore[valid-type]
    bad_words: texts(LIMITS.bad_words) = None  # type: ignore[valid-type]
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation = None
    priority: Priority = None
    cache_salt: Name = None
    user: Name = None
    request_id: ChosenId = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


PASSED = frozenset(
    "metadata safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options parallel_tool_calls "
    "cache_control user_profile_id workspace_id".split()
)
"""Fields of others that change nothing here and ask for nothing."""
NOT_BUILT: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "context_management": (),
    "container": (),
    "diagnostics": ({},),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "inference_geo": (),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "moderation": (),
    "modalities": (["text"], []),
    "output_config": ({},),
    "output_format": (),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default", "standard_only"),
    "speed": ("standard",),
    "store": (False,),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking": ({"type": "disabled"},),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto", {"type": "auto"}, {"type": "none"}),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""Fields that others have and Headrace does not, with the values that ask for nothing (null never does)."""


def check_extra(body: Body) -> list[str]:
    """Refuses what asks for something not built; gives a warning for each field that nobody knows."""
    warnings = []
    for name, value in (body.model_extra or {}).items():
        if name in PASSED:
            continue
        if name not in NOT_BUILT:
            warnings.append(f"{name[:80]}: unknown field, ignored")
        elif value is not None and not any(value == neutral for neutral in NOT_BUILT[name]):
            raise bad_request(name, "is not supported by this server; leave it out", "unsupported_parameter")
    return warnings
