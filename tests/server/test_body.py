"""Bodies of requests: what is read, what is refused, and where the work is done."""

import asyncio
import json
import threading
import time

import pytest
from starlette.requests import Request

from headrace.engine.inputs import PIECE_CHARS, clean_text
from headrace.server.body import LONG_BODY, MAX_DEPTH, MAX_MEMBERS, parse, read_json
from headrace.server.errors import ApiError
from headrace.server.room import Room
from headrace.server.settings import Settings


def nested(num_levels: int) -> bytes:
    """An object whose lists make so many levels."""
    return b'{"a": ' + b"[" * (num_levels - 1) + b"]" * (num_levels - 1) + b"}"


def read(data: bytes, run=lambda work: work()) -> tuple[dict, int]:
    """The object in a body, and how many times the event loop was spared."""
    spared = []

    async def receive():
        return {"type": "http.request", "body": data, "more_body": False}

    async def beside(work):
        spared.append(len(data))
        return run(work)

    request = Request({"type": "http", "headers": []}, receive)
    value = asyncio.run(read_json(request, Settings(model_names=("toy",)), beside, Room(1 << 20)))
    return value, len(spared)


def test_as_many_levels_as_are_allowed_are_read_and_one_more_is_refused():
    assert parse(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    with pytest.raises(ApiError, match=f"deeper than {MAX_DEPTH} levels"):
        parse(nested(MAX_DEPTH + 1))


def test_many_shallow_lists_and_brackets_in_a_text_are_not_deep():
    for value in ([[]] * 1_000, "[" * 1_000, {"a": [{"b": "{["}] * 100}):
        assert parse(json.dumps(value).encode()) == value


def test_only_a_long_body_is_decoded_beside_the_event_loop():
    short, long = {"prompt": "a" * (LONG_BODY - 100)}, {"prompt": "a" * LONG_BODY}
    assert read(json.dumps(short).encode()) == (short, 0)
    assert read(json.dumps(long).encode()) == (long, 1)


def test_a_long_body_that_waited_too_long_for_its_turn_may_come_again():
    def busy(work):
        raise TimeoutError

    with pytest.raises(ApiError, match="try again later") as caught:
        read(json.dumps("a" * LONG_BODY).encode(), busy)
    assert caught.value.status == 503


def test_long_bodies_share_their_room_and_short_ones_need_none():
    room, settings, goes_on = Room(3 * LONG_BODY), Settings(model_names=("toy",)), asyncio.Event()

    def coming(num_bytes: int) -> Request:
        """A request whose last byte comes when all may go on."""
        data = json.dumps("a" * (num_bytes - 2)).encode()
        parts = [{"type": "http.request", "body": data[:-1], "more_body": True}, {"type": "http.request", "body": b'"'}]

        async def receive():
            if len(parts) == 1:
                await goes_on.wait()
            return parts.pop(0)

        return Request({"type": "http", "headers": []}, receive)

    async def beside(work):
        return {"size": len(work())}

    async def read_all() -> tuple[list, object]:
        tasks = [asyncio.create_task(read_json(coming(2 * LONG_BODY), settings, beside, room)) for _ in range(4)]
        await asyncio.sleep(0.01)
        goes_on.set()
        with pytest.raises(ApiError, match="must be a JSON object"):
            await read_json(coming(LONG_BODY), settings, beside, room)
        return await asyncio.gather(*tasks, return_exceptions=True)

    *read, refused = asyncio.run(read_all())
    assert read == [{"size": 2 * LONG_BODY - 2}] * 3
    assert (refused.status, refused.code, refused.headers["connection"]) == (503, "many_long_bodies", "close")
    assert "retry-after" in refused.headers and room.num_free == 3 * LONG_BODY


def test_lone_surrogates_become_replacement_characters_in_names_and_values():
    assert parse(rb'{"a\ud800": ["\udfff!", {"b": 1}]}') == {"a\ufffd": ["\ufffd!", {"b": 1}]}


@pytest.mark.parametrize("colon", [":", " :", "\t\r\n: "])
def test_too_many_members_are_refused_however_they_are_written(colon):
    def objects(number: int) -> bytes:
        return json.dumps([{"a": 1}] * number, separators=(",", colon)).encode()

    assert len(parse(objects(MAX_MEMBERS))) == MAX_MEMBERS
    with pytest.raises(ApiError, match=f"at most {MAX_MEMBERS} members"):
        parse(objects(MAX_MEMBERS + 1))


def test_colons_and_quotes_in_a_text_are_no_members():
    text = "a: " * MAX_MEMBERS * 2 + '"b", ' * MAX_MEMBERS
    assert parse(json.dumps(text).encode()) == text


def longest_wait(work) -> float:
    """The share of its time for which `work`, on another thread, lets this one not run."""
    thread = threading.Thread(target=work)
    longest, began = 0.0, time.perf_counter()
    thread.start()
    last = began
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return max(longest, time.perf_counter() - last) / (time.perf_counter() - began)


@pytest.mark.parametrize(
    "work",
    [
        lambda: parse(b"[" + b",".join([b"9" * 4_000] * 2_000) + b"]"),
        lambda: parse(b'["' + rb"\ud800" * 600_000 + b'"]'),
    ],
    ids=["long numbers", "halves of pairs"],
)
def test_other_threads_run_while_a_body_is_decoded(work):
    assert min(longest_wait(work) for _ in range(3)) < 0.5


@pytest.mark.parametrize("length", [PIECE_CHARS - 1, PIECE_CHARS, PIECE_CHARS + 1])
def test_pairs_are_joined_wherever_a_long_text_is_cut(length):
    assert clean_text("a" * length + "\ud83d\ude00\ud83d!") == "a" * length + "\U0001f600\ufffd!"
    assert clean_text("\ud83d" * length + "\ude00" * 2) == "\ufffd" * (length - 1) + "\U0001f600\ufffd"
