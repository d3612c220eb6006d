"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol over the same engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.inputs import Checked
from headrace.server.errors import ApiError, bad_request, error_body
from headrace.server.generation import Generation, News
from headrace.server.parameters import check_all, given, warnings_of
from headrace.server.protocol.fields import check_extra
from headrace.server.protocol.messages import CountTokensRequest, MessagesRequest
from headrace.server.service import Service, new_id
from headrace.server.sse import EventStream, answer_or_leave, encode
from headrace.words.outputs import CompletionOutput, RequestOutput
from headrace.words.params import SamplingParams

NAMES = {"stop": "stop_sequences"}


@dataclass(frozen=True, slots=True)
class MessagesJob:
    checked: list[Checked]
    answer_id: str
    model: str
    warnings: list[str]


async def create(service: Service, request: Request) -> Response:
    arrival_s = time.monotonic()
    body = MessagesRequest.model_validate(await service.read(request))
    model = service.check_model(body.model)
    chat = await service.render(conversation(body), **_turn(body))
    params = _params(service, body)
    checked = await check_all(service.llm, [chat.prompt], params, None, "messages", names=NAMES)
    warnings = warnings_of(body, body.max_tokens, checked)
    job = MessagesJob(checked, new_id(request, "msg_"), model, warnings)
    generation = service.open(job.checked, job.answer_id, bool(body.stream), arrival_s)
    if body.stream:
        return EventStream(generation, MessagesWriter(job, generation), service.senders, "anthropic")
    (output,) = await answer_or_leave(request.receive, generation)
    return Response(encode(answer(job, output)), media_type="application/json")


async def count_tokens(service: Service, request: Request) -> Response:
    body = CountTokensRequest.model_validate(await service.read(request))
    service.check_model(body.model)
    check_extra(body)
    chat = await service.render(conversation(body), **_turn(body))
    return Response(encode({"input_tokens": len(chat.token_ids)}), media_type="application/json")


def conversation(body: CountTokensRequest) -> list[Any]:
    """Anthropic's turns as messages; `system` stands before them."""
    if not isinstance(body.messages, list) or not body.messages:
        raise bad_request("messages", "must be a list of at least one message")
    for message in body.messages:
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            raise bad_request("messages", "each must be an object whose role is user or assistant")
    turns = body.messages
    if len(turns) > 1 and turns[-1]["role"] == "assistant" and _is_blank(turns[-1]):
        turns = turns[:-1]
    return turns if body.system is None else [{"role": "system", "content": body.system}, *turns]


def _is_blank(turn: Mapping[str, Any]) -> bool:
    content = turn.get("content")
    return isinstance(content, str) and not content.strip()


def _turn(body: CountTokensRequest) -> dict[str, Any]:
    """An answer that the client has begun is continued; one without text is not begun."""
    begun = body.messages[-1].get("role") == "assistant" and not _is_blank(body.messages[-1])
    return {"add_generation_prompt": not begun, "continue_final_message": begun}


def _params(service: Service, body: MessagesRequest) -> SamplingParams:
    own = given(body, ("max_tokens", "temperature", "top_p", "top_k", "seed"))
    stop = {} if body.stop_sequences is None else {"stop": body.stop_sequences}
    return SamplingParams(**{**service.llm.engine.sampling_defaults, **own, **stop})


def stop_of(choice: CompletionOutput) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence) as Anthropic says them."""
    if choice.finish_reason is None:
        return None, None
    if isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return ("max_tokens" if choice.finish_reason == "length" else "end_turn"), None


def usage(num_prompt: int, num_cached: int, num_output: int) -> dict[str, int]:
    """Cached tokens are counted apart from the others."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
    }


def answer(job: MessagesJob, output: RequestOutput) -> dict[str, Any]:
    choice = output.outputs[0]
    stop_reason, stop_sequence = stop_of(choice)
    shaped = {
        "id": job.answer_id,
        "type": "message",
        "role": "assistant",
        "model": job.model,
        "content": [{"type": "text", "text": choice.text}],
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage(len(output.prompt_token_ids), output.num_cached_tokens, len(choice.token_ids)),
    }
    return shaped | ({"warnings": job.warnings} if job.warnings else {})


def named_event(value: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), encode(value))


class MessagesWriter:
    """message_start, content_block_start, deltas, content_block_stop, message_delta, message_stop."""

    def __init__(self, job: MessagesJob, generation: Generation) -> None:
        self._job = job
        self._state = generation.streams[0].state
        self._is_started = False
        self._last: CompletionOutput | None = None
        self._head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'

    def write(self, news: News) -> bytes:
        parts = []
        for _, output in news:
            assert isinstance(output, RequestOutput)
            if not self._is_started:
                self._is_started = True
                parts.append(self._start(output))
            for choice in output.outputs:
                self._last = choice
                if choice.text:
                    parts.append(b'%b{"type":"text_delta","text":%b}}\n\n' % (self._head, encode(choice.text)))
        return b"".join(parts)

    def _start(self, output: RequestOutput) -> bytes:
        message: dict[str, Any] = {
            "id": self._job.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._job.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(len(output.prompt_token_ids), output.num_cached_tokens, 0),
        }
        if self._job.warnings:
            message["warnings"] = self._job.warnings
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return named_event({"type": "message_start", "message": message}) + named_event(block)

    def end(self) -> bytes:
        assert self._last is not None
        stop_reason, stop_sequence = stop_of(self._last)
        state = self._state
        counted = usage(len(state.request.prompt_ids), state.num_cached_tokens, state.num_output_tokens)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        return (
            named_event({"type": "content_block_stop", "index": 0})
            + named_event({"type": "message_delta", "delta": delta, "usage": counted})
            + named_event({"type": "message_stop"})
        )

    def fail(self, error: ApiError) -> bytes:
        return named_event(error_body(error, "anthropic"))
