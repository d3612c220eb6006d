"""A whole answer as JSON; a large one is made beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from headrace.server.sse import encode
from headrace.words.outputs import RequestOutput

LARGE_ANSWER = 8_192
"""Values; so many take some milliseconds."""


async def json_answer(make: Callable[[], Mapping[str, Any]], num_values: int) -> Response:
    """What `make` gives, an object of about so many values."""

    def work() -> bytes:
        return in_pieces(make())

    data = await asyncio.to_thread(work) if num_values > LARGE_ANSWER else work()
    return Response(data, media_type="application/json")


def in_pieces(shaped: Mapping[str, Any]) -> bytes:
    """As `encode`, but with a call for each member of a list, which may be made only then: one for all would hold every
    thread up, and take several times the memory."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode(name), _member(value)) for name, value in shaped.items())


def _member(value: Any) -> bytes:
    return b"[%b]" % b",".join(map(encode, value)) if isinstance(value, list | Iterator) else encode(value)


def num_values(outputs: Sequence[RequestOutput], *num_tops: int | None) -> int:
    """About as many as an answer has with log-probabilities of so many alternatives, None for none at all."""
    num_tokens = sum(len(o.prompt_token_ids) + sum(len(choice.token_ids) for choice in o.outputs) for o in outputs)
    return num_tokens * max(1 if num_top is None else 2 + num_top for num_top in num_tops)
