"""A step's draws: those that the model's own call makes, and those that need more than its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Computed, Ints, Logprobs, Ops, Wanted
from headrace.sampling.edits import Words
from headrace.sampling.logprobs import drawn_entries, num_top
from headrace.sampling.pipeline import NOT_FINITE, Drawn, Places, draw
from headrace.sampling.table import SamplingTable
from headrace.words.outputs import TokenLogprobs


def wanted_of(tokens: Ints, places: Places, table: SamplingTable, hidden: bool) -> Wanted:
    """What the model is asked for: `tokens` [R] are those of the step that the R places follow; `hidden` is whether
    the states of all tokens are asked for, too."""
    drawn = table.is_plain[places.rows].nonzero()[0].astype(np.int32)
    taken = places if drawn.size == tokens.size else places.take(drawn)
    scored = table.is_scored[taken.rows].nonzero()[0].astype(np.int32)
    most = max((num_top(table.params[row]) for row in taken.rows[scored].tolist()), default=0)
    return Wanted(tokens, drawn, table.inputs(taken.rows, taken.positions), scored, most, hidden)


def draws_of(
    ops: Ops,
    computed: Computed,
    wanted: Wanted,
    places: Places,
    table: SamplingTable,
    tokens: Ints,
    bits: Mapping[int, Words],
) -> Drawn:
    """All draws of a step. Places with edits, and those with a mask, `bits`, are drawn here; see `pipeline.draw`."""
    if wanted.drawn.size == places.rows.size and not bits:
        return _of_call(computed, wanted, places.rows, table)
    is_open = np.ones(places.rows.size, np.bool_)
    is_open[wanted.drawn] = False
    is_open[list(bits)] = True
    which = is_open.nonzero()[0]
    is_all = which.size == places.rows.size
    logits = computed.logits if is_all else ops.gather(computed.logits, which.astype(np.int32))
    masks = {i: bits[place] for i, place in enumerate(which.tolist()) if place in bits}
    late = draw(ops, logits, places.take(which), table, tokens, masks)
    early = _of_call(computed, wanted, places.rows[wanted.drawn], table)
    return _merged(places.rows.size, ((wanted.drawn, early), (which, late)))


def _of_call(computed: Computed, wanted: Wanted, rows: Ints, table: SamplingTable) -> Drawn:
    """The N draws that the call made, for these rows [N]."""
    logprobs: list[TokenLogprobs | None] = [None] * rows.size
    alive = computed.is_finite[wanted.scored].nonzero()[0]
    if alive.size:
        scored = wanted.scored[alive]
        found = Logprobs._make(column[alive] for column in computed.logprobs)
        params = [table.params[row] for row in rows[scored].tolist()]
        for place, entry in zip(
            scored.tolist(), drawn_entries(found, computed.token_ids[scored], params), strict=True
        ):
            logprobs[place] = entry
    failures = [None if is_finite else NOT_FINITE for is_finite in computed.is_finite.tolist()]
    return Drawn(computed.token_ids, logprobs, failures)


def _merged(size: int, parts: Sequence[tuple[NDArray[np.integer], Drawn]]) -> Drawn:
    """Each part's draws at their places; of two at one place the later part's."""
    token_ids = np.zeros(size, np.int32)
    logprobs: list[TokenLogprobs | None] = [None] * size
    failures: list[str | None] = [None] * size
    for places, drawn in parts:
        token_ids[places] = drawn.token_ids
        for i, place in enumerate(places.tolist()):
            logprobs[place], failures[place] = drawn.logprobs[i], drawn.failures[i]
    return Drawn(token_ids, logprobs, failures)
