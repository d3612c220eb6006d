"""A running server behind the same commands: its answers as the outputs that an engine of this process gives."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from headrace.server.settings import LOOPBACK
from headrace.words import envs
from headrace.words.errors import ConfigError, EngineError, RequestError
from headrace.words.outputs import CompletionOutput, Move, RequestMetrics, RequestOutput

URL = "http://127.0.0.1:8000"
AT_ONCE = 64
DONE = b"data: [DONE]"
UrlOption = Annotated[str | None, typer.Option("--url", help="Ask a running server, not a model of this process.")]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", help="Key of that server; default: HEADRACE_API_KEY.", show_default=False)
]


class Server:
    """A client of one server. Refusals are RequestErrors, everything else that goes wrong an EngineError."""

    def __init__(self, url: str, key: str | None = None, model: str | None = None, timeout_s: float = 600) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", f"must be like {URL}, got {url!r}")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self.model = model
        self._key = key or envs.get("HEADRACE_API_KEY")
        self._timeout_s = timeout_s
        proxies = [urllib.request.ProxyHandler({})] if parts.hostname in LOOPBACK else []
        self._opener = urllib.request.build_opener(*proxies)

    def get(self, path: str) -> bytes:
        with self._open(path) as response:
            return bytes(response.read())

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def defaults(self) -> Mapping[str, Any]:
        """Sampling values that the server takes where a request names none, as far as it tells them."""
        known = self.get_json("/v1/models")["data"]
        named = (model for model in known if model["id"] == self.model)
        return next(named, known[0] if known else {}).get("default_sampling_params") or {}

    def chat(self, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any]) -> Iterator[RequestOutput]:
        """An answer as it grows, the last time finished. Ctrl-C ends it: then its last output says so."""
        return self._stream("/v1/chat/completions", {"messages": list(messages), **fields}, messages[-1]["content"])

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> Iterator[RequestOutput]:
        return self._stream("/v1/completions", {"prompt": prompt, **fields}, prompt)

    def _stream(self, path: str, body: dict[str, Any], prompt: str) -> Iterator[RequestOutput]:
        named = {} if self.model is None else {"model": self.model}
        options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        growing = _Growing(prompt)
        try:
            with self._open(path, {**named, **body, **options}) as response:
                for chunk in _events(response):
                    growing.take(chunk)
                    yield growing.output
        except KeyboardInterrupt:
            growing.abort()
        growing.end()
        yield growing.output

    def with_life(self, output: RequestOutput) -> RequestOutput:
        """The same output with the timelines that the server remembers of it."""
        life = self.get_json(f"/v1/requests/{quote(output.request_id, safe='')}")["data"][0]
        start_s = output.metrics.arrival_s if output.metrics else 0.0
        for choice, told in zip(output.outputs, life["choices"], strict=False):
            choice.timeline = tuple(Move(start_s + m["at_s"], m["from"], m["to"], m["where"]) for m in told["timeline"])
            choice.seed, choice.num_preemptions = told["seed"], told["num_preemptions"]
            choice.finish_detail = told["finish_detail"]
        return output

    def _open(self, path: str, body: Any = None) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            asked = urllib.request.Request(self.url + path, data, headers)
            response: http.client.HTTPResponse = self._opener.open(asked, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            raise self._error(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "reason", None) or error
            raise EngineError(f"no server answers at {self.url} ({cause}); start one with `headrace serve`") from None
        return response

    def _error(self, error: urllib.error.HTTPError) -> RequestError | EngineError:
        try:
            told = json.loads(error.read())["error"]
        except (ValueError, KeyError, TypeError, OSError):
            return EngineError(f"{self.url} answered {error.code}")
        if error.code == 401:
            return RequestError("api_key", f"{told['message']}; give --api-key or set HEADRACE_API_KEY")
        message = str(told["message"])
        if error.code < 500:
            name = told.get("param") or "request"
            return RequestError(name, message.removeprefix(f"{name}: "))
        return EngineError(f"the server answered {error.code}: {message}")


class _Growing:
    """The output of one stream, as far as its chunks have come; times are this machine's."""

    def __init__(self, prompt: str) -> None:
        now_s = time.monotonic()
        self._choices: dict[int, CompletionOutput] = {}
        self._times = RequestMetrics(now_s, now_s)
        self._ended = False
        self.output = RequestOutput("", prompt, [], [], finished=False, metrics=self._times)

    def take(self, chunk: Mapping[str, Any]) -> None:
        if "error" in chunk:
            raise EngineError(f"the server ended the answer: {chunk['error']['message']}")
        self.output.request_id = chunk["id"]
        self.output.prompt_token_ids = chunk.get("prompt_token_ids") or self.output.prompt_token_ids
        if usage := chunk.get("usage"):
            self.output.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for told in chunk["choices"]:
            self._take_choice(told)

    def _take_choice(self, told: Mapping[str, Any]) -> None:
        index = told["index"]
        choice = self._choices.setdefault(index, CompletionOutput(index, "", []))
        self.output.outputs = [self._choices[i] for i in sorted(self._choices)]
        self.output.prompt_token_ids = told.get("prompt_token_ids") or self.output.prompt_token_ids
        text = told["delta"].get("content") if "delta" in told else told.get("text")
        if text:
            self._times.last_token_s = time.monotonic()
            self._times.first_token_s = self._times.first_token_s or self._times.last_token_s
        choice.text += text or ""
        choice.token_ids = [*choice.token_ids, *(told.get("token_ids") or ())]
        choice.finish_reason = told.get("finish_reason") or choice.finish_reason
        choice.stop_reason = told.get("stop_reason") or choice.stop_reason

    def abort(self) -> None:
        for choice in self._choices.values() or [self._first()]:
            choice.finish_reason, choice.finish_detail = "abort", "interrupted"

    def _first(self) -> CompletionOutput:
        self.output.outputs = [CompletionOutput(0, "", [])]
        return self.output.outputs[0]

    def end(self) -> None:
        if not self.output.outputs or any(choice.finish_reason is None for choice in self.output.outputs):
            raise EngineError("the connection ended before the answer did")
        self.output.finished = True
        self._times.finished_s = time.monotonic()


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    for line in response:
        if line.startswith(DONE):
            return
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def last(outputs: Iterator[RequestOutput]) -> RequestOutput:
    return deque(outputs, maxlen=1).pop()


def all_of(streams: Sequence[Iterator[RequestOutput]]) -> list[RequestOutput]:
    """The finished outputs of streams that run at once."""
    with ThreadPoolExecutor(min(AT_ONCE, len(streams))) as pool:
        return list(pool.map(last, streams))


def fields_of(sampling: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request that were asked for. What only an engine of this process could do is a ConfigError."""
    if engine:
        name = next(iter(engine))
        raise ConfigError(name, "is the engine's; with --url the server decides it: leave it out")
    if "logprobs" in sampling:
        raise ConfigError("logprobs", "are not shown of a server; leave it out, or leave out --url")
    return dict(sampling)
