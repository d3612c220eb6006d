"""`import headrace` is light: it brings in no arithmetic, no tokenizer and no web package."""

import subprocess
import sys

import pytest

pytest.importorskip("headrace.words", reason="the package is not installed")

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "typer", "rich")


def modules_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}}, sep='\\n')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_headrace_loads_nothing_heavy():
    loaded = modules_after("import headrace; assert headrace.__file__")
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.covers("M1")
def test_words_and_schedule_import_where_torch_and_numpy_do_not_exist():
    block = "sys.modules.update(torch=None, numpy=None)"
    loaded = modules_after(f"{block}; import headrace.words, headrace.schedule.scheduler")
    assert "headrace" in loaded
