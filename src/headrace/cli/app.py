"""The `headrace` program: its commands, its exit codes, and errors as one line."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from headrace.cli.help import GroupedCommand, print_help, wanted_help
from headrace.cli.model import OpenLLM, open_llm
from headrace.cli.streams import drop_logs, drop_output
from headrace.words.errors import HeadraceError, nearest

WIDE = 140
"""Columns in which a table of options leaves room for what they do."""
USAGE_ERROR = 2
FAILURE = 1
INTERRUPTED = 130
VALIDATORS_WORDS = re.compile(r"(?<=: )(Value error|Assertion failed), |, unable to parse string as an? \w+")
"""What pydantic puts around the message of a check, and users have no use for."""
INPUT = re.compile(r"(?<=: )Input should be ")
NO_PROMPT = " Write it on the command line, or - to read it from standard input."
EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. `headrace COMMAND --help` lists the options, "
    "`--help=WORD` those of a group, a name or a subject, `--help=all` every one."
)

ASK, SERVE, LOOK = "Ask a model", "Serve models", "Look into things"
COMMANDS = {
    "generate": ASK,
    "chat": ASK,
    "run-batch": ASK,
    "serve": SERVE,
    "top": SERVE,
    "bench": SERVE,
    "models": LOOK,
    "doctor": LOOK,
}
"""Each in a module of its name: a function of that name, or an `app` of several commands."""
GROUPS = ("bench", "models")
"""Those of several commands."""


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The program, of which only that command is imported that the arguments begin with, if it is one."""
    wanted = arguments[0] if arguments else None
    names = (wanted,) if wanted in COMMANDS else tuple(COMMANDS)
    # In a narrow terminal tables would cut the names of options, and plain lists what the commands of a group do.
    has_room = lists_commands(arguments) or shutil.get_terminal_size().columns >= WIDE
    app = typer.Typer(
        add_completion=True,
        no_args_is_help=True,
        epilog=EPILOG,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if has_room else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in names:
        _add(app, name)
    return app


def lists_commands(arguments: Sequence[str]) -> bool:
    """Whether the help of such a command line would be a list of commands: the program's, or a group's."""
    match [word for word in arguments if not word.startswith("-")]:
        case []:
            return True
        case [name]:
            return name not in COMMANDS or name in GROUPS
        case _:
            return False


def _add(app: typer.Typer, name: str) -> None:
    module_name = name.replace("-", "_")
    module = import_module(f"headrace.cli.{module_name}")
    if hasattr(module, "app"):
        for command in module.app.registered_commands:
            command.cls = GroupedCommand
        app.add_typer(module.app, name=name, rich_help_panel=COMMANDS[name])
    else:
        made = app.command(name, cls=GroupedCommand, epilog=EPILOG, rich_help_panel=COMMANDS[name])
        made(getattr(module, module_name))


def _print_version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Large language models: continue prompts, chat, and serve."""


def run(arguments: Sequence[str] | None = None, opener: OpenLLM = open_llm) -> int:
    """Runs a command line (the process's own by default) and gives its exit code; no exception leaves it."""
    try:
        given = None if arguments is None else list(arguments)
        words = sys.argv[1:] if given is None else given
        app = make_app(words)
        if asked := wanted_help(words):
            return print_help(typer.main.get_command(app), *asked)
        code = app(args=given, prog_name="headrace", standalone_mode=False, obj=opener)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as left:
        # A shell that asked for completions.
        return int(left.code or 0)
    except typer.Abort:
        return FAILURE
    except HeadraceError as error:
        return _report(error, str(error), FAILURE)
    except OSError as error:
        drop_output()
        return _report(error, "" if isinstance(error, BrokenPipeError) else file_line(error), FAILURE)
    except Exception as error:
        if hasattr(error, "format_message"):
            return _report(error, usage_line(error), USAGE_ERROR)
        text = f"internal error: {type(error).__name__}: {error}; run again with --log-level debug"
        return _report(error, text, FAILURE)
    finally:
        drop_logs()


def file_line(error: OSError) -> str:
    """What went wrong with a file, and with which where that is known."""
    named = f" ({error.filename})" if error.filename else ""
    return f"input or output failed: {error.strerror or error}{named}"


def usage_line(error: Any) -> str:
    """A usage error in one line, with the nearest option where one was misspelt."""
    if close := getattr(error, "possibilities", None):
        return f"{error.message.rstrip('.')}{nearest(error.option_name, close)}"
    text = INPUT.sub("must be ", VALIDATORS_WORDS.sub("", str(error.format_message())))
    return text + NO_PROMPT if text == "Missing argument 'PROMPT...'." else text


def _report(error: Exception, text: str, code: int) -> int:
    if not text.strip():
        return code
    if logging.getLogger("headrace").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    print(f"headrace: {' '.join(text.split())}", file=sys.stderr)
    return code
