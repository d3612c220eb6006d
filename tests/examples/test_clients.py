"""The example scripts run as they are: those of clients against a server, the offline ones in this process."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine import tiny
from tests.page.site import served

from headrace.cli.app import run

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "to: What is a headrace?"
CLIENTS = {
    "openai_client.py": ("openai", [QUESTION, "tokens, stop", "1: '"]),
    "openai_streaming.py": ("openai", ["to: Explain how a water mill works", "tokens in", "the first after"]),
    "anthropic_client.py": ("anthropic", [QUESTION, "tokens, end_turn"]),
    "embeddings.py": ("openai", ["A headrace leads", "Bread is made", "The moon is"]),
    "langchain_client.py": ("langchain_openai", [QUESTION, "to: What is a tailrace?"]),
    "litellm_client.py": ("litellm", [QUESTION]),
}


@pytest.fixture(scope="module")
def site():
    with served() as site:
        yield site


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_runs_as_it_is(site, name):
    package, told = CLIENTS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = {**os.environ, "HEADRACE_URL": site.url, "HEADRACE_MODEL": "toy", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for text in told:
        assert text in done.stdout, text


def test_every_script_is_run_by_a_test():
    offline = {"offline_quickstart.py", "offline_batch.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == offline | set(CLIENTS)


def test_the_offline_batch_writes_a_line_for_each_question(folder, tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "offline_batch.py"))
    output = tmp_path / "answers.jsonl"
    example["main"](["one?", "two?"], output, folder)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["question"] for line in lines] == ["one?", "two?"] and all(line["answer"] for line in lines)
    example["main"](["one?"], None, folder)
    assert json.loads(capsys.readouterr().out)["answer"] == lines[0]["answer"]


def test_the_batch_file_is_one_that_run_batch_answers(folder, tmp_path):
    """Its model's name is the default model's; the tiny one stands in for it."""
    source, output = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl"
    source.write_text((EXAMPLES / "batch.jsonl").read_text().replace("smollm2-135m", folder))
    assert run(["run-batch", "-i", str(source), "-o", str(output), "--model", folder]) == 0
    answers = {line["custom_id"]: line for line in map(json.loads, output.read_text().splitlines())}
    assert set(answers) == {"mill", "river", "vector"}
    assert all(answer["response"]["status_code"] == 200 for answer in answers.values())
