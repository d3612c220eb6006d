"""The JSON body of a request: bounded before it is read, before it is decoded, and before anybody walks it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request

from headrace.engine.inputs import clean_text
from headrace.server.errors import ApiError, bad_request
from headrace.server.room import Room, Share
from headrace.server.settings import Settings

MAX_DEPTH = 64
MAX_FIELDS = 1_024
"""Of the body itself."""
LONG_BODY = 1 << 16
"""A body of more bytes is decoded beside the event loop."""
MAX_VALUES = 1 << 20
MAX_MEMBERS = 200_000
"""Of all objects together. Decoding JSON is one call that holds every thread up, for as long as it has values to make:
with so many about a twentieth of a second. Text is cheap, and so are numbers, between which others run."""
BLANKS = b" \t\r\n"
"""What JSON allows between a name and its colon."""
MAX_EXACT = 1 << 53
JSON_TYPES = ("", "application/json")
Decode = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work beside the event loop."""


class ClientGone(Exception):
    """Nobody is there any more to be told anything."""


async def read_json(request: Request, settings: Settings, beside: Decode, room: Room) -> dict[str, Any]:
    """The object in the body. Lone surrogates in its texts become U+FFFD; raises ApiError. What is beyond LONG_BODY
    takes of the room that all bodies have, until it is decoded."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES and not kind.endswith("+json"):
        raise ApiError(415, f"the body must be application/json, got {kind[:80]!r}", closes=True)
    with room.share() as share:
        data = await _read(request, settings, share)
        value = parse(data) if len(data) <= LONG_BODY else await _decoded(data, beside)
    if not isinstance(value, dict):
        raise bad_request(None, "the body must be a JSON object")
    if len(value) > MAX_FIELDS:
        raise bad_request(None, f"the body may have at most {MAX_FIELDS} fields, got {len(value)}")
    return value


async def _decoded(data: bytes, beside: Decode) -> Any:
    try:
        return await beside(lambda: parse(data))
    except TimeoutError:
        raise _busy() from None


def _busy() -> ApiError:
    message = "many long bodies are being read; try again later"
    return ApiError(503, message, code="many_long_bodies", retry_after_s=1, closes=True)


async def _read(request: Request, settings: Settings, share: Share) -> bytes:
    limit = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for part in request.stream():
                parts.append(part)
                length += len(part)
                if length > limit:
                    raise _too_large(limit)
                if not share.grow(length - LONG_BODY):
                    raise _busy()
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {settings.body_timeout_s:g} s", closes=True) from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body may have at most {limit} bytes", code="request_too_large", closes=True)


def parse(data: bytes) -> Any:
    """JSON of at most MAX_DEPTH levels; NaN and Infinity are read, so that they can be refused by name."""
    if data.count(b",") > MAX_VALUES:
        raise bad_request(None, f"the body may hold at most {MAX_VALUES} values")
    if _num_members(data) > MAX_MEMBERS:
        raise bad_request(None, f"the objects in the body may have at most {MAX_MEMBERS} members together")
    try:
        value = _loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise bad_request(None, "the body is not valid UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise bad_request(None, f"the body is not valid JSON: {_cause(error)}") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return _clean(value) if b"\\ud" in data or b"\\uD" in data else value


def _num_members(data: bytes) -> int:
    """At least as many as there are. Where colons or quotes are too few for too many, nothing is copied."""
    at_most = min(data.count(b":"), data.count(b'"') // 2)
    return at_most if at_most <= MAX_MEMBERS else data.translate(None, BLANKS).count(b'":')


def _loads(text: str) -> Any:
    """JSON, read without looking for garbage among what is just being made: that takes many times as long."""
    gc.disable()
    try:
        return json.loads(text, parse_float=_number, parse_int=_whole)
    finally:
        gc.enable()


def _whole(text: str) -> int:
    """As json does it by itself, but in Python, so that other threads run between two numbers."""
    return int(text)


def _number(text: str) -> int | float:
    """5.0 is 5, as JSON Schema has it, so that it may stand for a count."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value


def _cause(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "a number has too many digits"


def _check_depth(value: Any) -> None:
    """Goes down level by level and copies nothing."""
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        items = (parent.values() if isinstance(parent, dict) else parent for parent in level)
        level = [item for inner in items for item in inner if isinstance(item, list | dict)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return bad_request(None, f"the body is nested deeper than {MAX_DEPTH} levels")


def _clean(value: Any) -> Any:
    """A copy without lone surrogates."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
