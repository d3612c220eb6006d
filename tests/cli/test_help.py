"""What the help says, in narrow terminals and in wide ones."""

import dataclasses
import subprocess
import sys

import pytest
import typer

from headrace.cli.app import COMMANDS, GROUPS, make_app, run
from headrace.cli.options import engine_options
from headrace.words.config import EngineConfig


@pytest.fixture
def told(capsys, monkeypatch):
    """The output of a command line in a terminal of so many columns."""

    def call(*arguments: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        run(arguments)
        return "".join(capsys.readouterr())

    return call


def commands() -> dict[tuple[str, ...], typer.core.TyperCommand]:
    """Every command by its words; those of groups have two."""
    found = {}
    for name in COMMANDS:
        command = typer.main.get_command(make_app([name])).commands[name]
        inner = getattr(command, "commands", None)
        found |= {(name, each): made for each, made in inner.items()} if inner else {(name,): command}
    return found


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("more", [(), ("--help",), ("-h",)])
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_commands_lists_them_with_whole_sentences(told, group, more, columns):
    out = told(group, *more, columns=columns)
    made = [command for words, command in commands().items() if words[0] == group]
    words = out.replace("│", " ").split()
    assert len(made) > 2 and "…" not in out and not out.startswith("headrace:")
    for command in made:
        assert set(command.help.split("\n\n")[0].split()) <= set(words), command.name


def test_groups_are_the_commands_that_have_commands():
    assert {words[0] for words in commands() if len(words) > 1} == set(GROUPS)


@pytest.mark.parametrize("command", commands().items(), ids=lambda pair: " ".join(pair[0]))
@pytest.mark.parametrize("columns", [60, 200])
def test_no_word_of_a_help_text_is_lost(told, command, columns):
    name, made = command
    options = [p for p in made.params if p.param_type_name == "option" and not p.hidden]
    for more in ("--help", "--help=all"):
        shown = "".join(told(*name, more, columns=columns).replace("│", " ").split())
        for option in options:
            assert all(word in shown for word in option.help.split()), (more, option.name)


def test_a_default_that_can_be_given_is_told():
    texts = {p.name: p.annotation.__metadata__[0].help for p in engine_options()}
    for each in dataclasses.fields(EngineConfig):
        if each.name in texts and each.default is not None:
            assert "default: " in texts[each.name], each.name
    assert texts["max_num_seqs"].endswith("default: 256") and texts["block_size"].endswith("default: 16")


def test_the_servers_defaults_are_told_and_its_seed_is_one_option(told):
    shown = " ".join(told("serve", "--help").split())
    for words in ("default: 127.0.0.1", "default: 8000", "default: 33554432", "default: on"):
        assert words in shown
    assert "--seed" in shown and "--engine-seed" not in shown and "MISSING" not in shown


def test_the_program_is_also_a_module():
    ran = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stdout.startswith("headrace ")
