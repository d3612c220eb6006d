"""What people copy first runs: our example, and a script written for vLLM with only import and model name changed."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine import tiny

ROOT = Path(__file__).parents[2]
WRITTEN_FOR_VLLM = """
from headrace import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is"]
params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model=MODEL, tensor_parallel_size=1, trust_remote_code=False, gpu_memory_utilization=0.5, seed=1)
    outputs = llm.generate(prompts, params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
        assert output.outputs[0].finish_reason in ("stop", "length")


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("models") / "tiny"))


def test_a_script_written_for_vllm_runs_with_import_and_model_changed(folder, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(WRITTEN_FOR_VLLM)
    runpy.run_path(str(script), init_globals={"MODEL": folder}, run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Prompt:    'Hello, my name is'" and lines[3].startswith("Output:    ")


def test_our_example_prints_a_line_for_each_prompt(folder, capsys):
    example = runpy.run_path(str(ROOT / "examples" / "offline_quickstart.py"))
    example["main"](folder)
    assert capsys.readouterr().out.count(" goes on with ") == len(example["PROMPTS"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_our_example_runs_as_it_is_on_the_default_model():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "offline_quickstart.py")], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and "Africa is' goes on with " in lines[1]
