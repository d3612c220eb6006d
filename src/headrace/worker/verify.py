"""Which tokens of a step are drawn where, and how many of a segment's drafts the draws confirm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Ints
from headrace.sampling.edits import Words
from headrace.sampling.pipeline import Drawn, Places
from headrace.words.plan import Emits, RowResult, Segment
from headrace.worker.inputs import Columns
from headrace.worker.rows import Rows

Masks = Mapping[int, Words]
"""Packed grammar masks by seq_id, [1 + num_drafts, ceil(vocab / 32)]: bit i of word w allows token 32·w + i."""


class Emitting(NamedTuple):
    """The E segments of a step that give tokens. Each is drawn at 1 + num_drafts places, which follow one another."""

    which: NDArray[np.int64]
    """[E] index among the plan's segments"""
    firsts: list[int]
    """[E] the segment's first place"""
    inputs: Ints
    """[R] index among the step's tokens of the one that each place follows"""
    places: Places


def emitting(segments: Columns, query_starts: Ints, rows: Rows) -> Emitting:
    """Segments that emit tokens, and those with prompt logprobs that end at the last known token of a sequence that
    wants more."""
    known = segments.ends - segments.num_drafts
    goes_on = (known == rows.lengths[segments.rows]) & rows.sampling.generates[segments.rows]
    is_token = segments.emits == Emits.TOKEN
    which = np.flatnonzero(is_token | ((segments.emits == Emits.LOGPROBS) & goes_on))
    counts = 1 + segments.num_drafts[which]
    firsts = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(firsts, counts)
    ends = query_starts[1:][which]
    place_rows = np.repeat(segments.rows[which], counts).astype(np.int32)
    positions = (np.repeat(known[which], counts) + within).astype(np.int32)
    inputs = (np.repeat(ends - counts, counts) + within).astype(np.int32)
    places = Places(place_rows, positions, positions - rows.num_prompt[place_rows])
    return Emitting(which, firsts.tolist(), inputs, places)


def grammar_bits(emitted: Emitting, segments: tuple[Segment, ...], masks: Masks) -> dict[int, Words]:
    """The masks by place."""
    bits: dict[int, Words] = {}
    for i, first in zip(emitted.which.tolist(), emitted.firsts, strict=True):
        if (mask := masks.get(segments[i].seq_id)) is not None:
            bits |= {first + offset: words for offset, words in enumerate(mask)}
    return bits


def _drafts(segment: Segment, rows: Rows) -> list[int]:
    if not segment.num_drafts:
        return []
    start = int(rows.lengths[segment.row])
    return rows.tokens[segment.row, start : start + segment.num_drafts].tolist()


def verify(segment: Segment, drawn: Drawn, first: int, rows: Rows) -> RowResult:
    """Drafts hold while they equal the draw at their place; the first draw that differs ends the segment's tokens.

    Draws behind a draft that does not hold follow a text that is not the sequence's: they count for nothing, and
    neither do their failures.
    """
    drafts = _drafts(segment, rows)
    token_ids = drawn.token_ids[first : first + 1 + segment.num_drafts].tolist()
    num_accepted = 0
    while num_accepted < segment.num_drafts and token_ids[num_accepted] == drafts[num_accepted]:
        num_accepted += 1
    kept = slice(first, first + num_accepted + 1)
    failure = next((failure for failure in drawn.failures[kept] if failure), None)
    if failure is not None:
        return RowResult(segment.seq_id, segment.epoch, failure=failure)
    logprobs = tuple(entry for entry in drawn.logprobs[kept] if entry is not None)
    return RowResult(
        segment.seq_id, segment.epoch, tuple(token_ids[: num_accepted + 1]), logprobs, num_accepted=num_accepted
    )
