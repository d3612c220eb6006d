"""Sampling over numpy logits with the bits of the reference; `headrace.ops.base.SamplingOps` says what each does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.ops import draws
from headrace.ops.base import Floats, Ints, Logprobs, Penalties, SamplingInputs
from headrace.ops.truncation import kept_places, scaled_gaps

NEVER = np.float32(-np.inf)


class CpuSampling:
    """Whole rows go through the native kernels, single entries through numpy."""

    machine: _native.Machine

    def finite_rows(self, logits: Floats) -> NDArray[np.bool_]:
        return np.isfinite(logits.max(axis=1))

    def keep_tokens(self, logits: Floats, rows: Ints, token_ids: Ints) -> None:
        kept = logits[rows, token_ids]
        logits[np.unique(rows)] = NEVER
        logits[rows, token_ids] = kept

    def mask_tokens(self, logits: Floats, rows: Ints, token_ids: Ints) -> None:
        logits[rows, token_ids] = NEVER

    def mask_bits(self, logits: Floats, rows: Ints, bits: NDArray[np.uint32]) -> None:
        octets = np.ascontiguousarray(bits.astype("<u4")).view(np.uint8)
        for row, words in zip(rows, octets, strict=True):
            allowed = np.unpackbits(words, count=logits.shape[1], bitorder="little")
            np.putmask(logits[row], allowed == 0, NEVER)

    def add_bias(self, logits: Floats, rows: Ints, token_ids: Ints, bias: Floats) -> None:
        logits[rows, token_ids] += bias

    def penalize(self, logits: Floats, rows: Ints, token_ids: Ints, counts: Ints, penalties: Penalties) -> None:
        x = logits[rows, token_ids]
        repetition = penalties.repetition[rows]
        x = np.where(x > 0, x / repetition, x * repetition)
        lowered = x - penalties.frequency[rows] * counts.astype(np.float32) - penalties.presence[rows]
        logits[rows, token_ids] = np.where(counts > 0, lowered, x)

    def sample(self, logits: Floats, inputs: SamplingInputs) -> Ints:
        token_ids = np.empty(len(logits), np.int32)
        low, high = draws.keys(inputs.seeds, inputs.choices, inputs.positions)
        self.machine.sample(logits, *_cuts(inputs), low, high, token_ids)
        return token_ids

    def truncate(self, logits: Floats, inputs: SamplingInputs) -> Floats:
        values = logits.copy()
        for row in np.flatnonzero(inputs.temperature > 0).tolist():
            gaps = scaled_gaps(values[row], int(values[row].argmax()), inputs.temperature[row])
            kept = kept_places(gaps, inputs.min_p[row], int(inputs.top_k[row]), float(inputs.top_p[row]))
            values[row] = gaps if kept is None else NEVER
            if kept is not None:
                values[row, kept] = gaps[kept]
        return values

    def logprobs(self, logits: Floats, token_ids: Ints, num_top: int) -> Logprobs:
        num_rows, num_top = len(logits), min(num_top, logits.shape[1])
        found = Logprobs(
            token_logprobs=np.empty(num_rows, np.float32),
            ranks=np.empty(num_rows, np.int32),
            sum_smaller_probs=np.empty(num_rows, np.float32),
            top_ids=np.empty((num_rows, num_top), np.int32),
            top_logprobs=np.empty((num_rows, num_top), np.float32),
        )
        self.machine.score(logits, token_ids, *found)
        return found


def _cuts(inputs: SamplingInputs) -> tuple[Floats, Floats, Ints, Floats]:
    return inputs.temperature, inputs.top_p, inputs.top_k, inputs.min_p
