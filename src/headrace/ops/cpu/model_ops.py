"""The model ops: each takes arrays and computes at once, or takes symbols and records itself into a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.ops.base import Activation, Floats, Forward, Ints, QuantizedMatrix, StepInputs
from headrace.ops.bfloat16 import as_dtype, to_float32
from headrace.ops.cpu.lower import LoweredModel, lower
from headrace.ops.cpu.machine import check_heads, check_matrix, make_machine
from headrace.ops.cpu.packing import pack_quantized
from headrace.ops.cpu.program import Symbol, SymbolicIds, SymbolicStep
from headrace.words.cache_spec import PagedKV

ITEMS = {"float32": np.float32, "bfloat16": np.uint16}
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu")
Array = NDArray[Any]


def keeps_blocks(dtype: str) -> bool:
    """Whether quantized matrices stay as they are stored: their kernels take bfloat16."""
    return dtype == "bfloat16"


class Routes(NamedTuple):
    """Each token's experts, best first: ids and fp32 weights, [T, chosen] each."""

    ids: Ints
    weights: Floats


class EagerStep:
    """A step's inputs as the kernels take them."""

    def __init__(self, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.native = _native.Step(*inputs)


class ModelOps:
    """`dtype` is float32 or bfloat16, that of weights, caches and what products take; what layers add up stays float32
    between them. `num_threads` and `isa` as in `make_machine`; all give the same bits."""

    def __init__(
        self,
        dtype: str = "float32",
        num_threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.dtype = dtype
        self.keeps_blocks = keeps_blocks(dtype)
        self._item = ITEMS[dtype]
        self.machine = make_machine(num_threads, isa)

    def compile(
        self, model: Forward, caches: Sequence[_native.Cache | None], max_num_tokens: int, max_num_draws: int
    ) -> LoweredModel:
        return lower(model, self.machine, self.dtype == "bfloat16", caches, max_num_tokens, max_num_draws)

    def weight(self, array: Array | QuantizedMatrix) -> Any:
        """A matrix is packed; a vector stays an array, float32 whose values `dtype` can hold. Raises ModelError."""
        if len(array.shape) == 2:
            check_matrix(array.shape[1])
        if isinstance(array, QuantizedMatrix):
            if self.keeps_blocks and (packed := pack_quantized(self.machine, array)) is not None:
                return packed
            array = array.dequantize()
        values = as_dtype(array, self.dtype)
        if values.ndim == 1:
            return np.array(to_float32(values) if self.dtype == "bfloat16" else values)  # no view of a mapped file
        return self.machine.pack(np.ascontiguousarray(values))

    def kv_cache(
        self, num_blocks: int, block_size: int, num_heads: int, head_dim: int, dtype: str | None = None
    ) -> _native.Cache:
        return self.kv_caches(num_blocks, block_size, [PagedKV(num_heads, head_dim, dtype or self.dtype)])[0]

    def kv_caches(self, num_blocks: int, block_size: int, layers: Sequence[PagedKV]) -> list[_native.Cache]:
        for kv in layers:
            assert kv.dtype in (self.dtype, "int8"), f"{self.dtype} does not attend to {kv.dtype}"
            check_heads(kv.head_dim)
        shapes = [(kv.dtype == "int8", kv.num_heads, kv.head_dim) for kv in layers]
        return self.machine.make_caches(self.dtype == "bfloat16", num_blocks, block_size, shapes)

    def zero_blocks(self, cache: _native.Cache, block_ids: Sequence[int]) -> None:
        cache.zero_blocks(list(block_ids))

    def begin(self, inputs: StepInputs) -> Any:
        return inputs if isinstance(inputs, SymbolicStep) else EagerStep(inputs)

    def _room(self, *shape: int) -> Array:
        return np.empty(shape, self._item)

    def embed(self, ids: Any, table: _native.Weight) -> Any:
        if isinstance(ids, SymbolicIds):
            return ids.recorder.embed(ids, table)
        out = np.empty((ids.size, table.shape[1]), np.float32)
        self.machine.embed(ids, table, out)
        return out

    def linear(
        self, x: Any, weight: _native.Weight, bias: Floats | None = None, is_summand: bool = False
    ) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.linear(x, weight, bias, is_summand)
        out = np.empty((x.shape[0], weight.shape[0]), np.float32 if is_summand else self._item)
        self.machine.linear(x, weight, bias, out)
        return out

    def rms_norm(self, x: Any, weight: Floats, eps: float, offset: float = 0.0) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.rms_norm(x, weight, eps, offset)
        out = self._room(*x.shape)
        self.machine.rms_norm(x, weight, eps, offset, out)
        return out

    def layer_norm(self, x: Any, weight: Floats, bias: Floats, eps: float) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.layer_norm(x, weight, bias, eps)
        out = self._room(*x.shape)
        self.machine.layer_norm(x, weight, bias, eps, out)
        return out

    def add(self, x: Any, y: Any) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.add(x, y)
        wide, other = (x, y) if x.dtype == np.float32 else (y, x)
        out = np.empty_like(wide)
        self.machine.add(wide, other, out)
        return out

    def scale(self, x: Any, factor: float) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.scale(x, factor)
        out = np.empty_like(x)
        self.machine.scale(x, factor, out)
        return out

    def activate(self, x: Any, activation: Activation) -> Any:
        kind = ACTIVATIONS.index(activation)
        if isinstance(x, Symbol):
            return x.recorder.activate(x, kind)
        out = self._room(*x.shape)
        self.machine.activate(x, kind, out)
        return out

    def route(self, x: Any, router: _native.Weight, num_chosen: int, renormalize: bool) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.route(x, router, num_chosen, renormalize)
        routes = Routes(np.empty((x.shape[0], num_chosen), np.int32), np.empty((x.shape[0], num_chosen), np.float32))
        self.machine.route(self.logits(x, router), renormalize, *routes)
        return routes

    def experts(
        self,
        x: Any,
        routes: Any,
        gate_up: Sequence[_native.Weight],
        down: Sequence[_native.Weight],
        activation: Activation,
    ) -> Any:
        kind = ACTIVATIONS.index(activation)
        if isinstance(x, Symbol):
            return x.recorder.experts(x, routes, list(gate_up), list(down), kind)
        out = self._room(*x.shape)
        self.machine.experts(x, *routes, list(gate_up), list(down), kind, out)
        return out

    def glu(self, gate_up: Any, activation: Activation) -> Any:
        kind = ACTIVATIONS.index(activation)
        if isinstance(gate_up, Symbol):
            return gate_up.recorder.glu(gate_up, kind)
        out = self._room(gate_up.shape[0], gate_up.shape[1] // 2)
        self.machine.glu(gate_up, kind, out)
        return out

    def split_heads(self, x: Any, sizes: Sequence[int], head_dim: int) -> tuple[Any, ...]:
        if isinstance(x, Symbol):
            return x.split_heads(sizes, head_dim)
        heads = x.reshape(x.shape[0], -1, head_dim)
        return tuple(np.split(heads, np.cumsum(sizes)[:-1], axis=1))

    def angles(self, table: Floats, step: Any) -> Any:
        if isinstance(step, SymbolicStep):
            return step.recorder.angles(table)
        return table[step.inputs.positions]

    def rotate(self, x: Any, angles: Any) -> Any:
        if isinstance(x, Symbol):
            return x.recorder.rotate(x, angles)
        out = self._room(*x.shape)
        self.machine.rotate(x, angles, out)
        return out

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        cache: _native.Cache,
        step: Any,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Any:
        if isinstance(q, Symbol):
            return q.recorder.attend(q, k, v, cache, scale, window or 0, soft_cap or 0.0)
        out = self._room(q.shape[0], q.shape[1] * q.shape[2])
        self.machine.attend(q, k, v, cache, step.native, scale, window or 0, soft_cap or 0.0, out)
        return out

    def gather(self, x: Array, rows: Ints) -> Array:
        out = np.empty((len(rows), x.shape[1]), x.dtype)
        self.machine.gather(x, np.ascontiguousarray(rows, np.int32), out)
        return out

    def logits(
        self, hidden: Any, weight: _native.Weight, scale: float = 1.0, soft_cap: float | None = None
    ) -> Any:
        if isinstance(hidden, Symbol):
            return hidden.recorder.logits(hidden, weight, scale, soft_cap or 0.0)
        out = np.empty((hidden.shape[0], weight.shape[0]), np.float32)
        self.machine.linear(hidden, weight, None, out)
        if scale != 1.0 or soft_cap is not None:
            self.machine.cap(out, scale, soft_cap or 0.0)
        return out

    def to_numpy(self, x: Array) -> Floats:
        return to_float32(x) if x.dtype == np.uint16 else x
