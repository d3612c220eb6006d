"""Help in groups: `headrace COMMAND --help` in any width, and `--help=WORD`, the options of one group, or those whose
name or text has the word."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from typer.core import TyperCommand

from headrace.words.errors import nearest

FLAG = "--help="
ALL = "all"
ARGUMENTS, OPTIONS = "Arguments", "Options"


class GroupedCommand(TyperCommand):
    """A command whose options stand under their groups also where a terminal has no room for tables."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {ARGUMENTS: [], OPTIONS: []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(_heading(parameter), []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def wanted_help(arguments: Sequence[str]) -> tuple[list[str], str] | None:
    """The command's words and the word after `--help=`, None where nobody asked so."""
    for argument in takewhile(lambda argument: argument != "--", arguments):
        if argument.startswith(FLAG) and argument != FLAG:
            return [word for word in arguments if not word.startswith("-")], argument[len(FLAG) :]
    return None


def print_help(program: Any, words: Sequence[str], word: str) -> int:
    """Prints the options that are meant; exit code 2 where there are none."""
    command, name = program, "headrace"
    for step in words:
        inner = getattr(command, "commands", {}).get(step)
        if inner is None:
            break
        command, name = inner, f"{name} {step}"
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    shown = [option for option in options if _is_meant(option, word.lower())]
    if not shown:
        groups = sorted({_group(option) for option in options})
        known = [*groups, *(option.name.replace("_", "-") for option in options)]
        hint = nearest(word, known) or f"; the groups are {', '.join(groups)}"
        print(f"headrace: {name}: no option is like {word!r}{hint}", file=sys.stderr)
        return 2
    _print(name, shown)
    return 0


def _heading(parameter: Any) -> str:
    plain = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
    return getattr(parameter, "rich_help_panel", None) or plain


def _group(option: Any) -> str:
    return _heading(option).lower()


def _is_meant(option: Any, word: str) -> bool:
    if word in (ALL, _group(option)):
        return True
    names = [name.lstrip("-") for name in (*option.opts, *option.secondary_opts)]
    plain = word.lstrip("-").replace("_", "-")
    return any(plain in name for name in names) or plain in (option.help or "").lower()


def _print(name: str, options: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), title=name, title_justify="left", header_style="dim")
    for column in ("option", "what it does", "group"):
        table.add_column(column, overflow="fold")
    for option in options:
        table.add_row(", ".join((*option.opts, *option.secondary_opts)), Text(option.help or ""), _group(option))
    Console().print(table)
