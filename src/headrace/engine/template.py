"""Chat templates compiled: jinja2's immutable sandbox in which every rendering has a budget of steps.

A template comes with a checkpoint and may be anything. What its loops, calls, filters and operators cost is counted
before it is done, so that one that never ends, or whose text never ends, is refused within a fraction of a second,
whichever thread it runs in.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from headrace.engine import checks
from headrace.words.errors import RequestError

BASE_STEPS = 200_000
MESSAGE_STEPS = 1_000
CHARACTER_STEPS = 2
CALL_STEPS = 4
MAX_NUMBER = 100_000
"""No width, count or precision that a template passes on may be larger."""
TEXT_SHIFT = 10
"""A kilobyte of text made is a step."""
LIST_SHIFT = 2
"""So are four items of a list."""
GROWING = ("replace", "join")
"""What they make can be as long as the product of what they get."""
COUNTED = "headrace counted"
MADE = "headrace made"


class Budget(threading.local):
    """What a thread's rendering may still spend."""

    left = 0

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise RequestError("messages", "the chat template takes more steps than this conversation allows")


def compile_template(source: str) -> jinja2.Template:
    if not isinstance(source, str):
        raise RequestError("chat_template", f"must be the text of a template, got {checks.shown(source)}")
    budget = _environment().budget
    budget.left = BASE_STEPS
    try:
        return _environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise RequestError("chat_template", f"cannot be read: {one_line(error)}") from error


def set_budget(num_messages: int, num_chars: int) -> None:
    """What the next rendering in this thread may cost."""
    _environment().budget.left = BASE_STEPS + MESSAGE_STEPS * num_messages + CHARACTER_STEPS * num_chars


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what is trained on; here it is its body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Generator(jinja2.compiler.CodeGenerator):
    """Every loop goes over a counted iterator, every joined text is counted when it is made."""

    def visit_Template(self, node: jinja2.nodes.Template, frame: Any = None) -> None:
        for loop in node.find_all(jinja2.nodes.For):
            loop.iter = _filtered(loop.iter, COUNTED)
        _count_joins(node)
        super().visit_Template(node, frame)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _count_joins(node: jinja2.nodes.Node) -> None:
    for child in list(node.iter_child_nodes()):
        _count_joins(child)
    for name, value in list(node.iter_fields()):
        if isinstance(value, jinja2.nodes.Concat):
            setattr(node, name, _filtered(value, MADE))
        elif isinstance(value, list):
            value[:] = [_filtered(v, MADE) if isinstance(v, jinja2.nodes.Concat) else v for v in value]


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.budget = Budget()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._counting(name, function) for name, function in self.filters.items()}
        self.filters |= {COUNTED: self._counted, MADE: self._made}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **named: Any) -> Any:
        self.budget.spend(CALL_STEPS)
        owner = getattr(function, "__self__", None)
        self._check(getattr(function, "__name__", ""), (owner, *args, *named.values()))
        result = super().call(context, function, *args, **named)
        self._note(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self.budget.spend(_width(value.__self__, ()))
        return wrapped

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.spend(_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)

    @jinja2.pass_context
    def _counted(self, context: Any, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.spend(1)
            yield item

    @jinja2.pass_context
    def _made(self, context: Any, value: Any) -> Any:
        self._note(value)
        return value

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            self.budget.spend(1)
            self._check(name, (*args, *named.values()))
            result = function(*args, **named)
            self._note(result)
            return result

        return call

    def _check(self, name: str, values: tuple[Any, ...]) -> None:
        if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
            raise RequestError("messages", f"the chat template passes a number above {MAX_NUMBER} to {name}")
        if name == "format" and isinstance(values[0], str):
            self.budget.spend(_width(values[0], ()))
        if name in GROWING:
            lengths = sorted(len(value) for value in values if isinstance(value, str | list | tuple))
            self.budget.spend(lengths[-1] * lengths[-2] >> TEXT_SHIFT if len(lengths) > 1 else 0)

    def _note(self, value: Any) -> None:
        self.budget.spend(_weight(value))


def _cost(operator: str, left: Any, right: Any) -> int:
    """Steps, told before the operator is applied."""
    if operator == "%":
        return _width(left, right) if isinstance(left, str) else 0
    if isinstance(left, int) and isinstance(right, int):
        times = {"*": 1, "**": max(0, right)}.get(operator, 0)
        return (left.bit_length() + right.bit_length()) * times >> 6
    if operator == "*":
        shift = TEXT_SHIFT if isinstance(left, str) or isinstance(right, str) else LIST_SHIFT
        return max(0, _size(left) * _size(right)) >> shift
    return _weight(left) + _weight(right)


def _size(value: Any) -> int:
    """Of a sequence its length; a number is what it multiplies one with."""
    if isinstance(value, int):
        return value
    return len(value) if isinstance(value, str | list | tuple) else 0


def _weight(value: Any) -> int:
    """Steps that making this was worth."""
    if isinstance(value, str):
        return len(value) >> TEXT_SHIFT
    return len(value) >> LIST_SHIFT if isinstance(value, list | tuple | range) else 0


def _width(form: str, values: Any) -> int:
    """The largest width that a format asks for."""
    starred = values if isinstance(values, tuple) else (values,)
    numbers = [value for value in starred if isinstance(value, int)] if "*" in form else []
    return max([*map(int, re.findall(r"\d+", form)), *numbers], default=0)


@cache
def _environment() -> _Environment:
    return _Environment()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise RequestError("messages", f"the chat template refuses: {' '.join(str(message).split())}")


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
