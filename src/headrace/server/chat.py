"""POST /v1/chat/completions: the whole answer at once, or as chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.inputs import Checked
from headrace.server.answers import json_answer, num_values
from headrace.server.chunks import ChunkWriter
from headrace.server.errors import bad_request
from headrace.server.generation import Generation, News
from headrace.server.logprobs import chat_logprobs, prompt_logprobs
from headrace.server.parameters import check_all, check_stream, sampling_params, warnings_of
from headrace.server.protocol.chat import ChatRequest
from headrace.server.service import Service, new_id, token_counts
from headrace.server.sse import EventStream, answer_or_leave, encode
from headrace.server.usage import usage_of
from headrace.words.outputs import CompletionOutput, RequestOutput


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A checked request on its way to an answer."""

    body: ChatRequest
    checked: list[Checked]
    answer_id: str
    model: str
    created_s: int
    warnings: list[str]
    num_top: int | None
    """Most likely tokens to tell beside each emitted one; None: no log-probabilities."""


async def create(service: Service, request: Request) -> Response:
    arrival_s = time.monotonic()
    body = ChatRequest.model_validate(await service.read(request))
    job = await _check(service, request, body)
    generation = service.open(job.checked, job.answer_id, bool(body.stream), arrival_s)
    if body.stream:
        return EventStream(generation, ChatWriter(job, generation), service.senders)
    (output,) = await answer_or_leave(request.receive, generation)
    return await json_answer(lambda: answer(job, output), num_values([output], job.num_top, body.prompt_logprobs))


async def _check(service: Service, request: Request, body: ChatRequest) -> ChatJob:
    model = service.check_model(body.model)
    num_top = _num_top(body)
    check_stream(body)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    more = {"logprobs": num_top} | ({} if asked is None else {"max_tokens": asked})
    params = sampling_params(service.llm, body, **more)
    continues = bool(body.continue_final_message)
    adds = body.add_generation_prompt if body.add_generation_prompt is not None else not continues
    chat = await service.render(body.messages, adds, continues, body.chat_template_kwargs)
    checked = await check_all(
        service.llm, [chat.prompt], params, body.priority, "messages", body.truncate_prompt_tokens, _names(body)
    )
    return ChatJob(
        body=body,
        checked=checked,
        answer_id=new_id(request, "chatcmpl-", body.request_id),
        model=model,
        created_s=int(time.time()),
        warnings=warnings_of(body, asked, checked),
        num_top=num_top,
    )


def _names(body: ChatRequest) -> dict[str, str]:
    """The protocol's words for the engine's parameters, as far as they differ."""
    names = {"logprobs": "top_logprobs"}
    return names if body.max_completion_tokens is None else {**names, "max_tokens": "max_completion_tokens"}


def _num_top(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise bad_request("top_logprobs", "needs logprobs to be true")
    return None


def answer(job: ChatJob, output: RequestOutput) -> dict[str, Any]:
    shaped: dict[str, Any] = {
        "id": job.answer_id,
        "object": "chat.completion",
        "created": job.created_s,
        "model": job.model,
        "choices": [_choice(job, choice) for choice in output.outputs],
        "usage": usage_of(token_counts([output])),
        "system_fingerprint": None,
    }
    if output.prompt_logprobs is not None:
        shaped["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
    if job.body.return_token_ids:
        shaped["prompt_token_ids"] = list(output.prompt_token_ids)
    if job.warnings:
        shaped["warnings"] = job.warnings
    return shaped


def _choice(job: ChatJob, choice: CompletionOutput) -> dict[str, Any]:
    shaped = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if job.num_top is None else chat_logprobs(choice.logprobs or [], job.num_top),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if job.body.return_token_ids:
        shaped["token_ids"] = list(choice.token_ids)
    return shaped


class ChatWriter(ChunkWriter):
    """A role chunk for each choice, chunks with what is new, a finish chunk, usage if it is asked for, `[DONE]`."""

    def __init__(self, job: ChatJob, generation: Generation) -> None:
        super().__init__(job, "chat.completion.chunk", job.body.stream_options, generation)
        self._job = job
        self._started: set[int] = set()
        self._is_plain = job.num_top is None and not job.body.return_token_ids

    def write(self, news: News) -> bytes:
        parts: list[bytes] = []
        for _, output in news:
            assert isinstance(output, RequestOutput)
            for choice in output.outputs:
                self._write_choice(choice, parts)
        return b"".join(parts)

    def _write_choice(self, choice: CompletionOutput, parts: list[bytes]) -> None:
        index = choice.index
        if index not in self._started:
            parts.append(self._role_chunk(index))
            self._started.add(index)
        if choice.text or (choice.token_ids and not self._is_plain):
            more = b"" if self._is_plain else self._more(choice)
            logprobs = b"null" if self._job.num_top is None else self._logprobs(choice)
            parts.append(
                b'%b,"choices":[{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null%b}]%b'
                % (self._head, index, encode(choice.text), logprobs, more, self._end_of_chunk())
            )
        if choice.finish_reason is not None:
            parts.append(
                b'%b,"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}]%b'
                % (
                    self._head,
                    index,
                    encode(choice.finish_reason),
                    encode(choice.stop_reason),
                    self._end_of_chunk(),
                )
            )

    def _role_chunk(self, index: int) -> bytes:
        head = self._head
        if not self._started:
            extra: dict[str, Any] = {}
            if self._job.warnings:
                extra["warnings"] = self._job.warnings
            if self._job.body.return_token_ids:
                extra["prompt_token_ids"] = list(self._job.checked[0].request.prompt_ids)
            head += b"," + encode(extra)[1:-1] if extra else b""
        return (
            b'%b,"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b'
            % (head, index, self._end_of_chunk())
        )

    def _logprobs(self, choice: CompletionOutput) -> bytes:
        return encode(chat_logprobs(choice.logprobs or [], self._job.num_top or 0))

    def _more(self, choice: CompletionOutput) -> bytes:
        if not self._job.body.return_token_ids:
            return b""
        return b',"token_ids":' + encode(list(choice.token_ids))
