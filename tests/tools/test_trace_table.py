"""The table of rows and tests says what the markers say, and notices what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools import rows, trace_table
from tools.trace_table import Cover, Trace

PROJECT = Path(__file__).resolve().parents[2]


def covers(source: str) -> list[Cover]:
    trace = trace_table.read_file("tests/test_a.py", source)
    assert trace.complaints == []
    return trace.covers


def test_a_marked_function_covers_each_row_it_names():
    source = "@pytest.mark.covers('D7', 'M3')\ndef test_f(): ...\n"
    assert covers(source) == [Cover("D7", "tests/test_a.py::test_f"), Cover("M3", "tests/test_a.py::test_f")]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("@pytest.mark.covers('I1')\nclass TestPool: ...\n", "tests/test_a.py::TestPool"),
        ("class M:\n    @invariant()\n    @pytest.mark.covers('I1')\n    def f(self): ...\n", "tests/test_a.py::M::f"),
        ("pytestmark = pytest.mark.covers('I1')\n", "tests/test_a.py"),
        ("pytestmark = [pytest.mark.slow, pytest.mark.covers('I1')]\n", "tests/test_a.py"),
        ("from pytest import mark\n@mark.covers('I1')\ndef test_f(): ...\n", "tests/test_a.py::test_f"),
        (
            "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.covers('I1'))])\ndef test_f(x): ...\n",
            "tests/test_a.py::test_f",
        ),
        ("if True:\n    @pytest.mark.covers('I1')\n    async def test_f(): ...\n", "tests/test_a.py::test_f"),
    ],
)
def test_markers_are_found_wherever_pytest_allows_them(source, place):
    assert covers(source) == [Cover("I1", place)]


def test_rows_may_be_a_run_of_numbers():
    source = "@pytest.mark.covers('D7', *(f'I{i}' for i in range(1, 4) if i != 2))\ndef test_f(): ...\n"
    assert [cover.row for cover in covers(source)] == ["D7", "I1", "I3"]


@pytest.mark.parametrize("source", ["def test_f(): ...\n", "@covers('I1')\ndef f(): ...\n", "x = 'covers(I1)'\n"])
def test_what_is_no_marker_covers_nothing(source):
    assert covers(source) == []


@pytest.mark.parametrize("arguments", ["'D43'", "'T20'", "ROW", "", "'6i'", "7"])
def test_a_marker_that_names_no_row_is_an_error(arguments):
    trace = trace_table.read_file("tests/test_a.py", f"@pytest.mark.covers({arguments})\ndef test_f(): ...\n")
    assert trace.covers == [] and len(trace.complaints) == 1


def test_every_row_of_the_design_is_listed_once():
    expected = [f"{letter}{i}" for letter, last in (("D", 42), ("M", 34), ("T", 27)) for i in range(1, last + 1)]
    expected += [f"I{i}" for i in range(1, 31)] + [f"E{i}" for i in range(1, 13)] + [f"6{c}" for c in "abcdefgh"]
    expected.remove("T20")
    assert list(rows.TITLES) == expected
    assert set(rows.LATER) | set(rows.PARTLY_LATER) <= set(expected)
    assert not set(rows.LATER) & set(rows.PARTLY_LATER)


def test_later_rows_may_lack_a_test_and_others_may_not():
    everything_in_scope = [Cover(row, "tests/t.py") for row in rows.TITLES if row not in rows.LATER]
    assert trace_table.missing(Trace(everything_in_scope, [])) == []
    assert trace_table.missing(Trace(everything_in_scope[1:], [])) == ["D1"]


def test_a_cell_shows_tests_and_what_waits():
    assert trace_table.cell("D1", ["tests/a.py::f", "tests/b.py::g"]) == "`a.py::f`<br>`b.py::g`"
    assert trace_table.cell("D1", []) == "**no test yet**"
    assert trace_table.cell("D10", []) == "later, with images"
    assert trace_table.cell("I7", ["tests/a.py::f"]) == "`a.py::f`<br>later: the pool of images"


def run(root: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tools.trace_table", "--root", str(root), *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_check_fails_until_the_file_is_in_step_and_the_rows_have_tests(tmp_path):
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_a.py"
    test.write_text("@pytest.mark.covers('D7')\ndef test_f(): ...\n")

    status, text = run(tmp_path, "--check", "--allow-missing")
    assert status == 1 and "out of step" in text
    assert run(tmp_path)[0] == 0
    assert "| D7 |" in (tmp_path / "docs" / "traceability.md").read_text("utf-8")
    assert run(tmp_path, "--check", "--allow-missing")[0] == 0
    status, text = run(tmp_path, "--check")
    assert status == 1 and "D1 has no test" in text and "D7 has no test" not in text
    test.write_text("@pytest.mark.covers('D7')\ndef test_another_name(): ...\n")
    assert run(tmp_path, "--check", "--allow-missing")[0] == 1
