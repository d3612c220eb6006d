"""The program itself, with the default model, in a process of its own."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def headrace(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess:
    code = "import sys; from headrace.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=280)


def test_generate_answers_and_tells_the_speed():
    options = "--temperature 0 --max-tokens 12 --explain --dtype float32".split()
    done = headrace("generate", "What is the capital of France?", *options)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "output tokens" in done.stderr and "waiting → running" in done.stderr


def test_json_can_be_read_by_a_program():
    options = "--json --raw --max-tokens 3 --temperature 0 --dtype float32".split()
    done = headrace("generate", *options, "-", stdin="One, two, three,")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    assert result["prompt"] == "One, two, three," and len(result["outputs"][0]["token_ids"]) == 3
    assert result["outputs"][0]["text"].startswith(" four")
