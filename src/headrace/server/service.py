"""What all routes share: the engine, the settings, the books of requests and steps, and whether the server drains."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from headrace.engine.chat import RenderedChat
from headrace.engine.host import LONG_PROMPT, AsyncLLM
from headrace.engine.inputs import Checked, clean_text
from headrace.server.beside import Beside
from headrace.server.body import read_json
from headrace.server.books import Books
from headrace.server.errors import ApiError, bad_request
from headrace.server.flight import FlightRecorder
from headrace.server.generation import Generation
from headrace.server.metrics import ServerMetrics
from headrace.server.protocol.fields import MAX_ID_CHARS
from headrace.server.room import Room
from headrace.server.settings import Settings
from headrace.server.spans import NoSpans, Spans
from headrace.server.sse import EventStream

TEMPLATE_THREADS = 4
MAX_MESSAGES = 16_384
DECODE_TIMEOUT_S = 60.0
NUM_FINISH_TIMES = 64
MAX_RETRY_AFTER_S = 60
"""Clients of OpenAI's kind honour up to twice that."""
MAX_VARIABLES = 256
REFUSED_VARIABLES = frozenset(
    "tokenize chat_template conversation conversations messages tools documents padding truncation max_length "
    "return_tensors return_dict tokenizer tokenizer_kwargs add_generation_prompt continue_final_message".split()
)
"""Names in chat_template_kwargs that would not be variables of a template but orders to whoever renders it."""


