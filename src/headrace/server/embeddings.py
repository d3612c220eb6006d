"""POST /v1/embeddings: one vector for each input, as floats or in base64."""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.answers import json_answer
from headrace.server.parameters import check_all, given, split_prompts, warnings_of
from headrace.server.protocol.tokens import EmbeddingRequest
from headrace.server.service import Service, new_id
from headrace.server.sse import answer_or_leave
from headrace.words.outputs import EmbeddingOutput
from headrace.words.params import PoolingParams

PARAMS = ("dimensions", "user", "cache_salt", "pooling", "normalize")


async def create(service: Service, request: Request) -> Response:
    arrival_s = time.monotonic()
    body = EmbeddingRequest.model_validate(await service.read(request))
    model = service.check_model(body.model)
    prompts = split_prompts(body.input, "input")
    params = PoolingParams(**given(body, PARAMS))
    checked = await check_all(service.llm, prompts, params, body.priority, "input", body.truncate_prompt_tokens)
    warnings = warnings_of(body, None, checked)
    generation = service.open(checked, new_id(request, "embd-", body.request_id), False, arrival_s)
    outputs = await answer_or_leave(request.receive, generation)

    def make() -> dict[str, Any]:
        shaped = answer(outputs, model, body.encoding_format == "base64")
        return shaped | ({"warnings": warnings} if warnings else {})

    return await json_answer(make, sum(len(output.embedding) for output in outputs))


def answer(outputs: Sequence[EmbeddingOutput], model: str, is_base64: bool) -> dict[str, Any]:
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": in_base64(o.embedding) if is_base64 else o.embedding}
            for i, o in enumerate(outputs)
        ],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def in_base64(vector: Sequence[float]) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(array("f", vector).tobytes()).decode("ascii")
