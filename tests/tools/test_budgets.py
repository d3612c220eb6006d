"""The length budgets are counted rightly, and the checker cannot be passed by hiding a function."""

from pathlib import Path

from tools import budgets


def function(num_lines: int, head: str = "def f():", indent: str = "") -> str:
    return "\n".join([indent + head] + [f"{indent}    x = {i}" for i in range(num_lines - 1)]) + "\n"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_sixty_lines_are_allowed_and_sixty_one_are_not():
    assert budgets.over_budget("a.py", function(60)) == {}
    assert budgets.over_budget("a.py", function(61)) == {"a.py::f": "61 lines, 60 allowed"}


def test_decorators_count():
    assert "a.py::f" in budgets.over_budget("a.py", "@cached\n" + function(60))


def test_methods_async_and_nested_functions_are_found():
    source = "class C:\n" + function(61, indent="    ") + "if True:\n" + function(61, "async def g():", indent="    ")
    assert set(budgets.over_budget("a.py", source)) == {"a.py::C.f", "a.py::g"}


def test_functions_in_except_and_else_branches_are_found():
    source = "try:\n    x = 1\nexcept ImportError:\n" + function(61, indent="    ")
    source += "for i in ():\n    x = 1\nelse:\n" + function(61, "def g():", indent="    ")
    assert set(budgets.over_budget("a.py", source)) == {"a.py::f", "a.py::g"}


def test_functions_in_match_arms_are_found():
    source = "match 1:\n    case 1:\n" + function(61, indent="        ")
    assert set(budgets.over_budget("a.py", source)) == {"a.py::f"}


def test_python_files_end_at_400_lines_and_cpp_files_at_800():
    assert budgets.over_budget("a.py", "x = 1\n" * 400) == {}
    assert budgets.over_budget("a.py", "x = 1\n" * 401) == {"a.py": "401 lines, 400 allowed"}
    assert budgets.over_budget("a.cpp", "//\n" * 800) == {}
    assert budgets.over_budget("a.cpp", "//\n" * 801) == {"a.cpp": "801 lines, 800 allowed"}


def test_an_exception_covers_its_function_only(tmp_path):
    write(tmp_path, "src/p/a.py", function(61) + function(62, "def g():"))
    write(tmp_path, "tests/test_a.py", function(60))
    lines = budgets.complaints(tmp_path, {"src/p/a.py::f": "a table of cases"})
    assert lines == ["src/p/a.py::g: 62 lines, 60 allowed"]


def test_an_exception_that_is_not_needed_is_named(tmp_path):
    write(tmp_path, "src/p/a.py", function(10))
    assert budgets.complaints(tmp_path, {"src/p/a.py::f": "was long"}) == [
        "src/p/a.py::f: the exception is no longer needed"
    ]
