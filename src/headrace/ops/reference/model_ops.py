"""The model ops in plain torch on the CPU: the specification that faster backends are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from headrace.ops.base import Activation, Floats, Ints, QuantizedMatrix, StepInputs
from headrace.ops.reference.attention import attend_fast
from headrace.ops.reference.coded_cache import CodedCache
from headrace.ops.reference.experts import Routes, combine, route
from headrace.ops.reference.step import Form, PagedCache, Step
from headrace.ops.reference.strict import attend_strict, in_row_tiles
from headrace.ops.reference.weight import Weight
from headrace.words.cache_spec import PagedKV

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class ModelOps:
    """`dtype` is float32 or bfloat16. `num_threads` sets torch's pool for the process; None leaves it.

    `fixed_rows` makes every product run on that many rows at once and attention in tiles of a fixed shape, so that on
    one thread a row's bits do not depend on its company: slow, for tests of the engine.
    """

    keeps_blocks = False

    def __init__(self, dtype: str = "float32", num_threads: int | None = None, fixed_rows: int | None = None) -> None:
        self.dtype = dtype
        self._dtype = DTYPES[dtype]
        self._fixed_rows = fixed_rows
        if num_threads is not None:
            torch.set_num_threads(num_threads)

    def weight(self, array: NDArray[Any] | QuantizedMatrix) -> Weight:
        if isinstance(array, QuantizedMatrix):
            array = array.dequantize()
        return Weight(to_torch(array).to(self._dtype), may_pack=self._fixed_rows is None)

    def kv_cache(
        self, num_blocks: int, block_size: int, num_heads: int, head_dim: int, dtype: str | None = None
    ) -> PagedCache:
        assert dtype in (None, self.dtype, "int8"), f"{self.dtype} does not attend to {dtype}"
        shape = (num_blocks, num_heads, block_size, head_dim)
        if dtype == "int8":
            return CodedCache.zeros(shape)
        kind = np.uint16 if self._dtype is torch.bfloat16 else np.float32
        # numpy leaves zeroed pages to the kernel until they are touched; torch.zeros writes all of them now.
        return PagedCache(to_torch(np.zeros(shape, kind)), to_torch(np.zeros(shape, kind)))

    def kv_caches(self, num_blocks: int, block_size: int, layers: Sequence[PagedKV]) -> list[PagedCache]:
        return [self.kv_cache(num_blocks, block_size, kv.num_heads, kv.head_dim, kv.dtype) for kv in layers]

    def zero_blocks(self, cache: PagedCache, block_ids: Sequence[int]) -> None:
        cache.zero_blocks(list(block_ids))

    def begin(self, inputs: StepInputs) -> Step:
        return Step.of(inputs)

    def embed(self, ids: Ints, table: Weight) -> torch.Tensor:
        return F.embedding(torch.from_numpy(ids), table.as_table())

    def linear(
        self, x: torch.Tensor, weight: Weight, bias: Weight | None = None, is_summand: bool = False
    ) -> torch.Tensor:
        added = None if bias is None else bias.plain
        if self._fixed_rows:
            return in_row_tiles(x, self._fixed_rows, lambda rows: F.linear(rows, weight.plain, added))
        return weight.multiply(x, added)

    def rms_norm(self, x: torch.Tensor, weight: Weight, eps: float, offset: float = 0.0) -> torch.Tensor:
        # All in fp32: torch's own norm of bf16 multiplies mixed types, which takes ten times as long.
        factor = weight.plain.float() + offset if offset else weight.plain.float()
        return F.rms_norm(x.float(), (x.shape[-1],), factor, eps).to(x.dtype)

    def layer_norm(self, x: torch.Tensor, weight: Weight, bias: Weight, eps: float) -> torch.Tensor:
        factor, added = weight.plain.float(), bias.plain.float()
        return F.layer_norm(x.float(), (x.shape[-1],), factor, added, eps).to(x.dtype)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def activate(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        return ACTIVATIONS[activation](x)

    def glu(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return ACTIVATIONS[activation](gate).mul_(up)

    def _linear_fp32(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        """A product whose sums and result are fp32 whatever the inputs have."""
        matrix = weight.plain.float()
        if self._fixed_rows:
            return in_row_tiles(x.float(), self._fixed_rows, lambda rows: F.linear(rows, matrix))
        return F.linear(x.float(), matrix)

    def route(self, x: torch.Tensor, router: Weight, num_chosen: int, renormalize: bool) -> Routes:
        # Summed in double: in fp32, equal rows of a router may give unequal logits, by their place in the product.
        logits = F.linear(x.double(), router.plain.double()).float()
        return route(logits, num_chosen, renormalize)

    def experts(
        self,
        x: torch.Tensor,
        routes: Routes,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        activation: Activation,
    ) -> torch.Tensor:
        def run(expert: int, tokens: torch.Tensor) -> torch.Tensor:
            return self._linear_fp32(self.glu(self.linear(tokens, gate_up[expert]), activation), down[expert])

        return combine(x, routes, run)

    def split_heads(self, x: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        heads = x.view(x.shape[0], -1, head_dim)
        return torch.split(heads, list(sizes), dim=1)

    def angles(self, table: Floats, step: Step) -> torch.Tensor:
        return torch.from_numpy(table[step.inputs.positions])

    def rotate(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        num_turned = angles.shape[-1]
        cos, sin = angles.view(-1, 1, 2, num_turned // 2).unbind(2)
        pairs = x[..., :num_turned].float().unflatten(-1, (2, -1))
        first, second = pairs.unbind(2)
        turned = pairs * cos[:, :, None]
        # Not addcmul, whose product is not rounded on every machine.
        turned[:, :, 0] -= second * sin
        turned[:, :, 1] += first * sin
        done = turned.flatten(2).to(x.dtype)
        return done if num_turned == x.shape[-1] else torch.cat((done, x[..., num_turned:]), dim=-1)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: PagedCache,
        step: Step,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> torch.Tensor:
        cache.write(k, v, step)
        attend = attend_strict if self._fixed_rows else attend_fast
        heads = attend(q.to(cache.dtype), cache, step, Form(scale, window, soft_cap))
        return heads.to(q.dtype).reshape(q.shape[0], -1)

    def gather(self, x: torch.Tensor, rows: Ints) -> torch.Tensor:
        return x.index_select(0, torch.from_numpy(rows))

    def logits(
        self, hidden: torch.Tensor, weight: Weight, scale: float = 1.0, soft_cap: float | None = None
    ) -> torch.Tensor:
        found = self.linear(hidden, weight).float()
        if scale != 1.0:
            found = found * scale
        return found if soft_cap is None else torch.tanh(found / soft_cap) * soft_cap

    def to_numpy(self, x: torch.Tensor) -> Floats:
        return x.detach().float().numpy()


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """A numpy array as a tensor, without a copy if it is writable; uint16 holds bfloat16."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
