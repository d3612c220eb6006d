"""The start: what is done beside what, and what a start that fails leaves."""

import subprocess
import sys

import pytest

START = """
import sys, threading, time
from headrace.server.run import serve
from headrace.server.settings import Settings
from headrace.words.config import engine_config
from headrace.words.errors import ModelError

def build(asked, progress):
    progress("download", 1, 1)
    early = "uvicorn" in sys.modules
    for done in range(1, 3):
        progress("load", done, 2)
    end = time.monotonic() + 30
    while "uvicorn" not in sys.modules and time.monotonic() < end:
        time.sleep(0.01)
    print(early, "uvicorn" in sys.modules, flush=True)
    raise ModelError("model.gguf", "is damaged")

try:
    serve(engine_config(model="none"), Settings(model_names=("toy",), port=0), build)
except ModelError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def told() -> list[str]:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_event_loops_modules_are_imported_while_the_weights_are_read_and_not_before(told):
    assert told[0] == "False True"


def test_a_load_that_fails_then_is_told_and_ends_the_process(told):
    assert "is damaged" in told[1]
