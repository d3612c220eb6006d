"""Sampling over torch logits on the CPU: the arithmetic runs in numpy on the tensor's own memory, row by row.

What a row gives is a function of that row alone, to the bit.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.ops import draws
from headrace.ops.base import Floats, Ints, Logprobs, Penalties, SamplingInputs
from headrace.ops.elementary import log
from headrace.ops.truncation import by_falling_value, kept_places, scaled_gaps, top_places

NEVER = np.float32(-np.inf)


class ReferenceSampling:
    """The sampling part of the reference ops; `headrace.ops.base.SamplingOps` says what each does."""

    def finite_rows(self, logits: torch.Tensor) -> NDArray[np.bool_]:
        return np.isfinite(logits.numpy().max(axis=1))

    def keep_tokens(self, logits: torch.Tensor, rows: Ints, token_ids: Ints) -> None:
        values = logits.numpy()
        kept = values[rows, token_ids]
        values[np.unique(rows)] = NEVER
        values[rows, token_ids] = kept

    def mask_tokens(self, logits: torch.Tensor, rows: Ints, token_ids: Ints) -> None:
        logits.numpy()[rows, token_ids] = NEVER

    def mask_bits(self, logits: torch.Tensor, rows: Ints, bits: NDArray[np.uint32]) -> None:
        values = logits.numpy()
        for row, words in zip(rows, bits, strict=True):
            octets = words.astype("<u4").view(np.uint8)
            allowed = np.unpackbits(octets, count=values.shape[1], bitorder="little")
            np.putmask(values[row], allowed == 0, NEVER)

    def add_bias(self, logits: torch.Tensor, rows: Ints, token_ids: Ints, bias: Floats) -> None:
        logits.numpy()[rows, token_ids] += bias

    def penalize(
        self, logits: torch.Tensor, rows: Ints, token_ids: Ints, counts: Ints, penalties: Penalties
    ) -> None:
        values = logits.numpy()
        x = values[rows, token_ids]
        repetition = penalties.repetition[rows]
        x = np.where(x > 0, x / repetition, x * repetition)
        lowered = x - penalties.frequency[rows] * counts.astype(np.float32)
        lowered -= penalties.presence[rows]
        values[rows, token_ids] = np.where(counts > 0, lowered, x)

    def sample(self, logits: torch.Tensor, inputs: SamplingInputs) -> Ints:
        values = logits.numpy()
        token_ids = values.argmax(axis=1).astype(np.int32)
        random = np.flatnonzero(inputs.temperature > 0)
        if random.size:
            token_ids[random] = _draw(values, token_ids, random, inputs)
        return token_ids

    def truncate(self, logits: torch.Tensor, inputs: SamplingInputs) -> torch.Tensor:
        values = logits.numpy().copy()
        for row in np.flatnonzero(inputs.temperature > 0):
            gaps = scaled_gaps(values[row], int(values[row].argmax()), inputs.temperature[row])
            kept = _kept(gaps, inputs, int(row))
            values[row] = gaps if kept is None else NEVER
            if kept is not None:
                values[row, kept] = gaps[kept]
        return torch.from_numpy(values)

    def logprobs(self, logits: torch.Tensor, token_ids: Ints, num_top: int) -> Logprobs:
        values = logits.numpy()
        num_rows, num_top = len(values), min(num_top, values.shape[1])
        found = Logprobs(
            token_logprobs=np.empty(num_rows, np.float32),
            ranks=np.empty(num_rows, np.int32),
            sum_smaller_probs=np.empty(num_rows, np.float32),
            top_ids=np.empty((num_rows, num_top), np.int32),
            top_logprobs=np.empty((num_rows, num_top), np.float32),
        )
        for row in range(num_rows):
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
