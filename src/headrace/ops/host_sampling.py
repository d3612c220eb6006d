"""Sampling on the host: the arithmetic runs in numpy on the logits' own memory, row by row.

What a row gives is a function of that row alone, to the bit. A backend replaces what it does faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.ops import draws
from headrace.ops.base import Floats, Ints, Logprobs, Penalties, SamplingInputs, Tensor
from headrace.ops.elementary import log
from headrace.ops.truncation import by_falling_value, kept_places, scaled_gaps, top_places

NEVER = np.float32(-np.inf)


class HostSampling:
    """The specification of sampling; `headrace.ops.base.SamplingOps` says what each op does. Logits are numpy arrays,
    unless a backend says how to see its own as such."""

    def _values(self, logits: Tensor) -> Floats:
        """A view of logits as numpy sees them."""
        return logits

    def _tensor(self, values: Floats) -> Tensor:
        """The opposite of `_values`."""
        return values

    def finite_rows(self, logits: Tensor) -> NDArray[np.bool_]:
        return np.isfinite(self._values(logits).max(axis=1))

    def keep_tokens(self, logits: Tensor, rows: Ints, token_ids: Ints) -> None:
        values = self._values(logits)
        kept = values[rows, token_ids]
        values[np.unique(rows)] = NEVER
        values[rows, token_ids] = kept

    def mask_tokens(self, logits: Tensor, rows: Ints, token_ids: Ints) -> None:
        self._values(logits)[rows, token_ids] = NEVER

    def mask_bits(self, logits: Tensor, rows: Ints, bits: NDArray[np.uint32]) -> None:
        values = self._values(logits)
        for row, words in zip(rows, bits, strict=True):
            octets = words.astype("<u4").view(np.uint8)
            allowed = np.unpackbits(octets, count=values.shape[1], bitorder="little")
            np.putmask(values[row], allowed == 0, NEVER)

    def add_bias(self, logits: Tensor, rows: Ints, token_ids: Ints, bias: Floats) -> None:
        self._values(logits)[rows, token_ids] += bias

    def penalize(
        self, logits: Tensor, rows: Ints, token_ids: Ints, counts: Ints, penalties: Penalties
    ) -> None:
        values = self._values(logits)
        x = values[rows, token_ids]
        repetition = penalties.repetition[rows]
        x = np.where(x > 0, x / repetition, x * repetition)
        lowered = x - penalties.frequency[rows] * counts.astype(np.float32)
        lowered -= penalties.presence[rows]
        values[rows, token_ids] = np.where(counts > 0, lowered, x)

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Ints:
        values = self._values(logits)
        token_ids = values.argmax(axis=1).astype(np.int32)
        random = np.flatnonzero(inputs.temperature > 0)
        if random.size:
            token_ids[random] = _draw(values, token_ids, random, inputs)
        return token_ids

    def truncate(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        values = self._values(logits).copy()
        for row in np.flatnonzero(inputs.temperature > 0):
            gaps = scaled_gaps(values[row], int(values[row].argmax()), inputs.temperature[row])
            kept = _kept(gaps, inputs, int(row))
            values[row] = gaps if kept is None else NEVER
            if kept is not None:
                values[row, kept] = gaps[kept]
        return self._tensor(values)

    def logprobs(self, logits: Tensor, token_ids: Ints, num_top: int) -> Logprobs:
        values = self._values(logits)
        found = Logprobs.room(len(values), min(num_top, values.shape[1]))
        for row in range(len(values)):
            _score(values[row], token_ids[row], found, row)
        return found


def _kept(gaps: Floats, inputs: SamplingInputs, row: int) -> NDArray[np.int64] | None:
    return kept_places(gaps, inputs.min_p[row], int(inputs.top_k[row]), float(inputs.top_p[row]))


def _draw(values: Floats, top_ids: Ints, rows: NDArray[np.int64], inputs: SamplingInputs) -> Ints:
    """Token ids of the rows with a temperature: each row is narrowed to what can still win, all are drawn at once."""
    low, high = draws.keys(inputs.seeds[rows], inputs.choices[rows], inputs.positions[rows])
    all_ids: list[Ints] = []
    all_gaps: list[Floats] = []
    for i, row in enumerate(rows.tolist()):
        gaps = scaled_gaps(values[row], int(top_ids[row]), inputs.temperature[row])
        ids = np.arange(gaps.size, dtype=np.int32)
        if (kept := _kept(gaps, inputs, row)) is not None:
            ids, gaps = ids[kept], gaps[kept]
        alive = draws.contenders(ids, gaps, low[i], high[i])
        all_ids.append(ids[alive])
        all_gaps.append(gaps[alive])
    starts = np.cumsum([0, *(ids.size for ids in all_ids[:-1])])
    return draws.winners(np.concatenate(all_ids), np.concatenate(all_gaps), starts, low, high)


def _score(values: Floats, token_id: np.int32, found: Logprobs, row: int) -> None:
    """Fills one row of `found`. The log of the sum is taken of an exact sum of masses."""
    gaps = scaled_gaps(values, int(values.argmax()), np.float32(1))
    mass = draws.masses(gaps)
    total = mass.sum()
    log_total = log(np.array([total / draws.MASS_UNITS], np.float32))[0]
    gap = gaps[token_id]
    found.token_logprobs[row] = gap - log_total
    found.ranks[row] = 1 + np.count_nonzero(gaps > gap) + np.count_nonzero(gaps[:token_id] == gap)
    found.sum_smaller_probs[row] = mass[gaps < gap].sum() / total
    if num_top := found.top_ids.shape[1]:
        top = by_falling_value(gaps, top_places(gaps, num_top))[:num_top]
        found.top_ids[row] = top
        found.top_logprobs[row] = gaps[top] - log_total
