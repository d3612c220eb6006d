"""What a segment gives beside drawn tokens: log-probabilities of its prompt, or its pooled hidden state."""

from __future__ import annotations

import numpy as np

from headrace.ops.base import Forward, Ops, Tensor
from headrace.sampling.logprobs import prompt_entries
from headrace.sampling.pipeline import NOT_FINITE
from headrace.words.outputs import TokenLogprobs
from headrace.words.plan import RowResult, Segment
from headrace.worker.rows import Rows

TILE = 64
"""Rows of logits that exist at once while a prompt is scored."""


def score_prompt(ops: Ops, head: Forward, hidden: Tensor, segment: Segment, first: int, rows: Rows) -> RowResult:
    """Raw log-probabilities of prompt positions start + 1 … that the segment leads to, a tile of rows at a time.

    `hidden` [T, hidden] is the step's; the segment's part begins at `first`.
    """
    row, start = segment.row, segment.start
    num_top = rows.sampling.params[row].prompt_logprobs or 0
    count = min(start + segment.length, rows.num_prompt[row] - 1) - start
    entries: list[TokenLogprobs] = []
    for offset in range(0, count, TILE):
        size = min(TILE, count - offset)
        logits = head.logits(ops.gather(hidden, np.arange(first + offset, first + offset + size, dtype=np.int32)))
        if not ops.finite_rows(logits).all():
            return RowResult(segment.seq_id, segment.epoch, failure=NOT_FINITE)
        token_ids = rows.tokens[row, start + offset + 1 : start + offset + 1 + size]
        entries += prompt_entries(ops.logprobs(logits, token_ids, num_top), token_ids)
    return RowResult(segment.seq_id, segment.epoch, prompt_logprobs=tuple(entries))


def pool(ops: Ops, hidden: Tensor, segment: Segment, first: int, rows: Rows) -> RowResult:
    """The segment's last hidden state, or for `mean` the sum of all, in float64."""
    pooling = rows.poolings[segment.row]
    assert pooling is not None
    end = first + segment.length
    begin = end - 1 if pooling.pooling == "last" else first
    values = ops.to_numpy(ops.gather(hidden, np.arange(begin, end, dtype=np.int32)))
    total = values.sum(axis=0, dtype=np.float64)
    if not np.isfinite(total).all():
        return RowResult(segment.seq_id, segment.epoch, failure=NOT_FINITE)
    return RowResult(segment.seq_id, segment.epoch, hidden=tuple(total.tolist()))
