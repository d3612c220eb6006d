"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.errors import bad_request
from headrace.server.logprobs import token_text
from headrace.server.protocol.fields import check_extra
from headrace.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from headrace.server.service import Service
from headrace.server.sse import encode
from headrace.words.outputs import Logprob

T = TypeVar("T")
LONG_TOKENS = 5_000
MAX_TOKENS = 131_072


async def tokenize(service: Service, request: Request) -> Response:
    body = TokenizeRequest.model_validate(await service.read(request))
    service.check_model(body.model)
    adds = body.add_special_tokens
    warnings = check_extra(body.model_copy())
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "give either prompt or messages")
    if body.messages is not None:
        continues = bool(body.continue_final_message)
        generates = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        chat = await service.render(body.messages, generates, continues, body.chat_template_kwargs)
        ids = chat.token_ids
    else:
        ids = await service.encode(body.prompt or "", adds is not False, "prompt")
    text = await _aside(len(ids), lambda: encode(_shape(service, body, ids, warnings)))
    return Response(text, media_type="application/json")


def _shape(service: Service, body: TokenizeRequest, ids: list[int], warnings: list[str]) -> dict[str, Any]:
    shaped: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.llm.engine.resolved.scheduler.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        token_bytes = service.llm.engine.tokenizer.token_bytes
        texts = {i: token_text(Logprob(0.0, bytes=token_bytes(i))) for i in dict.fromkeys(ids)}
        shaped["token_strs"] = [texts[i] for i in ids]
    return shaped | ({"warnings": warnings} if warnings else {})


async def detokenize(service: Service, request: Request) -> Response:
    body = DetokenizeRequest.model_validate(await service.read(request))
    service.check_model(body.model)
    warnings = check_extra(body)
    ids = body.tokens
    if not isinstance(ids, list):
        raise bad_request("tokens", "must be a list of token ids")
    limit = max(MAX_TOKENS, service.llm.engine.resolved.scheduler.max_model_len)
    if len(ids) > limit:
        raise bad_request("tokens", f"at most {limit} ids are read, got {len(ids)}; send several requests")
    text = await _aside(len(ids), lambda: _decode(service, ids))
    return Response(
        encode({"prompt": text} | ({"warnings": warnings} if warnings else {})), media_type="application/json"
    )


def _decode(service: Service, ids: list[Any]) -> str:
    width = service.llm.engine.inputs.bounds.vocab_size
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < width:
            raise bad_request("tokens", f"ids must be whole numbers from 0 to {width - 1}, got {str(token_id)[:60]}")
    return service.llm.engine.tokenizer.decode(ids, skip_special_tokens=False)


async def _aside(num_tokens: int, work: Callable[[], T]) -> T:
    """Long work beside the event loop."""
    return await asyncio.to_thread(work) if num_tokens > LONG_TOKENS else work()
