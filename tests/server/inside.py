"""The whole application in this process, over an engine whose model is a function of the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.engine.build import Engine
from headrace.engine.host import AsyncLLM
from headrace.server.app import make_app
from headrace.server.flight import FlightRecorder
from headrace.server.service import Service
from headrace.server.settings import Settings
from headrace.server.spans import Spans

URL = "http://127.0.0.1:8000"
ROOM = {"max_model_len": 512, "max_num_batched_tokens": 512}
HELLO = [{"role": "user", "content": "hello"}]


class Inside:
    """A client of the application; `service` and `engine` are what stands behind it."""

    def __init__(self, service: Service, http: httpx.AsyncClient, app: Any) -> None:
        self.service = service
        self.engine = service.llm.engine
        self.app = app
        self.http = http

    async def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.http.get(path, **more)

    async def chat(self, **body: Any) -> dict[str, Any]:
        return done(await self.post("/v1/chat/completions", {"messages": HELLO, "temperature": 0, **body}))

    async def complete(self, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
        return done(await self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **body}))

    async def events(self, path: str, **body: Any) -> list[Any]:
        response = await self.post(path, {"stream": True, **body})
        assert response.status_code == 200, response.text
        return read_events(response.text)

    async def settle(self) -> None:
        """Until nothing runs or waits."""
        core = self.engine.core
        async with asyncio.timeout(5):
            while core.has_unfinished:
                await asyncio.sleep(0.002)


def done(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()


def read_events(text: str) -> list[Any]:
    """The data of each event; `[DONE]` stays a text."""
    events = []
    for block in text.split("\n\n")[:-1]:
        data = [line for line in block.split("\n") if line.startswith("data: ")]
        assert len(data) == 1, block
        events.append("[DONE]" if data[0] == "data: [DONE]" else json.loads(data[0][6:]))
    return events


def engine(executor: FakeExecutor | None = None, **more: Any) -> Engine:
    return fakes.engine(executor, **{"num_blocks": 400, **ROOM, **more})


def within(
    work: Callable[[Inside], Awaitable[Any]],
    made: Engine | None = None,
    seconds: float = 20,
    spans: Spans | None = None,
    **settings: Any,
) -> Any:
    """Runs `await work(inside)`; every block is free again when it ends."""

    async def body() -> Any:
        asked = Settings(**{"model_names": ("toy",), **settings})
        ours = made or engine()
        flight = FlightRecorder(asked.num_steps)
        flight.attach(ours.core)
        llm = AsyncLLM(ours)
        service = Service(llm, asked, flight, spans)
        app = make_app(service)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
                inside = Inside(service, http, app)
                result = await asyncio.wait_for(work(inside), seconds)
                if not llm.is_dead:
                    await inside.settle()
                    assert ours.core.scheduler.stats().num_used_blocks == 0
                return result
        finally:
            service.close()
            llm.shutdown()

    return asyncio.run(body())


def speaking(text: str, **hooks: Any) -> FakeExecutor:
    """A model that answers every prompt with these bytes."""
    tokens = [*text.encode(), fakes.EOS]

    def script(history: Any, admission: Any) -> int:
        return tokens[min(len(history) - admission.num_prompt_tokens, len(tokens) - 1)]

    return FakeExecutor(script, **hooks)


def joined(events: list[Any]) -> str:
    """The text of a chat stream's first choice."""
    chunks = [event for event in events if event != "[DONE]" and event["choices"]]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"][0]["index"] == 0)
