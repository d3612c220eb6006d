"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from headrace.server.protocol.fields import LIMITS, TOKEN_ID, SamplingFields, limits

ID_LIST = {"type": "array", "minItems": 1, "items": TOKEN_ID}
PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": LIMITS.prompts, "items": {"type": "string", "minLength": 1}},
        ID_LIST,
        {"type": "array", "minItems": 1, "maxItems": LIMITS.prompts, "items": ID_LIST},
    ]
}
Prompts = Annotated[Any, WithJsonSchema(PROMPT)]
"""A text, token ids, or a list of either."""


class CompletionRequest(SamplingFields):
    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int | None, limits(minimum=0, maximum=20)] = None
    best_of: Annotated[int | None, limits(minimum=1, maximum=1)] = None
    add_special_tokens: bool | None = None
