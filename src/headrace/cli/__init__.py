"""The commands."""

from __future__ import annotations


def main() -> int:
    """The `headrace` program; gives its exit code."""
    from headrace.cli.app import run
    from headrace.cli.streams import mend_streams

    mend_streams()
    return run()
