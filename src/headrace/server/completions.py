"""POST /v1/completions: prompts as text or ids, echo and scoring, the whole at once or as chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.inputs import Checked, Prompt
from headrace.server.answers import json_answer, num_values
from headrace.server.chunks import ChunkWriter
from headrace.server.errors import bad_request
from headrace.server.generation import Generation, News
from headrace.server.logprobs import TextOffsets, completion_logprobs, prompt_logprobs
from headrace.server.parameters import check_all, check_stream, sampling_params, split_prompts, warnings_of
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.service import Service, new_id, token_counts
from headrace.server.sse import EventStream, answer_or_leave, encode
from headrace.server.usage import usage_of
from headrace.words.config import COMPLETIONS_MAX_TOKENS
from headrace.words.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from headrace.words.params import SamplingParams


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """A checked request on its way to an answer. Choices are numbered over all prompts: prompt × n + choice."""

    body: CompletionRequest
    checked: list[Checked]
    answer_id: str
    model: str
    created_s: int
    warnings: list[str]
    service: Service

    def echoed(self, number: int) -> str:
        """The text of a prompt as the answer repeats it."""
        if not self.body.echo:
            return ""
        request = self.checked[number].request
        if request.prompt is not None:
            return request.prompt
        return self.service.llm.engine.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)

    def index(self, number: int, choice: CompletionOutput) -> int:
        return number * self.checked[number].request.n + choice.index


async def create(service: Service, request: Request) -> Response:
    arrival_s = time.monotonic()
    body = CompletionRequest.model_validate(await service.read(request))
    job = await _check(service, request, body)
    generation = service.open(job.checked, job.answer_id, bool(body.stream), arrival_s)
    if body.stream:
        return EventStream(generation, CompletionWriter(job, generation), service.senders)
    outputs = await answer_or_leave(request.receive, generation)
    return await json_answer(lambda: answer(job, outputs), num_values(outputs, body.logprobs, body.prompt_logprobs))


async def _check(service: Service, request: Request, body: CompletionRequest) -> CompletionJob:
    model = service.check_model(body.model)
    check_stream(body)
    if body.best_of not in (None, 1, body.n):
        raise bad_request("best_of", "is not supported beside n; leave it out")
    params = _params(service, body)
    prompts = [await _with_ids(service, body, p) for p in split_prompts(body.prompt, "prompt")]
    checked = await check_all(service.llm, prompts, params, body.priority, "prompt", body.truncate_prompt_tokens)
    return CompletionJob(
        body=body,
        checked=checked,
        answer_id=new_id(request, "cmpl-", body.request_id),
        model=model,
        created_s=int(time.time()),
        warnings=warnings_of(body, body.max_tokens, checked),
        service=service,
    )


def _params(service: Service, body: CompletionRequest) -> SamplingParams:
    """Absent max_tokens are 16 here and null is the room left; echo with logprobs, or with no tokens, scores."""
    more: dict[str, Any] = {"logprobs": body.logprobs}
    if "max_tokens" not in body.model_fields_set:
        more["max_tokens"] = COMPLETIONS_MAX_TOKENS
    elif body.max_tokens is None:
        more["max_tokens"] = None
    if body.echo and (body.logprobs is not None or body.max_tokens == 0) and body.prompt_logprobs is None:
        more["prompt_logprobs"] = body.logprobs or 0
    return sampling_params(service.llm, body, **more)


async def _with_ids(service: Service, body: CompletionRequest, prompt: Prompt) -> Prompt:
    """A text that asks for no special tokens is tokenized here."""
    if not isinstance(prompt, str) or body.add_special_tokens is not False:
        return prompt
    return {"prompt": prompt, "prompt_token_ids": await service.encode(prompt, False, "prompt")}


def answer(job: CompletionJob, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """For `json_answer`: the choices are made while they are written."""
    choices = (_choice(job, number, output, c) for number, output in enumerate(outputs) for c in output.outputs)
    shaped: dict[str, Any] = {
        "id": job.answer_id,
        "object": "text_completion",
        "created": job.created_s,
        "model": job.model,
        "choices": choices,
        "usage": usage_of(token_counts(outputs)),
        "system_fingerprint": None,
    }
    if job.warnings:
        shaped["warnings"] = job.warnings
    return shaped


def _choice(job: CompletionJob, number: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
    echoed = job.echoed(number)
    shaped = {
        "index": job.index(number, choice),
        "text": echoed + choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if job.body.logprobs is not None:
        offsets = TextOffsets()
        before = ChoiceLogprobs(job, offsets).of_prompt(number, output.prompt_logprobs) if job.body.echo else None
        shaped["logprobs"] = joined(before, ChoiceLogprobs(job, offsets).of_choice(choice))
    if job.body.prompt_logprobs is not None:
        shaped["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
    if job.body.return_token_ids:
        shaped["token_ids"] = list(choice.token_ids)
        shaped["prompt_token_ids"] = list(output.prompt_token_ids)
    return shaped


class ChoiceLogprobs:
    """The log-probabilities of one choice, its offsets running on from call to call."""

    def __init__(self, job: CompletionJob, offsets: TextOffsets) -> None:
        self._job = job
        self._offsets = offsets

    def of_prompt(self, number: int, positions: Sequence[PositionLogprobs | None] | None) -> dict[str, Any]:
        ids = self._job.checked[number].request.prompt_ids
        return self._shape(positions or [None] * len(ids), ids)

    def of_choice(self, choice: CompletionOutput) -> dict[str, Any]:
        positions = choice.logprobs or []
        return self._shape(positions, list(choice.token_ids)[: len(positions)])

    def _shape(self, positions: Sequence[PositionLogprobs | None], ids: Sequence[int]) -> dict[str, Any]:
        texts = self._job.service.llm.engine.tokenizer.token_bytes
        return completion_logprobs(positions, ids, self._job.body.logprobs or 0, self._offsets, texts)


def joined(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    return after if before is None else {name: before[name] + after[name] for name in after}


class CompletionWriter(ChunkWriter):
    """Chunks with what is new, the last of each choice with its finish reason; usage if asked for; `[DONE]`."""

    def __init__(self, job: CompletionJob, generation: Generation) -> None:
        super().__init__(job, "text_completion", job.body.stream_options, generation)
        self._job = job
        self._offsets: dict[int, TextOffsets] = {}
        self._scores: dict[int, list[PositionLogprobs | None]] = {}
        self._is_plain = job.body.logprobs is None and not job.body.return_token_ids
        self._has_warned = not job.warnings

    def write(self, news: News) -> bytes:
        parts: list[bytes] = []
        for number, output in news:
            assert isinstance(output, RequestOutput)
            self._scores.setdefault(number, []).extend(output.prompt_logprobs or ())
            for choice in output.outputs:
                if choice.text or choice.token_ids or choice.finish_reason is not None:
                    self._write_choice(number, choice, parts)
        return b"".join(parts)

    def _write_choice(self, number: int, choice: CompletionOutput, parts: list[bytes]) -> None:
        index = self._job.index(number, choice)
        text, before = choice.text, None
        is_first = index not in self._offsets
        if is_first:
            self._offsets[index] = TextOffsets()
            text = self._job.echoed(number) + text
            if self._job.body.echo and self._job.body.logprobs is not None:
                scores = self._scores[number]
                before = ChoiceLogprobs(self._job, self._offsets[index]).of_prompt(number, scores)
        if self._is_plain and not text and choice.finish_reason is None:
            return
        logprobs, more = (b"null", b"") if self._is_plain else self._more(index, choice, before)
        if is_first and self._job.body.return_token_ids:
            more += b',"prompt_token_ids":' + encode(list(self._job.checked[number].request.prompt_ids))
        parts.append(
            b'%b,"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b%b}]%b'
            % (
                self._first_head(),
                index,
                encode(text),
                logprobs,
                encode(choice.finish_reason),
                encode(choice.stop_reason),
                more,
                self._end_of_chunk(),
            )
        )

    def _more(self, index: int, choice: CompletionOutput, before: dict[str, Any] | None) -> tuple[bytes, bytes]:
        logprobs, more = b"null", b""
        if self._job.body.logprobs is not None:
            shaped = ChoiceLogprobs(self._job, self._offsets[index]).of_choice(choice)
            logprobs = encode(joined(before, shaped))
        if self._job.body.return_token_ids:
            more = b',"token_ids":' + encode(list(choice.token_ids))
        return logprobs, more

    def _first_head(self) -> bytes:
        if self._has_warned:
            return self._head
        self._has_warned = True
        return self._head + b',"warnings":' + encode(self._job.warnings)
