"""The page's files as they go out: compressed to whoever accepts it, kept where their names change with them."""

import gzip

import pytest
from tests.server.inside import within

from headrace.server.page import FILES, STATIC

pytestmark = pytest.mark.skipif(not FILES, reason="the page was not built (make page)")


def test_files_are_compressed_for_those_who_accept_it():
    async def work(c):
        return [await c.get("/", headers={"accept-encoding": kind}) for kind in ("gzip", "identity")]

    packed, plain = within(work)
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert packed.text == plain.text == (STATIC / "index.html").read_text()
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, 9, mtime=0))
    assert packed.headers["vary"] == "accept-encoding"


def test_what_has_a_hash_in_its_name_is_kept_and_the_rest_asked_for_again():
    script = next(path for path in FILES if path.endswith(".js"))
    font = next(path for path in FILES if path.endswith(".woff2"))

    async def work(c):
        return [await c.get(path) for path in ("/", "/favicon.svg", script, font)]

    index, icon, code, letters = within(work)
    assert index.headers["cache-control"] == icon.headers["cache-control"] == "no-cache"
    assert "immutable" in code.headers["cache-control"] and code.headers["content-type"].startswith("text/javascript")
    assert letters.headers["content-type"] == "font/woff2" and "content-encoding" not in letters.headers


def test_the_index_names_only_files_that_are_there():
    text = (STATIC / "index.html").read_text()
    named = [part.split('"')[0] for part in text.split('="/')[1:]]
    assert named and all(f"/{name}" in FILES or f"/{name}" == "/docs" for name in named)
    assert "<style" not in text and "onload" not in text and text.count("<script") == 1
