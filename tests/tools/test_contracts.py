"""The layer contract of pyproject.toml holds for a package laid out as the design says, and breaks where it should."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
DOWNWARDS = {
    "llm.py": "import headrace.engine.core\n",
    "cli/__init__.py": "import headrace.llm\n",
    "engine/core.py": "import headrace.schedule.scheduler\nimport headrace.executor.local\n",
    "schedule/scheduler.py": "import headrace.words.plan\n",
    "executor/local.py": "import headrace.worker.runner\n",
    "worker/runner.py": "import headrace.models.llama\n",
    "models/llama.py": "import headrace.layers.linear\n",
    "layers/linear.py": "import headrace.ops.base\nimport headrace.comm\n",
    "ops/base.py": "import numpy\nimport headrace.words.plan\n",
    "comm.py": "",
    "words/plan.py": "import enum\n",
}


def lint(root: Path, files: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of import-linter, with this project's contracts, over a package of these files."""
    for name, text in files.items():
        path = root / "headrace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in {path.parent for path in root.rglob("*.py")}:
        (folder / "__init__.py").touch()
    shutil.copy(PROJECT / "pyproject.toml", root)
    # An editable install finds this project before PYTHONPATH is looked at.
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]; "
    code += "from importlinter.cli import lint_imports_command as run; run(['--no-logo', '--no-cache'])"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "Contracts" in done.stdout, done.stdout + done.stderr
    return done.returncode, done.stdout


def test_imports_that_point_down_are_kept(tmp_path):
    status, text = lint(tmp_path, DOWNWARDS)
    assert status == 0 and "2 kept, 0 broken" in text


def test_layers_that_do_not_exist_yet_are_no_error(tmp_path):
    files = {"words/plan.py": "", "schedule/pool.py": "import headrace.words.plan\n"}
    assert lint(tmp_path, files)[0] == 0


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("words/plan.py", "import headrace.engine.core\n", "headrace.words.plan -> headrace.engine.core"),
        ("executor/local.py", "import headrace.schedule.pool\n", "headrace.executor.local -> headrace.schedule.pool"),
        ("schedule/pool.py", "import headrace.ops.base\n", "headrace.ops.base -> numpy"),
        ("gadgets.py", "", "gadgets"),
    ],
)
def test_an_import_upwards_arrays_below_the_scheduler_or_a_new_package_breaks_it(tmp_path, file, text, named):
    files = {**DOWNWARDS, "schedule/pool.py": "", file: text}
    status, output = lint(tmp_path, files)
    assert status == 1 and named in output.replace("\n", " ")
