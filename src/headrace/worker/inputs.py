"""A plan as flat arrays: what the model reads, in buffers sized at start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Ints, StepInputs
from headrace.words.errors import EngineError
from headrace.words.plan import Segment, StepPlan
from headrace.worker.rows import Rows


class Columns(NamedTuple):
    """A plan's segments, one array per field, [S] each."""

    seq_ids: NDArray[np.int64]
    epochs: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_drafts: NDArray[np.int64]
    emits: NDArray[np.int64]

    @property
    def ends(self) -> NDArray[np.int64]:
        return self.starts + self.lengths


def columns(segments: tuple[Segment, ...]) -> Columns:
    table = np.array(segments, np.int64).reshape(len(segments), len(Segment._fields))
    return Columns(*np.ascontiguousarray(table.T))


class InputBuffers:
    """Room for the largest step: `max_num_tokens` over at most as many segments as there are rows."""

    def __init__(self, rows: Rows, max_num_tokens: int) -> None:
        num_segments, num_blocks = rows.block_tables.shape
        self._rows = rows
        self._token_ids = np.zeros(max_num_tokens, np.int32)
        self._positions = np.zeros(max_num_tokens, np.int32)
        self._slots = np.zeros(max_num_tokens, np.int64)
        self._query_starts = np.zeros(num_segments + 1, np.int32)
        self._context_lens = np.zeros(num_segments, np.int32)
        self._block_tables = np.zeros(num_segments * num_blocks, np.int32)

    def fill(self, plan: StepPlan, segments: Columns) -> StepInputs:
        """Views of the buffers, valid until the next call. Token ids come from the rows: a decode's input is the token
        that the step before has drawn, a verification's are the drafts behind it."""
        self._check(plan, segments)
        num_tokens, num_segments = int(segments.lengths.sum()), segments.rows.size
        query_starts = self._query_starts[: num_segments + 1]
        np.cumsum(segments.lengths, out=query_starts[1:])
        context_lens = self._context_lens[:num_segments]
        context_lens[:] = segments.ends
        row_of_token, positions = self._places(segments, num_tokens, query_starts)
        token_ids, slots = self._token_ids[:num_tokens], self._slots[:num_tokens]
        token_ids[:] = self._rows.tokens[row_of_token, positions]
        size = self._rows.block_size
        slots[:] = self._rows.block_tables[row_of_token, positions // size]
        slots *= size
        slots += positions % size
        return StepInputs(token_ids, positions, slots, query_starts, context_lens, self._tables(segments))

    def _places(
        self, segments: Columns, num_tokens: int, query_starts: Ints
    ) -> tuple[NDArray[np.int64], Ints]:
        """The row and the position of every token, [T] each."""
        positions = self._positions[:num_tokens]
        if num_tokens == segments.rows.size:
            positions[:] = segments.starts
            return segments.rows, positions
        offsets = np.repeat(segments.starts - query_starts[:-1], segments.lengths)
        positions[:] = np.arange(num_tokens) + offsets
        return np.repeat(segments.rows, segments.lengths), positions

    def _tables(self, segments: Columns) -> Ints:
        """[S, B] copied row by row: the buffer is dense for every B, so that a kernel needs no stride."""
        width = -(-int(segments.ends.max()) // self._rows.block_size)
        tables = self._block_tables[: segments.rows.size * width].reshape(-1, width)
        source = self._rows.block_tables
        for i, row in enumerate(segments.rows.tolist()):
            tables[i] = source[row, :width]
        return tables

    def _check(self, plan: StepPlan, segments: Columns) -> None:
        """A plan that does not fit what the worker knows is refused before it can touch anybody's cache."""
        rows = self._rows
        is_owner = (rows.seq_ids[segments.rows] == segments.seq_ids) & (rows.epochs[segments.rows] == segments.epochs)
        if not is_owner.all():
            raise EngineError(f"step {plan.step} names a row for a sequence that does not hold it")
        if not (segments.ends - segments.num_drafts <= rows.lengths[segments.rows]).all():
            raise EngineError(f"step {plan.step} computes a token that does not exist")
        if not (segments.ends <= rows.num_blocks[segments.rows] * rows.block_size).all():
            raise EngineError(f"step {plan.step} computes a token that has no cache block")
