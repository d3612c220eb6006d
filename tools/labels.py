"""Read from the scheduler's source what a timeline can say, and where each reason for an end is set.

A label is the text handed as `where` to Sequence.move; functions that take `where` pass it on. An end is a call of
`Finish(reason, ...)`; its label is the next one in the same function.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    file: str
    function: str


class Label(NamedTuple):
    """A text that a timeline shows when a sequence reaches `status`; {names} stand for what differs."""

    status: str
    text: str
    place: Place


class End(NamedTuple):
    """`reason` is the name of a FinishReason."""

    reason: str
    text: str
    place: Place


class Carrier(NamedTuple):
    """A function that takes `where` as its argument number `position`, self not counted, and leads to `status`."""

    position: int
    status: str


Functions = dict[Place, Function]
Carriers = dict[str, Carrier]


def read_functions(package: Path) -> Functions:
    """Every function and method of a package, by file (below the package's parent) and qualified name."""
    found: Functions = {}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package.parent).as_posix()
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, Function):
                found[Place(file, node.name)] = node
            elif isinstance(node, ast.ClassDef):
                methods = [child for child in node.body if isinstance(child, Function)]
                found |= {Place(file, f"{node.name}.{method.name}"): method for method in methods}
    return found


def in_order(function: Function) -> Iterator[ast.expr]:
    """The expressions of a function as they stand in the text."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.expr)]
    return iter(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))


def end_of(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def callee(node: ast.AST) -> str | None:
    """The bare name of what a call calls, or None."""
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def literal(node: ast.AST | None) -> str | None:
    """The text of a string or f-string, {expressions} left in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [ast.unparse(p.value) if isinstance(p, ast.FormattedValue) else str(literal(p)) for p in node.values]
        return "".join(
            f"{{{part}}}" if isinstance(p, ast.FormattedValue) else part
            for p, part in zip(node.values, parts, strict=True)
        )
    return None


def where_of(call: ast.Call, index: int) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "where"]
    return named[0] if named else call.args[index] if index < len(call.args) else None


def members(node: ast.AST, enum: str) -> list[str]:
    """Names X of the mentions `enum`.X below a node."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return [n.attr for n in found if isinstance(n.value, ast.Name) and n.value.id == enum]


def status_reached(function: Function, carriers: Carriers) -> tuple[str, ast.Call, int] | None:
    """(status, call, index of its `where`) of the call that moves a sequence directly or by a carrier."""
    for node in in_order(function):
        if isinstance(node, ast.Call) and callee(node) == "move" and node.args and members(node.args[0], "Status"):
            return members(node.args[0], "Status")[0], node, 2
        if isinstance(node, ast.Call) and (carrier := carriers.get(callee(node) or "")):
            return carrier.status, node, carrier.position
    return None


def find_carriers(functions: Functions) -> Carriers:
    """Functions that hand their own `where` on to a move, by bare name."""
    carriers: Carriers = {}
    while True:
        num_known = len(carriers)
        for function in functions.values():
            names = [argument.arg for argument in function.args.args if argument.arg != "self"]
            reached = status_reached(function, carriers) if "where" in names and function.name not in carriers else None
            if reached and ast.unparse(where_of(reached[1], reached[2]) or function) == "where":
                carriers[function.name] = Carrier(names.index("where"), reached[0])
        if len(carriers) == num_known:
            return carriers


def labels_in(function: Function, carriers: Carriers) -> Iterator[tuple[ast.expr, str | None, str]]:
    """Yield (node, status or None, text) of every label: of a move, of a carrier, `where=`, or beside a Finish."""
    for node in in_order(function):
        name = callee(node)
        if isinstance(node, ast.Call):
            is_move = name == "move" and bool(node.args) and bool(members(node.args[0], "Status"))
            carrier = Carrier(2, members(node.args[0], "Status")[0]) if is_move else carriers.get(name or "")
            if text := literal(where_of(node, carrier.position if carrier else len(node.args))):
                yield node, carrier.status if carrier else None, text
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and callee(node.elts[0]) == "Finish":
            if text := literal(node.elts[1]):
                yield node, None, text


def find_labels(functions: Functions) -> list[Label]:
    """Every label with the status it leads to; one that is only handed on beside a Finish leads to FINISHED."""
    carriers = find_carriers(functions)
    return [
        Label(status or "FINISHED", text, place)
        for place, function in functions.items()
        for _, status, text in labels_in(function, carriers)
    ]


def reasons_of(call: ast.Call, functions: Functions) -> list[str]:
    """The reasons that a Finish may carry: those it names, else those named by the functions it asks."""
    if direct := members(call.args[0], "FinishReason"):
        return direct
    asked = [callee(node) for node in ast.walk(call.args[0])]
    return [
        reason
        for place, function in functions.items()
        if place.function in asked
        for reason in members(ast.Module(function.body, []), "FinishReason")
    ]


def find_ends(functions: Functions) -> list[End]:
    """Every place where a reason is set. A Finish without a reason or a label is a ValueError."""
    carriers = find_carriers(functions)
    ends = []
    for place, function in functions.items():
        labels = [(end_of(node), text) for node, _, text in labels_in(function, carriers)]
        for node in in_order(function):
            if not isinstance(node, ast.Call) or callee(node) != "Finish":
                continue
            following = [text for end, text in labels if end >= end_of(node)]
            reasons = reasons_of(node, functions)
            if not following or not reasons:
                raise ValueError(f"{place.file}:{node.lineno}: this Finish has no reason or no label to show")
            ends += [End(reason, following[0], place) for reason in reasons]
    return ends
