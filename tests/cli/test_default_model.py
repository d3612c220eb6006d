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


def test_an_answer_can_be_read_by_a_program_and_its_life_by_a_person():
    options = "--json --explain --raw --max-tokens 3 --temperature 0 --dtype float32 --max-model-len 256".split()
    options += ["--kv-cache-memory-bytes", "30000000"]
    done = headrace("generate", *options, "-", stdin="One, two, three,")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    assert result["prompt"] == "One, two, three," and len(result["outputs"][0]["token_ids"]) == 3
    assert result["outputs"][0]["text"].startswith(" four")
    assert "3 output tokens" in done.stderr and "waiting → running" in done.stderr
