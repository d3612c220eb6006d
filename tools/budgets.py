"""Hold the length budgets: functions of at most 60 lines, files of at most 400, C++ files of at most 800.

Usage: python -m tools.budgets [ROOT]. Prints every excess and exits 1 when there is one.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = {".py": 400, ".cpp": 800, ".cc": 800, ".h": 800, ".hpp": 800}
FOLDERS = ("src", "tests", "tools", "csrc")

# "path" or "path::function" -> why it may be longer. Every entry is reviewed; one that is not needed is an excess too.
EXCEPTIONS: dict[str, str] = {}

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def functions(parent: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield (qualified name, node) of every function below `parent`, methods and nested ones too."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def num_lines(node: Definition) -> int:
    """Lines from the first decorator or `def` to the last line of the body."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or first) - first + 1


def over_budget(path: str, text: str) -> dict[str, str]:
    """Map "path" or "path::function" to a sentence, for each budget that the file exceeds."""
    suffix = Path(path).suffix
    limit = MAX_FILE_LINES[suffix]
    found = {}
    length = len(text.splitlines())
    if length > limit:
        found[path] = f"{length} lines, {limit} allowed"
    if suffix == ".py":
        for name, node in functions(ast.parse(text, path)):
            if num_lines(node) > MAX_FUNCTION_LINES:
                found[f"{path}::{name}"] = f"{num_lines(node)} lines, {MAX_FUNCTION_LINES} allowed"
    return found


def source_files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in MAX_FILE_LINES and path.is_file():
                yield path


def complaints(root: Path, exceptions: dict[str, str]) -> list[str]:
    """One line per excess that no exception covers and per exception that covers none."""
    found: dict[str, str] = {}
    for path in source_files(root):
        found |= over_budget(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    excess = [f"{where}: {what}" for where, what in found.items() if where not in exceptions]
    idle = [f"{where}: the exception is no longer needed" for where in exceptions if where not in found]
    return excess + idle


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    lines = complaints(root, EXCEPTIONS)
    print("\n".join(lines) or "budgets: held")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
