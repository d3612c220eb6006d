"""One step's draws: the order in which logits become tokens (LIFECYCLE E5), log-probabilities (E7) and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Ints, Ops, Tensor
from headrace.sampling.edits import EditBatch, Words
from headrace.sampling.logprobs import drawn_entries, num_top
from headrace.sampling.table import SamplingTable
from headrace.words.outputs import TokenLogprobs

NOT_FINITE = "the model's logits for this request are not finite numbers"
NOTHING_ALLOWED = "no token is allowed here: the request's masks together forbid all of them"


class Places(NamedTuple):
    """R tokens to be drawn, one per row of the logits."""

    rows: Ints
    """[R] the worker's row; a verification names its row once per position"""
    positions: Ints
    """[R] position of the token to be drawn: it follows tokens [0, position) of the row"""
    num_outputs: Ints
    """[R] how many output tokens come before it"""

    def take(self, which: NDArray[np.integer]) -> Places:
        return Places(self.rows[which], self.positions[which], self.num_outputs[which])


class Drawn(NamedTuple):
    """What came of R places. A place with a failure has the token 0."""

    token_ids: Ints
    logprobs: list[TokenLogprobs | None]
    failures: list[str | None]


def draw(
    ops: Ops,
    logits: Tensor,
    places: Places,
    table: SamplingTable,
    tokens: Ints,
    bits: Mapping[int, Words] | None = None,
) -> Drawn:
    """Draws R tokens from fp32 logits [R, vocab], which it may overwrite.

    `tokens` [rows, max length] holds every row's text, drafts included; `bits` is the grammar's packed mask of a place.
    A row that cannot be drawn from fails alone.
    """
    is_finite = ops.finite_rows(logits)
    edits = _collect(places, table, tokens, bits)
    raw = logits
    if not edits.is_empty:
        if table.is_scored[places.rows].any():
            raw = ops.gather(logits, np.arange(places.rows.size, dtype=np.int32))
        edits.apply(ops, logits, table.penalties(places.rows))
    is_open = ops.finite_rows(logits) if edits.forbids else is_finite
    alive = np.flatnonzero(is_finite & is_open)
    if alive.size == places.rows.size:
        token_ids, logprobs = _draw_finite(ops, logits, raw, places, table)
        return Drawn(token_ids, logprobs, [None] * alive.size)
    failures: list[str | None] = [NOTHING_ALLOWED if finite else NOT_FINITE for finite in is_finite]
    return _spread(ops, logits, raw, places, table, alive, failures)


def _spread(
    ops: Ops,
    logits: Tensor,
    raw: Tensor,
    places: Places,
    table: SamplingTable,
    alive: NDArray[np.int64],
    failures: list[str | None],
) -> Drawn:
    """Draws for the `alive` places alone and puts the results where they belong."""
    token_ids = np.zeros(places.rows.size, np.int32)
    logprobs: list[TokenLogprobs | None] = [None] * places.rows.size
    if alive.size:
        which = alive.astype(np.int32)
        logits, raw = ops.gather(logits, which), ops.gather(raw, which)
        token_ids[alive], found = _draw_finite(ops, logits, raw, places.take(alive), table)
        for place, entry in zip(alive.tolist(), found, strict=True):
            logprobs[place], failures[place] = entry, None
    return Drawn(token_ids, logprobs, failures)


def _collect(places: Places, table: SamplingTable, tokens: Ints, bits: Mapping[int, Words] | None) -> EditBatch:
    batch = EditBatch(bits)
    for place in np.flatnonzero(table.has_edits[places.rows]).tolist():
        row = places.rows[place]
        edits = table.edits[row]
        assert edits is not None
        batch.add(place, edits, tokens[row, : places.positions[place]])
    return batch


def _draw_finite(
    ops: Ops, logits: Tensor, raw: Tensor, places: Places, table: SamplingTable
) -> tuple[Ints, list[TokenLogprobs | None]]:
    token_ids = ops.sample(logits, table.inputs(places.rows, places.positions))
    for place in np.flatnonzero(places.num_outputs < table.num_forced[places.rows]).tolist():
        token_ids[place] = table.params[places.rows[place]].forced_tokens[places.num_outputs[place]]
    logprobs: list[TokenLogprobs | None] = [None] * places.rows.size
    scored = np.flatnonzero(table.is_scored[places.rows]).tolist()
    for mode in ("raw", "processed"):
        group = [place for place in scored if table.params[places.rows[place]].logprobs_mode == mode]
        if group:
            source = _rows_of(ops, raw if mode == "raw" else logits, group, places.rows.size)
            entries = _score(ops, source, mode == "processed", places.take(np.array(group)), token_ids[group], table)
            for place, entry in zip(group, entries, strict=True):
                logprobs[place] = entry
    return token_ids, logprobs


def _rows_of(ops: Ops, logits: Tensor, group: list[int], num_rows: int) -> Tensor:
    return logits if len(group) == num_rows else ops.gather(logits, np.array(group, np.int32))


def _score(
    ops: Ops, logits: Tensor, is_processed: bool, places: Places, token_ids: Ints, table: SamplingTable
) -> list[TokenLogprobs]:
    """Processed log-probabilities are those of the distribution that was drawn from; of a greedy row, those after the
    edits."""
    if is_processed:
        logits = ops.truncate(logits, table.inputs(places.rows, places.positions))
    params = [table.params[row] for row in places.rows]
    return drawn_entries(ops.logprobs(logits, token_ids, max(map(num_top, params))), token_ids, params)
