"""What parameters change in the logits before a draw: allowed ids, bad words, stop ids, bias and penalties.

A row's part is prepared once, at admission; a step collects the rows' entries and edits all logits in few calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.ops.base import Floats, Ints, Penalties, SamplingOps, Tensor
from headrace.sampling.counts import TokenCounts
from headrace.words.params import Sampling

Words = NDArray[np.uint32]
NO_IDS = np.zeros(0, np.int32)


def _ids(token_ids: Collection[int]) -> Ints:
    return np.fromiter(token_ids, np.int32, len(token_ids))


class RowEdits:
    """One sequence's edits. `known` are its tokens so far, `num_prompt_tokens` of them the prompt."""

    def __init__(self, sampling: Sampling, eos_token_ids: Collection[int], known: Ints, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.allowed = _ids(sampling.allowed_token_ids)
        self.banned = _ids([word[0] for word in sampling.bad_words if len(word) == 1])
        self.bad_words = [(word[:-1], word[-1]) for word in sampling.bad_words if len(word) > 1]
        self.min_tokens = sampling.min_tokens
        self.stops = _ids({*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)})
        self.biased = _ids([token_id for token_id, _ in sampling.logit_bias])
        self.bias = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self.num_counted = known.size
        self.counts = self._count(sampling, known)

    def _count(self, sampling: Sampling, known: Ints) -> TokenCounts | None:
        """Only repetition looks at the prompt."""
        if not needs_counts(sampling):
            return None
        prompt = known[: self.num_prompt_tokens] if sampling.repetition_penalty != 1 else NO_IDS
        return TokenCounts(prompt, known[self.num_prompt_tokens :])

    def append(self, token_id: int) -> None:
        """The sequence has one more output token."""
        self.num_counted += 1
        if self.counts is not None:
            self.counts.append(token_id)

    def forbidden(self, text: Ints) -> Ints:
        """Ids that may not follow `text` [position], which may end in drafts."""
        parts = [self.banned] if self.banned.size else []
        if ends := [last for prefix, last in self.bad_words if _ends_with(text, prefix)]:
            parts.append(_ids(ends))
        if self.stops.size and text.size - self.num_prompt_tokens < self.min_tokens:
            parts.append(self.stops)
        return np.concatenate(parts) if parts else NO_IDS


def _ends_with(text: Ints, words: tuple[int, ...]) -> bool:
    return text.size >= len(words) and text[text.size - len(words) :].tolist() == list(words)


def needs_counts(sampling: Sampling) -> bool:
    return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1, 0, 0)


def needs_edits(sampling: Sampling) -> bool:
    return bool(
        sampling.allowed_token_ids
        or sampling.bad_words
        or sampling.min_tokens
        or sampling.logit_bias
        or needs_counts(sampling)
    )


@dataclass(slots=True)
class Entries:
    """Single entries of the logits of a step: rows and token ids, and one more number each where an op wants it."""

    rows: list[Ints] = field(default_factory=list)
    token_ids: list[Ints] = field(default_factory=list)
    values: list[Ints] | list[Floats] = field(default_factory=list)

    def add(self, row: int, token_ids: Ints, values: Ints | Floats = NO_IDS) -> None:
        if token_ids.size:
            self.rows.append(np.full(token_ids.size, row, np.int32))
            self.token_ids.append(token_ids)
            self.values.append(values)  # type: ignore[arg-type]

    def flat(self) -> tuple[Ints, Ints]:
        return np.concatenate(self.rows), np.concatenate(self.token_ids)


class EditBatch:
    """The edits of one step's rows, applied in the order of LIFECYCLE's E5."""

    def __init__(self, bits: Mapping[int, Words] | None = None) -> None:
        self._bits = bits or {}
        self._keep, self._mask, self._bias, self._count = Entries(), Entries(), Entries(), Entries()
        self.is_empty = not self._bits

    def add(self, row: int, edits: RowEdits, text: Ints) -> None:
        """Row `row` of the logits follows `text` [position] of a sequence with these edits."""
        self.is_empty = False
        self._keep.add(row, edits.allowed)
        self._mask.add(row, edits.forbidden(text))
        self._bias.add(row, edits.biased, edits.bias)
        if edits.counts is not None:
            ids, counts = edits.counts.entries(text[edits.num_counted :].tolist())
            self._count.add(row, ids, counts)

    @property
    def forbids(self) -> bool:
        """Whether a token is forbidden anywhere."""
        return bool(self._bits or self._keep.rows or self._mask.rows)

    def apply(self, ops: SamplingOps, logits: Tensor, penalties: Penalties) -> None:
        """Edits logits [R, vocab] in place; penalties are those of the R rows."""
        if self._keep.rows:
            ops.keep_tokens(logits, *self._keep.flat())
        if self._mask.rows:
            ops.mask_tokens(logits, *self._mask.flat())
        if self._bias.rows:
            ops.add_bias(logits, *self._bias.flat(), np.concatenate(self._bias.values))
        if self._count.rows:
            ops.penalize(logits, *self._count.flat(), np.concatenate(self._count.values), penalties)
        if self._bits:
            ops.mask_bits(logits, _ids(self._bits.keys()), np.stack(list(self._bits.values())))
