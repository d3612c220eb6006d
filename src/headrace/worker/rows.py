"""What the worker remembers of the sequences that hold its rows, in buffers sized at start."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from headrace.ops.base import Ints
from headrace.sampling.table import SamplingTable
from headrace.words.errors import EngineError
from headrace.words.params import Pooling
from headrace.words.plan import Admission, Growth, Segment, StepPlan

SLACK = 1
"""A token drawn by a step in flight may stand one position beyond max_model_len before its sequence is seen to end."""


class Rows:
    """Rows 0 … max_num_seqs, each with its text, block table and parameters; row 0 is the null row.

    A plan's deltas are all that changes a row, beside the tokens that the worker itself draws or guesses. An admission
    sets everything anew: nothing of the row's previous owner, and nothing that a failed step left, is trusted.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        eos_token_ids: Collection[int] = (),
        max_num_drafts: int = 0,
    ) -> None:
        num_rows = max_num_seqs + 1
        width = max_model_len + SLACK + max_num_drafts
        self.block_size = block_size
        self.tokens: Ints = np.zeros((num_rows, width), np.int32)
        """[rows, max_model_len + slack] prompt and output; drafts stand beyond `lengths`"""
        max_num_blocks = -(-width // block_size)
        self.block_tables: Ints = np.zeros((num_rows, max_num_blocks), np.int32)
        """[rows, max blocks] in order of position, the rest null"""
        self.slots = np.zeros((num_rows, max_num_blocks * block_size), np.int64)
        """[rows, positions] where each position's key and value go; follows from the block table"""
        self.lengths = [0] * num_rows
        """[rows] known tokens"""
        self.num_prompt = [0] * num_rows
        self.num_blocks = [0] * num_rows
        self.seq_ids = [0] * num_rows
        """[rows] 0 when nobody holds the row"""
        self.epochs = [0] * num_rows
        self.sampling = SamplingTable(num_rows, eos_token_ids)
        self.poolings: list[Pooling | None] = [None] * num_rows
        self._num_touched = [0] * num_rows
        self._within_block = np.arange(block_size)

    def apply(self, plan: StepPlan) -> None:
        """Retires, admits and grows as the plan says."""
        for row in plan.retired_rows:
            self._retire(row)
        for admission in plan.admissions:
            self._admit(admission)
        for growth in plan.growths:
            self._grow(growth)

    def _retire(self, row: int) -> None:
        self.tokens[row, : self._num_touched[row]] = 0
        self.block_tables[row, : self.num_blocks[row]] = 0
        self.slots[row, : self.num_blocks[row] * self.block_size] = 0
        for column in (self._num_touched, self.lengths, self.num_prompt, self.num_blocks, self.seq_ids, self.epochs):
            column[row] = 0
        self.sampling.retire(row)
        self.poolings[row] = None

    def _admit(self, admission: Admission) -> None:
        row, num_tokens = admission.row, len(admission.token_ids)
        if num_tokens > self.tokens.shape[1]:
            raise EngineError(f"an admission of {num_tokens} tokens, a row holds {self.tokens.shape[1]}")
        self._retire(row)
        self.seq_ids[row] = admission.seq_id
        self.epochs[row] = admission.epoch
        self.tokens[row, :num_tokens] = admission.token_ids
        self.lengths[row] = self._num_touched[row] = num_tokens
        self.num_prompt[row] = admission.num_prompt_tokens
        self.poolings[row] = admission.pooling
        self._grow(Growth(row, admission.block_ids))
        if admission.sampling is not None:
            known = self.tokens[row, :num_tokens]
            self.sampling.admit(
                row, admission.sampling, admission.seed, admission.choice, known, admission.num_prompt_tokens
            )

    def _grow(self, growth: Growth) -> None:
        row, block_ids = growth
        start, stop, size = self.num_blocks[row], self.num_blocks[row] + len(block_ids), self.block_size
        self.block_tables[row, start:stop] = block_ids
        first_slots = self.block_tables[row, start:stop, None].astype(np.int64) * size
        self.slots[row, start * size : stop * size] = (first_slots + self._within_block).reshape(-1)
        self.num_blocks[row] = stop

    def guess(self, segment: Segment, draft_ids: Sequence[int]) -> None:
        """Writes a segment's drafts behind the known tokens, without making them known."""
        start = self.lengths[segment.row]
        self.tokens[segment.row, start : start + len(draft_ids)] = draft_ids
        self._num_touched[segment.row] = start + len(draft_ids)

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """The row's sequence has these tokens more."""
        start, stop = self.lengths[row], self.lengths[row] + len(token_ids)
        self.tokens[row, start:stop] = token_ids
        self.lengths[row] = stop
        self._num_touched[row] = max(self._num_touched[row], stop)
        self.sampling.append(row, token_ids)
