"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from headrace.engine.checks import MAX_INT
from headrace.server.protocol.fields import LIMITS, Body, limits, texts

TURNS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "string"}},
    },
}
Turns = Annotated[Any, WithJsonSchema(TURNS)]
BLOCK = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
System = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": BLOCK}, {"type": "null"}]}),
]


class CountTokensRequest(Body):
    model: str
    messages: Turns
    system: System = None


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[int, limits(minimum=1, maximum=MAX_INT)]
    temperature: Annotated[float | None, limits(minimum=0, maximum=100)] = None
    top_p: Annotated[float | None, limits(exclusiveMinimum=0, maximum=1)] = None
    top_k: Annotated[int | None, limits(minimum=-1, maximum=MAX_INT)] = None
    stop_sequences: texts(LIMITS.stop_strings) = None  # type: ignore[valid-type]
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    seed: int | None = None
