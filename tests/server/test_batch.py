"""Batch files: every line has its answer under its name, and a second run does only what is not done."""

import json

import pytest
from tests.engine.fakes import FakeExecutor
from tests.server.inside import HELLO, engine, within

from headrace.server.batch import Batch, check_files, read_done
from headrace.words.errors import ConfigError


def line(name, url="/v1/chat/completions", **body):
    messages = {"messages": HELLO} if "chat" in url else {}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {**messages, "max_tokens": 4, **body}})


def run(source, output, made=None):
    async def work(c):
        return await Batch(c.app, source, output, 4, lambda done, failed: None).run()

    return within(work, made)


def answers(output):
    entries = [json.loads(text) for text in output.read_text().splitlines()]
    return {entry["custom_id"]: entry for entry in entries}


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_every_line_is_answered_as_the_server_would(files):
    source, output = files
    lines = [line(f"chat {i}", temperature=0) for i in range(9)]
    lines += [line("text", "/v1/completions", prompt="the", temperature=0), line("bad", temperature=-1)]
    lines += ['{"custom_id": "vector", "method": "POST", "url": "/v1/embeddings", "body": {"input": "the"}}']
    source.write_text("\n".join(lines) + "\n\n")
    counts = run(source, output)
    found = answers(output)
    assert (counts.done, counts.failed, counts.skipped) == (12, 1, 0) and len(found) == 12
    assert found["bad"]["response"]["status_code"] == 400
    assert found["bad"]["response"]["body"]["error"]["param"] == "temperature"
    texts = {found[f"chat {i}"]["response"]["body"]["choices"][0]["message"]["content"] for i in range(9)}
    assert len(texts) == 1 and len(found["vector"]["response"]["body"]["data"][0]["embedding"]) == 4


def test_bad_lines_are_named_by_number_and_the_others_run(files):
    source, output = files
    bad = ["{", "[]", '{"custom_id": 5}', line("a", "/metrics"), line("twice"), line("twice"), line("s", stream=True)]
    source.write_text("\n".join(bad))
    counts = run(source, output)
    messages = [json.loads(text)["error"] for text in output.read_text().splitlines()]
    assert counts.done == 7 and counts.failed == 6 and sum(m is not None for m in messages) == 6
    assert "line 6: the custom_id 'twice' was used before" in [m["message"] for m in messages if m]


def test_a_second_run_does_only_what_is_not_done(files):
    source, output = files
    source.write_text("\n".join(line(f"{i}", temperature=0) for i in range(6)))
    run(source, output)
    whole = answers(output)
    kept = output.read_text().splitlines(keepends=True)
    output.write_text("".join(kept[:3]) + kept[3][:40])
    counts = run(source, output)
    assert (counts.done, counts.skipped) == (3, 3)
    again = answers(output)
    assert again.keys() == whole.keys()
    assert all(again[n]["response"]["body"]["choices"] == whole[n]["response"]["body"]["choices"] for n in whole)


def test_what_the_server_failed_at_is_done_again(files):
    source, output = files
    source.write_text(line("x"))
    counts = run(source, output, engine(FakeExecutor(poison=lambda admission: True)))
    assert counts.failed == 1 and answers(output)["x"]["response"]["status_code"] == 500
    assert run(source, output).failed == 0 and read_done(output) == {"x"}


def test_files_are_checked_before_anything_is_loaded(tmp_path):
    source = tmp_path / "in"
    with pytest.raises(ConfigError, match="input: 'in' is no file"):
        check_files(source, tmp_path / "out")
    source.write_text("")
    for output in (tmp_path, source, tmp_path / "no/out"):
        with pytest.raises(ConfigError, match="output"):
            check_files(source, output)
