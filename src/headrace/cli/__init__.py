"""The commands."""

from __future__ import annotations


def main() -> int:
    """The `headrace` program; gives its exit code."""
    from headrace.cli.app import run

    return run()
