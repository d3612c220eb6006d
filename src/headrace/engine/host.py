"""The core in a thread of its own, and the asyncio face of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from headrace.engine import checks
from headrace.engine.build import Engine, build_engine
from headrace.engine.core import EngineCore, describe
from headrace.engine.inputs import Checked, Params, Prompt
from headrace.engine.metrics import Metrics
from headrace.engine.output import Output, OutputKind, RequestState
from headrace.engine.tokenizer import Tokenizer
from headrace.words.config import EngineConfig
from headrace.words.errors import EngineDeadError, QueueFullError
from headrace.words.inbox import Abort, Add
from headrace.words.plan import TokenEvent

LONG_PROMPT = 20_000
"""A text of more characters, or a list of more ids, is read beside the event loop."""


class CoreThread:
    """Runs a core until `stop`: steps while there is work, asleep while there is none.

    `deliver` is called in this thread, once for each step that has events; `on_death` once, with what ended the loop.
    """

    def __init__(
        self,
        core: EngineCore,
        deliver: Callable[[list[TokenEvent]], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._on_death = on_death
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="headrace-core", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop after the step that runs; twice is once."""
        self._is_stopping = True
        self._core.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                if events := self._core.step():
                    self._deliver(events)
                if self._core.is_idle and not self._is_stopping:
                    self._core.wait()
        except BaseException as error:
            self._on_death(error)


class Stream:
    """One open request on its way to one reader. Events that come while the reader is busy wait and are told as one.

    A reader of several streams may give them all one `news`; `has_news` says which of them it is about.
    """

    def __init__(self, state: RequestState, kind: OutputKind, news: asyncio.Event | None = None) -> None:
        self.state = state
        self.kind = kind
        self.news = news or asyncio.Event()
        self.has_news = False

    def wake(self) -> None:
        self.has_news = True
        self.news.set()

    def take(self) -> Output:
        """What is new (as `delta`), or what there is."""
        self.has_news = False
        return self.state.output(delta=self.kind == "delta")


def num_prompt_tokens(checked: Iterable[Checked]) -> int:
    """As the queue counts them: once for each continuation."""
    return sum(len(each.request.prompt_ids) * each.request.n for each in checked)


