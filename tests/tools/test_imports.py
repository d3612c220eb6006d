"""The import checker sees every kind of import and every kind of cycle."""

from pathlib import Path

import pytest
from tools import imports

Files = dict[str, str]


def package(root: Path, files: Files) -> Path:
    for name, text in files.items():
        path = root / "headrace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in {path.parent for path in root.rglob("*.py")}:
        (folder / "__init__.py").touch()
    return root


def targets(root: Path, module: str) -> list[str]:
    return [found.target for found in imports.read_imports(root)[module]]


def test_imports_downwards_pass(tmp_path):
    root = package(tmp_path, {"words/errors.py": "import enum\n", "llm.py": "from headrace.words import errors\n"})
    assert imports.complaints(root) == []


def test_a_name_from_a_package_is_an_import_of_the_package_and_a_module_of_the_module(tmp_path):
    root = package(tmp_path, {"words/errors.py": "", "llm.py": "from headrace.words import errors, Request\n"})
    assert targets(root, "headrace.llm") == ["headrace.words.errors", "headrace.words"]


@pytest.mark.parametrize(
    ("file", "statement", "target"),
    [
        ("engine/core.py", "from . import host", "headrace.engine.host"),
        ("engine/core.py", "from .host import Host", "headrace.engine.host"),
        ("engine/core.py", "from ..words import x", "headrace.words.x"),
        ("engine/__init__.py", "from .host import Host", "headrace.engine.host"),
        ("engine/__init__.py", "from ..words import x", "headrace.words.x"),
    ],
)
def test_relative_imports_are_resolved(tmp_path, file, statement, target):
    root = package(tmp_path, {"engine/host.py": "", "words/x.py": "", file: statement + "\n"})
    module = imports.module_name(root / "headrace" / file, root)
    assert targets(root, module) == [target]


@pytest.mark.parametrize(
    "back",
    [
        "import headrace.a\n",
        "from headrace.a import f\n",
        "from .a import f\n",
        "def late():\n    from headrace import a\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from headrace.a import f\n",
    ],
)
def test_a_cycle_is_found_however_it_is_closed(tmp_path, back):
    root = package(tmp_path, {"a.py": "import headrace.b\n", "b.py": back})
    assert imports.complaints(root) in (
        ["import cycle: headrace.a -> headrace.b -> headrace.a"],
        ["import cycle: headrace.b -> headrace.a -> headrace.b"],
    )


def test_a_long_cycle_is_listed_in_the_order_of_the_imports(tmp_path):
    root = package(tmp_path, {"a.py": "import headrace.b", "b.py": "import headrace.c", "c.py": "import headrace.a"})
    cycle = imports.find_cycle(imports.read_imports(root))
    assert cycle is not None and cycle[0] == cycle[-1] and len(cycle) == 4
    for module, following in zip(cycle, cycle[1:], strict=False):
        assert following in targets(root, module)


def test_words_take_the_standard_library_only(tmp_path):
    root = package(tmp_path, {"words/config.py": "import json\nimport numpy as np\n"})
    assert imports.complaints(root) == ["headrace.words.config:2: may not import numpy"]


def test_schedule_takes_words_only(tmp_path):
    text = "import heapq\nfrom headrace.words import plan\nfrom headrace.ops import base\nimport torch\n"
    root = package(tmp_path, {"words/plan.py": "", "ops/base.py": "", "schedule/pool.py": text})
    assert imports.complaints(root) == [
        "headrace.schedule.pool:3: may not import headrace.ops.base",
        "headrace.schedule.pool:4: may not import torch",
    ]


def test_the_server_takes_engine_and_words_of_ours_and_any_web_package(tmp_path):
    text = "import fastapi\nimport headrace.engine.host\nimport headrace.schedule\n"
    root = package(tmp_path, {"engine/host.py": "", "schedule/pool.py": "", "server/app.py": text})
    assert imports.complaints(root) == ["headrace.server.app:3: may not import headrace.schedule"]


def test_heavy_packages_stay_in_the_file_that_owns_them(tmp_path):
    files = {"ops/reference/linear.py": "import torch.nn\n", "models/llama.py": "def f():\n    import torch.nn\n"}
    assert imports.complaints(package(tmp_path, files)) == ["headrace.models.llama:2: may not import torch.nn"]


def test_a_package_is_not_mistaken_for_one_whose_name_it_begins_with(tmp_path):
    root = package(tmp_path, {"words_more.py": "import numpy\n"})
    assert imports.complaints(root) == []
