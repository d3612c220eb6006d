"""Recording a model: run once on symbols, it leaves a native program for any number of tokens.

A symbol is a range of columns of a buffer that holds a step's tokens. The recorder hands out buffers and takes them
back when the last symbol on them is gone, so that a forward of many layers lives in a handful.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from headrace import _native
from headrace.ops.base import Floats


class Buffer:
    """Columns for the tokens of a step; free again when nobody holds it."""

    def __init__(self, number: int, cols: int, is_bf16: bool) -> None:
        self.number = number
        self.kind = (cols, is_bf16)


class Symbol:
    """[T, cols] or [T, heads, dim] of a step that is not there yet."""

    def __init__(self, recorder: Recorder, buffer: Buffer, offset: int, shape: tuple[int, ...]) -> None:
        self.recorder = recorder
        self._buffer = buffer
        self._offset = offset
        self.shape = shape
        """What lies behind the tokens: (cols,) or (heads, dim)."""

    @property
    def cols(self) -> int:
        return self.shape[0] * (self.shape[1] if len(self.shape) > 1 else 1)

    @property
    def place(self) -> _native.Place:
        return _native.Place(self._buffer.number, self._offset, self.cols)

    @property
    def is_bf16(self) -> bool:
        return self._buffer.kind[1]

    def split_heads(self, sizes: Sequence[int], head_dim: int) -> tuple[Symbol, ...]:
        """The same buffer, side by side."""
        parts, offset = [], self._offset
        for size in sizes:
            parts.append(Symbol(self.recorder, self._buffer, offset, (size, head_dim)))
            offset += size * head_dim
        return tuple(parts)


class SymbolicIds:
    """The step's token ids, or its positions."""

    def __init__(self, recorder: Recorder, are_positions: bool) -> None:
        self.recorder = recorder
        self.are_positions = are_positions


class SymbolicRoutes(NamedTuple):
    """What `route` has recorded: the number of its ids in the program, and the weights."""

    number: int
    weights: Symbol


class SymbolicStep:
    """Stands for StepInputs, and for what ops make of them, while a forward is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.token_ids = SymbolicIds(recorder, are_positions=False)
        self.positions = SymbolicIds(recorder, are_positions=True)


class Recorder:
    """Writes ops into a program with room for `max_tokens` tokens."""

    def __init__(self, machine: _native.Machine, is_bf16: bool, max_tokens: int) -> None:
        self.program = _native.Program(machine, max_tokens)
        self._is_bf16 = is_bf16
        self._free: dict[tuple[int, bool], list[int]] = {}

    def step(self) -> SymbolicStep:
        return SymbolicStep(self)

    def head(self, hidden: Symbol, max_num_draws: int) -> Symbol:
        """Ends the body with its result [T, hidden]; gives the rows [R, hidden] from which the head goes on."""
        self.program.begin_head(max_num_draws)
        self._free.clear()
        rows = self._room(*hidden.shape, is_bf16=hidden.is_bf16)
        self.program.take_rows(hidden.place, rows.place)
        return rows

    def _room(self, *shape: int, is_bf16: bool | None = None) -> Symbol:
        cols = shape[0] * (shape[1] if len(shape) > 1 else 1)
        kind = (cols, self._is_bf16 if is_bf16 is None else is_bf16)
        free = self._free.setdefault(kind, [])
        buffer = Buffer(free.pop() if free else self.program.add_buffer(*kind), *kind)
        weakref.finalize(buffer, free.append, buffer.number)
        return Symbol(self, buffer, 0, shape)

    def embed(self, ids: SymbolicIds, table: _native.Weight) -> Symbol:
        out = self._room(table.shape[1], is_bf16=False)
        self.program.embed(table, ids.are_positions, out.place)
        return out

    def angles(self, table: Floats) -> Symbol:
        out = self._room(table.shape[1], is_bf16=False)
        self.program.angles(table, out.place)
        return out

    def linear(self, x: Symbol, weight: _native.Weight, bias: Floats | None, is_summand: bool) -> Symbol:
        out = self._room(weight.shape[0], is_bf16=self._is_bf16 and not is_summand)
        self.program.linear(x.place, weight, bias, out.place)
        return out

    def logits(self, x: Symbol, weight: _native.Weight, scale: float, soft_cap: float) -> Symbol:
        out = self._room(weight.shape[0], is_bf16=False)
        self.program.linear(x.place, weight, None, out.place)
        if scale != 1.0 or soft_cap:
            self.program.cap(out.place, scale, soft_cap)
        return out

    def rms_norm(self, x: Symbol, weight: Floats, eps: float, offset: float) -> Symbol:
        out = self._room(*x.shape)
        self.program.rms_norm(x.place, weight, eps, offset, out.place)
        return out

    def layer_norm(self, x: Symbol, weight: Floats, bias: Floats, eps: float) -> Symbol:
        out = self._room(*x.shape)
        self.program.layer_norm(x.place, weight, bias, eps, out.place)
        return out

    def activate(self, x: Symbol, kind: int) -> Symbol:
        out = self._room(*x.shape)
        self.program.activate(x.place, kind, out.place)
        return out

    def route(self, x: Symbol, router: _native.Weight, num_chosen: int, renormalize: bool) -> SymbolicRoutes:
        logits = self._room(router.shape[0], is_bf16=False)
        self.program.linear(x.place, router, None, logits.place)
        weights = self._room(num_chosen, is_bf16=False)
        return SymbolicRoutes(self.program.route(logits.place, renormalize, weights.place), weights)

    def experts(
        self, x: Symbol, routes: SymbolicRoutes, gate_up: list[_native.Weight], down: list[_native.Weight], kind: int
    ) -> Symbol:
        out = self._room(*x.shape)
        self.program.experts(x.place, routes.number, routes.weights.place, gate_up, down, kind, out.place)
        return out

    def add(self, x: Symbol, y: Symbol) -> Symbol:
        wide, other = (y, x) if x.is_bf16 and not y.is_bf16 else (x, y)
        out = self._room(*x.shape, is_bf16=wide.is_bf16)
        self.program.add(wide.place, other.place, out.place)
        return out

    def scale(self, x: Symbol, factor: float) -> Symbol:
        out = self._room(*x.shape, is_bf16=x.is_bf16)
        self.program.scale(x.place, factor, out.place)
        return out

    def glu(self, gate_up: Symbol, kind: int) -> Symbol:
        out = self._room(gate_up.cols // 2)
        self.program.glu(gate_up.place, kind, out.place)
        return out

    def rotate(self, x: Symbol, angles: Symbol) -> Symbol:
        out = self._room(*x.shape)
        self.program.rotate(x.place, x.shape[0], angles.place, out.place)
        return out

    def attend(
        self, q: Symbol, k: Symbol, v: Symbol, cache: _native.Cache, scale: float, window: int, soft_cap: float
    ) -> Symbol:
        out = self._room(q.cols)
        self.program.attend(q.place, k.place, v.place, cache, scale, window, soft_cap, out.place)
        return out


