"""What the README and the docs point to exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from headrace.cli.app import COMMANDS, make_app
from headrace.words import envs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND_LINE = re.compile(r"(?:^|`)headrace ([^`\n&|]*(?:\\\n[^`\n&|]*)*)", re.MULTILINE)
OPTION = re.compile(r"`(--[a-z][a-z0-9-]+)")
OF_TESTS = {"HEADRACE_SHARED_DATA", "HEADRACE_NATIVE_BUILD"}
BENCHES = ("serve", "latency", "throughput", "startup")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    targets = [target for target in LINK.findall(page.read_text()) if not target.startswith(("http:", "https:"))]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_every_picture_is_used():
    text = "".join(page.read_text() for page in PAGES)
    unused = [path.name for path in (ROOT / "docs/images").iterdir() if f"images/{path.name}" not in text]
    assert unused == []


def test_every_make_target_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_every_environment_variable_is_explained_and_none_that_is_not_read():
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"\b(?:HEADRACE|HF)_[A-Z_]+", text))
    assert named - OF_TESTS == {variable.name for variable in envs.VARIABLES}


def options_of(words: list[str]) -> set[str]:
    """Every option of the command that a command line names."""
    command = typer.main.get_command(make_app(words))
    found = {"--help", "--version", "--install-completion"}
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return found.union(*(option.opts + option.secondary_opts for option in command.params))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_of_a_command_line_that_a_page_shows_exists(page):
    for line in COMMAND_LINE.findall(page.read_text()):
        words = shlex.split(line.replace("\\\n", " "), comments=True)
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= options_of(words), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_is_one_of_some_command(page):
    known = set().union(*(options_of([name]) for name in COMMANDS), *(options_of(["bench", n]) for n in BENCHES))
    assert set(OPTION.findall(page.read_text())) <= known
