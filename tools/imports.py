"""Hold the import rules that a layer table cannot say: no cycle, few words below, heavy packages in one place.

Every import statement counts: those inside functions and under TYPE_CHECKING too.
Usage: python -m tools.imports [SOURCE_FOLDER]. Prints every breach and exits 1 when there is one.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT_PACKAGE = "headrace"

# package -> the only packages of ours it may import beside itself; it may import nothing else but the standard library.
PURE = {
    "headrace.words": (),
    "headrace.schedule": ("headrace.words",),
}
# package -> the only packages of ours it may import beside itself; other people's packages are free.
NARROW = {
    "headrace.server": ("headrace.engine", "headrace.words"),
}
# heavy package -> the only modules that may import it, at any depth.
OWNERS = {
    "torch": ("headrace.ops.reference", "headrace.ops.cuda", "headrace.executor.distributed"),
    "triton": ("headrace.ops.cuda",),
    "ray": ("headrace.executor.ray",),
    "fastapi": ("headrace.server",),
    "uvicorn": ("headrace.server",),
    "llguidance": ("headrace.grammar",),
    "prometheus_client": ("headrace.engine.metrics", "headrace.server"),
    "PIL": ("headrace.media",),
    "typer": ("headrace.cli",),
    "transformers": (),
    "gguf": (),
}


class Import(NamedTuple):
    target: str
    line: int


def module_name(path: Path, source: Path) -> str:
    """src/headrace/words/__init__.py -> headrace.words."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules(source: Path) -> dict[str, Path]:
    return {module_name(path, source): path for path in sorted((source / ROOT_PACKAGE).rglob("*.py"))}


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def absolute(node: ast.ImportFrom, importer: str, is_package: bool) -> str:
    """The full name that `from ..x import y` starts from."""
    if not node.level:
        return node.module or ""
    parts = importer.split(".")
    anchor = parts[: len(parts) - node.level + is_package]
    return ".".join([*anchor, *([node.module] if node.module else [])])


def imports_of(tree: ast.AST, importer: str, is_package: bool, modules: Mapping[str, object]) -> Iterator[Import]:
    """Yield what is imported; `from p import m` is an import of p.m where that is a module, else of p."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, importer, is_package)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in modules else base, node.lineno)


def read_imports(source: Path) -> dict[str, list[Import]]:
    modules = read_modules(source)
    return {
        name: list(imports_of(ast.parse(path.read_text("utf-8"), str(path)), name, path.name == "__init__.py", modules))
        for name, path in modules.items()
    }


def find_cycle(imports: Mapping[str, list[Import]]) -> list[str] | None:
    """One chain of modules of ours that ends where it began, each importing the next, or None."""
    graph = {name: [i.target for i in found if i.target in imports] for name, found in imports.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # The sorter lists predecessors first; read backwards, each module imports the next.
        return list(reversed(error.args[1]))
    return None


def is_allowed(module: str, target: str) -> bool:
    is_ours = is_within(target, ROOT_PACKAGE)
    for table in (PURE, NARROW):
        for package, below in table.items():
            if is_within(module, package) and is_ours:
                return any(is_within(target, allowed) for allowed in (package, *below))
    if any(is_within(module, package) for package in PURE):
        return target.split(".")[0] in sys.stdlib_module_names
    owners = OWNERS.get(target.split(".")[0])
    return owners is None or any(is_within(module, owner) for owner in owners)


def complaints(source: Path) -> list[str]:
    """One line per breach, with module and line number."""
    imports = read_imports(source)
    lines = [
        f"{module}:{found.line}: may not import {found.target}"
        for module, all_found in imports.items()
        for found in all_found
        if not is_allowed(module, found.target)
    ]
    cycle = find_cycle(imports)
    return lines if cycle is None else [*lines, "import cycle: " + " -> ".join(cycle)]


def main() -> int:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "src"
    lines = complaints(source)
    print("\n".join(lines) or "imports: no cycle, every package in its place")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
