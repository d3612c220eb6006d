"""The page's files under their policy, and documentation that needs nothing from elsewhere."""

import re
from dataclasses import replace

from tests.server.inside import engine, within

from headrace.server import app, page
from headrace.server.docs import finish_schema
from headrace.server.page import read_files
from headrace.server.ready import memory_plan
from headrace.words.plan import CacheLayout


def test_the_schema_says_what_this_model_allows():
    schemas = within(lambda c: c.get("/openapi.json")).json()["components"]["schemas"]
    tokens = schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]
    assert tokens == {"type": "integer", "minimum": 0, "maximum": 399}
    fields = schemas["CompletionRequest"]["properties"]
    assert fields["min_tokens"]["maximum"] == 512 and fields["bad_words"]["anyOf"][1]["maxItems"] == 128
    assert "x-at-most" not in str(schemas)


def test_without_a_built_page_there_is_nothing_to_serve(tmp_path):
    assert read_files(tmp_path) == {}


def test_a_built_page_is_open_served_at_the_root_and_may_load_only_from_here(tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>page")
    (tmp_path / "assets/app.js").write_text("1")
    monkeypatch.setattr(page, "FILES", read_files(tmp_path))

    async def work(c):
        return [await c.get(path) for path in ("/", "/assets/app.js", "/assets/../../etc/passwd", "/v1/models")]

    root, script, other, guarded = within(work, api_keys=("secret",))
    assert root.text == "<!doctype html>page" and root.headers["content-type"].startswith("text/html")
    assert script.headers["content-type"].startswith("text/javascript")
    policy = root.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert other.status_code == guarded.status_code == 401


def test_the_documentation_names_every_route_and_loads_nothing():
    async def work(c):
        return (await c.get("/docs")), (await c.get("/openapi.json")).json()

    docs, schema = within(work)
    assert docs.status_code == 200 and "/v1/chat/completions" in docs.text and "/v1/steps" in docs.text
    assert not re.search(r"(src|href)=", docs.text) and "default-src 'none'" in docs.headers["content-security-policy"]
    body = schema["components"]["schemas"]["ChatRequest"]
    assert body["required"] == ["messages"] and "temperature" in body["properties"]


def test_the_description_of_the_routes_is_made_once_and_only_if_somebody_asks(monkeypatch):
    made = []
    monkeypatch.setattr(app, "finish_schema", lambda *given: made.append(given) or finish_schema(*given))

    async def work(c):
        await c.complete(max_tokens=1)
        counts = [len(made)]
        for _ in range(2):
            assert (await c.get("/openapi.json")).status_code == 200
            counts.append(len(made))
        return counts

    assert within(work) == [0, 1, 1]


def test_a_server_that_is_ready_tells_the_bytes_that_its_cache_was_given():
    told = memory_plan(replace(engine(), layout=CacheLayout(9, 4, 3 << 20)), None)
    assert told.startswith("KV cache 27 MiB = 8 blocks of 4 tokens in float32: ")
