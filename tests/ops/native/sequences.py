"""Sequences in shuffled pages, attended to in steps of any cut."""

from __future__ import annotations

import numpy as np
from tests.ops.native.machines import numbers

from headrace.ops.base import StepInputs

NUM_BLOCKS = 120


class Sequences:
    """Several sequences' q, k and v, and pages dealt out in random order. Of the first one's, `shared` are used by all
    that are long enough."""

    def __init__(
        self, dtype: str, lengths, heads=(6, 2), dim=24, block_size=16, seed=0, cache_dtype=None, shared=0
    ) -> None:
        self.lengths, self.heads, self.dim, self.block_size, self.dtype = lengths, heads, dim, block_size, dtype
        self.cache_dtype = cache_dtype
        free = np.random.default_rng(seed).permutation(np.arange(1, 1 + NUM_BLOCKS)).tolist()
        width = -(-max(lengths) // block_size)
        self.tables = np.zeros((len(lengths), width), np.int32)
        self.qkv = []
        for i, length in enumerate(lengths):
            count, kept = -(-length // block_size), min(shared, length // block_size) if i else 0
            self.tables[i, :kept] = self.tables[0, :kept]
            self.tables[i, kept:count], free = free[: count - kept], free[count - kept :]
            self.qkv.append(numbers(dtype, length, (heads[0] + 2 * heads[1]) * dim, seed=seed + 10 + i, spread=1.5))
            self.qkv[i][: kept * block_size] = self.qkv[0][: kept * block_size]

    def step(self, spans) -> tuple[StepInputs, np.ndarray]:
        """spans: (sequence, start, end) each → the step's inputs and its qkv [T, …]."""
        positions = np.concatenate([np.arange(start, end) for _, start, end in spans]).astype(np.int32)
        which = np.repeat([s for s, _, _ in spans], [end - start for _, start, end in spans])
        slots = self.tables[which, positions // self.block_size].astype(np.int64) * self.block_size
        inputs = StepInputs(
            np.zeros(positions.size, np.int32),
            positions,
            slots + positions % self.block_size,
            np.cumsum([0, *(end - start for _, start, end in spans)]).astype(np.int32),
            np.array([end for _, _, end in spans], np.int32),
            np.ascontiguousarray(self.tables[[s for s, _, _ in spans]]),
        )
        return inputs, np.concatenate([self.qkv[s][start:end] for s, start, end in spans])

    def cache(self, ops):
        return ops.kv_cache(NUM_BLOCKS + 1, self.block_size, self.heads[1], self.dim, self.cache_dtype)

    def attend(self, ops, cache, spans, to_backend=np.asarray, **form):
        inputs, qkv = self.step(spans)
        q, k, v = ops.split_heads(to_backend(qkv), (*self.heads, self.heads[1]), self.dim)
        return ops.attend(q, k, v, cache, ops.begin(inputs), self.dim**-0.5, **form)

    def whole(self, ops, **form):
        """All sequences at once as one step of prompts."""
        spans = [(i, 0, length) for i, length in enumerate(self.lengths)]
        return self.attend(ops, self.cache(ops), spans, **form)


def assert_same_however_cut(sequences: Sequences, ops, **form) -> None:
    """The bits of prompts as one step, of the first one in chunks, and of all last tokens together in another order."""
    whole, lengths = sequences.whole(ops, **form), sequences.lengths
    cache, first = sequences.cache(ops), lengths[0]
    alone = [
        sequences.attend(ops, cache, [(0, start, end)], **form)
        for start, end in [(0, 33), (33, 34), (34, 70), (70, first - 1), (first - 1, first)]
    ]
    assert np.concatenate(alone).tobytes() == whole[:first].tobytes()
    cache = sequences.cache(ops)
    for i, length in enumerate(lengths):
        sequences.attend(ops, cache, [(i, 0, length - 1)])
    last = sequences.attend(ops, cache, [(i, n - 1, n) for i, n in enumerate(lengths)][::-1], **form)
    assert last[::-1].tobytes() == whole[np.cumsum(lengths) - 1].tobytes()
