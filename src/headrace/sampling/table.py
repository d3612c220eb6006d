"""Sampling parameters of the worker's rows as arrays, filled at admission and gathered for each step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from headrace.ops.base import Ints, Penalties, SamplingInputs
from headrace.sampling.edits import RowEdits, needs_edits
from headrace.words.params import Sampling

NEUTRAL = Sampling(temperature=0.0, max_tokens=0)


class SamplingTable:
    """One entry per row, `num_rows` of them. A row that nobody holds is greedy and asks for nothing."""

    def __init__(self, num_rows: int, eos_token_ids: Collection[int] = ()) -> None:
        self._eos_token_ids = tuple(sorted(eos_token_ids))
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_p = np.ones(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._seeds = np.zeros(num_rows, np.uint64)
        self._choices = np.zeros(num_rows, np.int32)
        self._penalties = Penalties(
            np.ones(num_rows, np.float32), np.zeros(num_rows, np.float32), np.zeros(num_rows, np.float32)
        )
        self.params = [NEUTRAL] * num_rows
        self.edits: list[RowEdits | None] = [None] * num_rows
        self.has_edits = np.zeros(num_rows, np.bool_)
        self.is_scored = np.zeros(num_rows, np.bool_)
        """Whether drawn tokens come with logprobs, or what is made of them."""
        self.is_plain = np.ones(num_rows, np.bool_)
        """Whether nothing but the model's logits is needed to draw a token and to score it."""
        self.generates = np.zeros(num_rows, np.bool_)
        """Whether tokens are wanted at all; a prompt may only be scored."""
        self.num_forced = np.zeros(num_rows, np.int32)

    def admit(
        self, row: int, sampling: Sampling, seed: int, choice: int, known: Ints, num_prompt_tokens: int
    ) -> None:
        """A sequence takes the row; `known` are its tokens, the prompt and what was generated before."""
        self._set(row, sampling)
        self._seeds[row] = seed % 2**64
        self._choices[row] = choice
        if needs_edits(sampling):
            self.edits[row] = RowEdits(sampling, self._eos_token_ids, known, num_prompt_tokens)
            self.has_edits[row], self.is_plain[row] = True, False

    def retire(self, row: int) -> None:
        self._set(row, NEUTRAL)
        self._seeds[row] = self._choices[row] = 0

    def _set(self, row: int, sampling: Sampling) -> None:
        self._temperature[row] = sampling.temperature
        self._top_p[row] = sampling.top_p
        self._top_k[row] = max(sampling.top_k, 0)
        self._min_p[row] = sampling.min_p
        self._penalties.repetition[row] = sampling.repetition_penalty
        self._penalties.frequency[row] = sampling.frequency_penalty
        self._penalties.presence[row] = sampling.presence_penalty
        self.params[row] = sampling
        self.edits[row] = None
        self.has_edits[row] = False
        self.is_scored[row] = sampling.logprobs is not None or sampling.sum_smaller_probs or sampling.token_confidence
        self.generates[row] = sampling.max_tokens > 0
        self.num_forced[row] = len(sampling.forced_tokens)
        is_raw = sampling.logprobs_mode == "raw" or not self.is_scored[row]
        self.is_plain[row] = is_raw and not sampling.forced_tokens

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """The row has these output tokens more."""
        edits = self.edits[row]
        if edits is not None:
            for token_id in token_ids:
                edits.append(token_id)

    def inputs(self, rows: Ints, positions: Ints) -> SamplingInputs:
        """What is asked of tokens drawn for `rows` at `positions`, [R] each."""
        return SamplingInputs(
            self._temperature[rows],
            self._top_p[rows],
            self._top_k[rows],
            self._min_p[rows],
            self._seeds[rows],
            self._choices[rows],
            positions,
        )

    def penalties(self, rows: Ints) -> Penalties:
        return Penalties(*(column[rows] for column in self._penalties))
