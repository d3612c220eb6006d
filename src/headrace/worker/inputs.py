"""A plan as flat arrays: what the model reads, in buffers sized at start."""

from __future__ import annotations

import numpy as np

from headrace.ops.base import Ints, StepInputs
from headrace.words.errors import EngineError
from headrace.words.plan import Segment, StepPlan
from headrace.worker.rows import Rows


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
        self._counting = np.arange(rows.tokens.shape[1], dtype=np.int32)

    def fill(self, plan: StepPlan) -> StepInputs:
        """Views of the buffers, valid until the next call. Token ids come from the rows: a decode's input is the token
        that the step before has drawn, a verification's are the drafts behind it."""
        rows, end = self._rows, 0
        for i, segment in enumerate(plan.segments):
            self._check(plan, segment)
            row, start, stop = segment.row, segment.start, segment.start + segment.length
            begin, end = end, end + segment.length
            self._token_ids[begin:end] = rows.tokens[row, start:stop]
            self._positions[begin:end] = self._counting[start:stop]
            self._slots[begin:end] = rows.slots[row, start:stop]
            self._query_starts[i + 1] = end
            self._context_lens[i] = stop
        num_segments = len(plan.segments)
        return StepInputs(
            self._token_ids[:end],
            self._positions[:end],
            self._slots[:end],
            self._query_starts[: num_segments + 1],
            self._context_lens[:num_segments],
            self._tables(plan.segments),
        )

    def _tables(self, segments: tuple[Segment, ...]) -> Ints:
        """[S, B] copied row by row: the buffer is dense for every B, so that a kernel needs no stride."""
        source = self._rows.block_tables
        width = -(-max(segment.start + segment.length for segment in segments) // self._rows.block_size)
        tables = self._block_tables[: len(segments) * width].reshape(-1, width)
        for i, segment in enumerate(segments):
            tables[i] = source[segment.row, :width]
        return tables

    def _check(self, plan: StepPlan, segment: Segment) -> None:
        """A plan that does not fit what the worker knows is refused before it can touch anybody's cache."""
        rows, row, end = self._rows, segment.row, segment.start + segment.length
        if rows.seq_ids[row] != segment.seq_id or rows.epochs[row] != segment.epoch:
            raise EngineError(f"step {plan.step} names a row for a sequence that does not hold it")
        if end - segment.num_drafts > rows.lengths[row]:
            raise EngineError(f"step {plan.step} computes a token that does not exist")
        if end > rows.num_blocks[row] * rows.block_size:
            raise EngineError(f"step {plan.step} computes a token that has no cache block")