class AsyncLLM:
    """Requests from one event loop; the core runs in a thread, and its events cross as one call per step."""

    @classmethod
    def from_engine_args(cls, asked: EngineConfig) -> AsyncLLM:
        return cls(build_engine(asked))

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = CoreThread(engine.core, self._deliver, self._die)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[int, Stream] = {}
        self._death: BaseException | None = None
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: Params | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        kind: OutputKind = "cumulative",
        arrival_s: float | None = None,
    ) -> AsyncIterator[Output]:
        """The request as it grows, the last time `finished`; as `delta` only what is new each time, as `final` only
        the end.

        Leaving the iterator early, or being cancelled, aborts the request. Raises RequestError before anything is
        queued, QueueFullError, and EngineDeadError with its root cause whenever the engine stops.
        """
        params = self.engine.default_sampling_params() if sampling_params is None else sampling_params
        checked = await self.check(prompt, params, priority)
        stream = self.open(checked, request_id, arrival_s, kind)
        try:
            while True:
                await stream.news.wait()
                stream.news.clear()
                if not stream.state.is_finished:
                    self.check_alive()
                output = stream.take()
                yield output
                if output.finished:
                    return
        finally:
            self.close(stream)

    async def encode(self, prompt: Prompt, pooling_params: Params, request_id: str | None = None) -> Output:
        """The vector of a prompt."""
        async for output in self.generate(prompt, pooling_params, request_id, kind="final"):
            return output
        raise AssertionError("a stream ends with a finished output")

    def abort(self, request_id: str, detail: str | None = None) -> int:
        """Ends every open request of that name, each with one final output; gives how many. None is no error."""
        found = self.engine.outputs.find(request_id)
        for ours in found:
            self.engine.core.put(Abort(ours, detail))
        return len(found)

    def abort_all(self, detail: str) -> None:
        """Ends every request that has a reader."""
        for request_id in self._streams:
            self.engine.core.put(Abort(request_id, detail))

    def fail(self, error: BaseException) -> None:
        """Every open and later request gets EngineDeadError with this cause; for a core that does not answer."""
        self._die(error)

    @property
    def is_dead(self) -> bool:
        return self._death is not None or not self._thread.is_alive

    @property
    def num_open(self) -> int:
        return len(self._streams)

    @property
    def streams(self) -> list[Stream]:
        """The open ones, the oldest first."""
        return list(self._streams.values())

    def get_metrics(self) -> Metrics:
        return self.engine.metrics.snapshot()

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def shutdown(self) -> None:
        """Ends the thread and the engine; open streams get EngineDeadError. Twice is once."""
        self._thread.stop()
        if self._death is None:
            self._die(EngineDeadError("it was shut down"))
        self.engine.close()

    async def check(self, prompt: Prompt, params: Params, priority: int | None = None) -> Checked:
        """A request that may be opened; raises RequestError."""
        inputs = self.engine.inputs
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if isinstance(text, str | list) and len(text) > LONG_PROMPT:
            return await asyncio.to_thread(inputs.check, prompt, replace(params), priority)
        return inputs.check(prompt, params, priority)

    def open(
        self,
        checked: Checked,
        client_id: str | None = None,
        arrival_s: float | None = None,
        kind: OutputKind = "cumulative",
        news: asyncio.Event | None = None,
    ) -> Stream:
        """Queues a request; whoever opens a stream closes it. Raises QueueFullError and EngineDeadError."""
        self.check_alive()
        checks.one_of("kind", kind, get_args(OutputKind))
        self._bind()
        self.check_room([checked])
        request = self.engine.inputs.admit(checked, client_id, arrival_s)
        stream = Stream(self.engine.outputs.add(request), kind, news)
        self._streams[request.request_id] = stream
        self.engine.core.put(Add(request))
        return stream

    def check_room(self, checked: Sequence[Checked]) -> None:
        """Whether the queue takes all of these; raises QueueFullError."""
        core, resolved = self.engine.core, self.engine.resolved
        limit = resolved.max_num_queued_requests
        if limit is not None and core.num_queued + sum(each.request.n for each in checked) > limit:
            raise QueueFullError(f"the queue of {limit} requests is full; try again later")
        limit = resolved.max_num_queued_tokens
        if limit is not None and core.num_queued_tokens + num_prompt_tokens(checked) > limit:
            raise QueueFullError(f"the queue of {limit} tokens is full; try again later")

    def _bind(self) -> None:
        """Events go to one loop; it may change while nothing is open."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            assert not self._streams, "an AsyncLLM with open streams belongs to their event loop"
            self._loop = loop

    def close(self, stream: Stream) -> None:
        """The reader is gone: what has not ended is aborted, and its end is only counted. Twice is once."""
        request_id = stream.state.request.request_id
        if self._streams.pop(request_id, None) is not None and not stream.state.is_finished:
            self.engine.core.put(Abort(request_id, "the reader is gone"))

    def _deliver(self, events: list[TokenEvent]) -> None:
        self._call_loop(self._take, events)

    def _call_loop(self, function: Callable[..., None], *args: object) -> None:
        """From the core's thread to the loop; a loop that is gone has no reader left."""
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(function, *args)
            except RuntimeError:
                return

    def _take(self, events: list[TokenEvent]) -> None:
        touched = self.engine.outputs.take(events)
        self.engine.metrics.progressed(touched)
        for state in touched:
            stream = self._streams.get(state.request.request_id)
            if stream is not None and (stream.kind != "final" or state.is_finished):
                stream.wake()

    def _die(self, error: BaseException) -> None:
        self._death = error
        self._call_loop(self._wake_all)

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.wake()

    def check_alive(self) -> None:
        if self._death is not None:
            cause = describe(self._death)
            raise EngineDeadError(f"the engine stopped: {cause}") from self._death
