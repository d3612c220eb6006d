"""Sequences whose keys and values lie in shuffled pages, and attention over them said once more, in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.ops.base import StepInputs
from headrace.ops.reference import ReferenceOps

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Pages:
    """q, k and v [length, heads, dim] of several sequences, each owning blocks that are nowhere neighbours."""

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, dim: int, block: int, dtype: str) -> None:
        self.block, self.dtype = block, dtype
        self.kv_heads, self.dim = kv_heads, dim
        counts = [-(-length // block) for length in lengths]
        self.num_blocks = 2 * sum(counts) + 3
        owned = iter(np.random.default_rng(1).permutation(np.arange(2, self.num_blocks, 2))[: sum(counts)])
        self.tables = [[int(next(owned)) for _ in range(count)] for count in counts]
        generator = torch.Generator().manual_seed(2)
        self.q, self.k, self.v = (
            [torch.randn(n, count, dim, generator=generator).to(TORCH[dtype]) for n in lengths]
            for count in (heads, kv_heads, kv_heads)
        )

    def cache(self, ops: ReferenceOps, stale: float = float("nan")) -> Any:
        """All blocks but the null block hold `stale`."""
        cache = ops.kv_cache(self.num_blocks, self.block, self.kv_heads, self.dim)
        cache.keys[1:] = stale
        cache.values[1:] = stale
        return cache

    def inputs(self, spans: list[tuple[int, int, int]]) -> StepInputs:
        """(sequence, start, end) of each segment; tables are padded with the null block beyond the widest."""
        width = 1 + max(-(-end // self.block) for _, _, end in spans)
        tables = np.zeros((len(spans), width), np.int32)
        positions, slots = [], []
        for i, (seq, start, end) in enumerate(spans):
            held = self.tables[seq][: -(-end // self.block)]
            tables[i, : len(held)] = held
            positions += range(start, end)
            slots += [held[p // self.block] * self.block + p % self.block for p in range(start, end)]
        lengths = [end - start for _, start, end in spans]
        return StepInputs(
            token_ids=np.zeros(len(positions), np.int32),
            positions=np.array(positions, np.int32),
            slots=np.array(slots, np.int64),
            query_starts=np.cumsum([0, *lengths]).astype(np.int32),
            context_lens=np.array([end for _, _, end in spans], np.int32),
            block_tables=tables,
        )

    def attend(self, ops: ReferenceOps, cache: Any, spans: list[tuple[int, int, int]], **form: Any) -> np.ndarray:
        """One step over the segments → [T, heads × dim]"""
        step = ops.begin(self.inputs(spans))
        q, k, v = (torch.cat([x[seq][start:end] for seq, start, end in spans]) for x in (self.q, self.k, self.v))
        return ops.to_numpy(ops.attend(q, k, v, cache, step, **{"scale": self.dim**-0.5, **form}))

    def wanted(self, spans: list[tuple[int, int, int]], **form: Any) -> np.ndarray:
        return np.concatenate([self._wanted(*span, **form) for span in spans])

    def _wanted(
        self,
        seq: int,
        start: int,
        end: int,
        scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> np.ndarray:
        q, k, v = (x[seq].double().numpy() for x in (self.q, self.k, self.v))
        fold = q.shape[1] // k.shape[1]
        rows = []
        for position in range(start, end):
            first = 0 if window is None else max(0, position - window + 1)
            heads = []
            for head in range(q.shape[1]):
                keys, values = (x[first : position + 1, head // fold] for x in (k, v))
                scores = keys @ q[position, head] * (self.dim**-0.5 if scale is None else scale)
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max())
                heads.append(weights @ values / weights.sum())
            rows.append(np.concatenate(heads))
        return np.stack(rows)