class Service:
    """Lives as long as the server; used from its event loop."""

    def __init__(
        self, llm: AsyncLLM, settings: Settings, flight: FlightRecorder | None = None, spans: Spans | None = None
    ) -> None:
        self.llm = llm
        self.settings = settings
        self.flight = flight or FlightRecorder(settings.num_steps)
        self.books = Books(llm.engine.core, settings.num_remembered, self.flight)
        self.metrics = ServerMetrics(llm, settings.model_name, self.flight)
        self.spans = spans or NoSpans()
        self.is_draining = False
        self.num_inside = 0
        """HTTP requests that were let in and are not answered yet; some are not queued so far."""
        self.senders: dict[EventStream, None] = {}
        self.started_s = int(time.time())
        self._finish_times_s: deque[float] = deque(maxlen=NUM_FINISH_TIMES)
        self.alarm: Callable[[], None] = lambda: None
        """Called when there is new work; the watchdog's."""
        self._turnstile = asyncio.Lock()
        self._renderers = Beside(TEMPLATE_THREADS, "headrace-template")
        self._decoders = Beside(1, "headrace-json")
        self._bodies = Room(max(settings.max_bodies_bytes, settings.max_body_bytes))
        llm.engine.metrics.listen(lambda state: self._finish_times_s.append(time.monotonic()))
        llm.engine.metrics.listen(self.books.finished)
        llm.engine.metrics.listen(self.metrics.finished)
        llm.engine.metrics.listen(self.spans.finished)
        llm.engine.metrics.watch(self.metrics.progressed)

    def close(self) -> None:
        self._renderers.close()
        self._decoders.close()
        self.spans.close()

    def open(
        self, checked: Sequence[Checked], answer_id: str, streams: bool, arrival_s: float | None = None
    ) -> Generation:
        """Queues the prompts of one HTTP request; whoever opens it closes it."""
        generation = Generation(self.llm, checked, answer_id, streams, arrival_s)
        self.spans.opened(stream.state.request.request_id for stream in generation.streams)
        self.alarm()
        return generation

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1

    def bounds(self) -> dict[str, int]:
        """What the model and the queue allow, as /openapi.json says it."""
        bounds, resolved = self.llm.engine.inputs.bounds, self.llm.engine.resolved
        return {
            "last_token_id": bounds.vocab_size - 1,
            "hidden_size": bounds.hidden_size,
            "max_model_len": bounds.max_model_len,
            "most_continuations": min(bounds.limits.n, resolved.max_num_queued_requests or bounds.limits.n),
        }

    async def take_turn(self) -> None:
        """Lets one request begin in each round of the event loop, so that a crowd does not keep probes waiting."""
        async with self._turnstile:
            await asyncio.sleep(0)

    async def read(self, request: Request) -> dict[str, Any]:
        """The JSON object in the body of a request."""
        def beside(work: Callable[[], Any]) -> Awaitable[Any]:
            return self._decoders.run(work, DECODE_TIMEOUT_S)

        return await read_json(request, self.settings, beside, self._bodies)

    async def encode(self, text: str, adds_special_tokens: bool, param: str) -> list[int]:
        """Token ids of a text, a long one beside the event loop."""
        limit = self.llm.engine.inputs.bounds.limits.prompt_chars
        if len(text) > limit:
            raise bad_request(param, f"at most {limit} characters are read, got {len(text)}; shorten it")

        def work() -> list[int]:
            return self.llm.engine.tokenizer.encode(clean_text(text), add_special_tokens=adds_special_tokens)

        return await asyncio.to_thread(work) if len(text) > LONG_PROMPT else work()

    def retry_after_s(self) -> int:
        """Seconds until half of what waits should have begun, from the pace of the last finished requests."""
        times = self._finish_times_s
        if len(times) < 2:
            return 1
        seconds_each = (time.monotonic() - times[0]) / len(times)
        return min(MAX_RETRY_AFTER_S, max(1, round(seconds_each * self.llm.engine.core.num_queued / 2)))

    def check_model(self, name: str | None) -> str:
        """The name that the answer says; 404 for one that nobody serves."""
        if name is None or name == "":
            return self.settings.model_name
        if name not in self.settings.model_names:
            known = ", ".join(self.settings.model_names)
            raise ApiError(404, f"the model {name[:200]!r} does not exist; served: {known}", "model", "model_not_found")
        return name

    def not_ready(self) -> str | None:
        """Why no request can be taken now, None if one can."""
        core, resolved = self.llm.engine.core, self.llm.engine.resolved
        if self.llm.is_dead:
            return "the engine stopped"
        if self.is_draining:
            return "the server is shutting down"
        limit = resolved.max_num_queued_requests
        if limit is not None and core.num_queued >= limit:
            return "the queue is full"
        return None

    async def render(
        self,
        messages: Any,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """A conversation as the model's template shows it, made beside the event loop within its time."""
        if not isinstance(messages, list):
            raise bad_request("messages", "must be a list of messages")
        if len(messages) > MAX_MESSAGES:
            raise bad_request("messages", f"at most {MAX_MESSAGES} are read, got {len(messages)}; send fewer")
        if refused := REFUSED_VARIABLES.intersection(variables or {}):
            raise bad_request(
                "chat_template_kwargs", f"may not hold {min(refused)!r}; it names variables of the template"
            )
        if variables is not None and len(variables) > MAX_VARIABLES:
            raise bad_request("chat_template_kwargs", f"may hold at most {MAX_VARIABLES} names, got {len(variables)}")
        template = self.llm.engine.chat_template()
        limit_s = self.settings.template_timeout_s

        def work() -> RenderedChat:
            return template.render(messages, add_generation_prompt, continue_final_message, **(variables or {}))

        try:
            return await self._renderers.run(work, limit_s)
        except TimeoutError:
            raise bad_request("messages", f"the chat template took more than {limit_s:g} s") from None
        except RecursionError:
            raise bad_request("messages", "are nested too deeply") from None


def new_id(request: Request, prefix: str, chosen: Any = None) -> str:
    """The id of an answer: what the client chose, in the body or as X-Request-Id, behind the protocol's prefix."""
    if isinstance(chosen, str) and chosen:
        if len(chosen) > MAX_ID_CHARS or not chosen.isprintable():
            raise bad_request("request_id", f"must be at most {MAX_ID_CHARS} printable characters")
        return prefix + chosen
    return prefix + str(request.scope.get("headrace.request_id") or uuid.uuid4().hex)


def token_counts(outputs: Sequence[Any]) -> list[tuple[int, int, int]]:
    """(prompt, output, cached) tokens of finished outputs."""
    return [
        (len(o.prompt_token_ids), sum(len(choice.token_ids) for choice in o.outputs), o.num_cached_tokens)
        for o in outputs
    ]
