"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from headrace.engine.checks import MAX_INT
from headrace.server.protocol.fields import SamplingFields, limits

MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
        },
    },
}
Messages = Annotated[Any, WithJsonSchema(MESSAGES)]
"""Read and judged by the engine's chat templates."""


class ChatRequest(SamplingFields):
    messages: Messages
    max_completion_tokens: Annotated[int | None, limits(minimum=1, maximum=MAX_INT)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, limits(minimum=0, maximum=20)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
