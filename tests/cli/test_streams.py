"""What comes in and goes out of the program when a stream is closed, full, or of another encoding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.cli.test_cli import Opener, speaking
from headrace.cli import app, streams
text = sys.argv.pop(1)
streams.mend_streams()
sys.exit(app.run(sys.argv[1:], Opener(speaking(text))))
"""


def headrace(*arguments: str | bytes, text: str = "ok é", encoding: str = "utf-8:strict", **streams):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-c", PROGRAM, text, *arguments]
    return subprocess.run(command, env=environment, timeout=60, **options)


def test_bytes_of_a_prompt_that_are_no_character_become_replacement_characters():
    done = headrace("generate", "--json", "--raw", b"bad\xff", "b")
    assert (done.returncode, json.loads(done.stdout)["results"][0]["prompt"]) == (0, "bad\ufffd")
    done = headrace("generate", "--json", "--raw", "-", input=b"bad\xff")
    assert (done.returncode, json.loads(done.stdout)["results"][0]["prompt"]) == (0, "bad\ufffd")


def test_a_character_that_the_terminal_cannot_show_is_replaced():
    done = headrace("generate", "hi", encoding="ascii")
    assert (done.returncode, done.stdout) == (0, b"ok ?\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["hi"], ["--json", "hi"]])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(arguments):
    with open("/dev/full", "w") as full:
        done = headrace("generate", *arguments, stdout=full)
    last = done.stderr.decode().splitlines()[-1]
    assert (done.returncode, last) == (1, "headrace: input or output failed: No space left on device")


def test_a_reader_that_leaves_is_no_error_worth_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = headrace("generate", "--json", "hi", stdout=pipe)
    assert done.returncode == 1 and b"rror" not in done.stderr and b"Broken" not in done.stderr


def test_a_closed_standard_output_is_no_internal_error():
    program = f"import os, sys\nos.close(1)\nsys.stdout = None\n{PROGRAM}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, "ok", "generate", "hi"], env=environment, stderr=subprocess.PIPE, timeout=60
    )
    assert done.returncode == 0 and b"internal error" not in done.stderr
