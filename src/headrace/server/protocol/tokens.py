"""POST /tokenize, /detokenize and /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from headrace.server.protocol.chat import Messages
from headrace.server.protocol.completions import ID_LIST, Prompts
from headrace.server.protocol.fields import Body, ChosenId, Name, Priority, Truncation, limits

EITHER: dict[str, Any] = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
    ]
}


class TokenizeRequest(Body):
    """Either `prompt` or `messages`."""

    model_config = ConfigDict(json_schema_extra=EITHER)

    model: str | None = None
    prompt: str | None = None
    messages: Messages = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[Any, WithJsonSchema({**ID_LIST, "minItems": 0})]


class EmbeddingRequest(Body):
    model: str | None = None
    input: Prompts
    encoding_format: Annotated[str | None, Field(pattern="^(float|base64)$")] = None
    dimensions: Annotated[int | None, limits(minimum=1, at_most="hidden_size")] = None
    user: Name = None
    priority: Priority = None
    cache_salt: Name = None
    request_id: ChosenId = None
    truncate_prompt_tokens: Truncation = None
    pooling: Annotated[str | None, Field(pattern="^(last|mean)$")] = None
    normalize: bool | None = None
