"""Which tokens of a step are drawn where, and how many of a segment's drafts the draws confirm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headrace.ops.base import Ints
from headrace.sampling.edits import Words
from headrace.sampling.pipeline import Drawn, Places
from headrace.words.plan import Emits, RowResult, Segment
from headrace.worker.rows import Rows

_, TOKEN, LOGPROBS, _ = Emits
Masks = Mapping[int, Words]
"""Packed grammar masks by seq_id, [1 + num_drafts, ceil(vocab / 32)]: bit i of word w allows token 32·w + i."""


class Emitting(NamedTuple):
    """The E segments of a step that give tokens. Each is drawn at 1 + num_drafts places, which follow one another."""

    which: list[int]
    """[E] index among the plan's segments"""
    firsts: list[int]
    """[E] the segment's first place"""
    inputs: Ints
    """[R] index among the step's tokens of the one that each place follows"""
    places: Places


def emitting(segments: tuple[Segment, ...], rows: Rows) -> Emitting:
    which: list[int] = []
    firsts: list[int] = []
    places: list[tuple[int, int, int, int]] = []
    end = 0
    for i, segment in enumerate(segments):
        end += segment.length
        if not _emits_tokens(segment, rows):
            continue
        which.append(i)
        firsts.append(len(places))
        row, num_drafts = segment.row, segment.num_drafts
        position = segment.start + segment.length - num_drafts
        num_outputs = position - rows.num_prompt[row]
        for nth in range(1 + num_drafts):
            places.append((end - 1 - num_drafts + nth, row, position + nth, num_outputs + nth))
    inputs, *columns = np.array(places, np.int32).reshape(-1, 4).T.copy()
    return Emitting(which, firsts, inputs, Places(*columns))


def _emits_tokens(segment: Segment, rows: Rows) -> bool:
    """Those with prompt logprobs do when they end at the last known token of a sequence that wants more."""
    if segment.emits != LOGPROBS:
        return segment.emits == TOKEN
    known = segment.start + segment.length - segment.num_drafts
    return known == rows.lengths[segment.row] and bool(rows.sampling.generates[segment.row])


def grammar_bits(emitted: Emitting, segments: tuple[Segment, ...], masks: Masks) -> dict[int, Words]:
    """The masks by place."""
    bits: dict[int, Words] = {}
    if not masks:
        return bits
    for i, first in zip(emitted.which, emitted.firsts, strict=True):
        if (mask := masks.get(segments[i].seq_id)) is not None:
            bits |= {first + offset: words for offset, words in enumerate(mask)}
    return bits


def _drafts(segment: Segment, rows: Rows) -> list[int]:
    if not segment.num_drafts:
        return []
    start = rows.lengths[segment.row]
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
