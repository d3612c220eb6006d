"""How often each token stands in a sequence, kept up to date token by token for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.ops.base import Ints


class TokenCounts:
    """The distinct tokens of one sequence and how often its output holds each (0: the prompt alone does)."""

    def __init__(self, prompt: Ints, output: Ints) -> None:
        ids = np.unique(np.concatenate([prompt, output]))
        self._size = ids.size
        self._ids = ids.astype(np.int32)
        self._counts = np.bincount(np.searchsorted(ids, output), minlength=ids.size).astype(np.int32)
        self._places = dict(zip(ids.tolist(), range(ids.size), strict=True))

    def append(self, token_id: int) -> None:
        """Counts one more output token."""
        place = self._places.setdefault(token_id, self._size)
        if place == self._size:
            self._add_id(token_id)
        self._counts[place] += 1

    def _add_id(self, token_id: int) -> None:
        if self._size == self._ids.size:
            room = np.zeros(max(16, self._size), np.int32)
            self._ids = np.concatenate([self._ids, room])
            self._counts = np.concatenate([self._counts, room])
        self._ids[self._size] = token_id
        self._size += 1

    def entries(self, drafts: Sequence[int] = ()) -> tuple[Ints, Ints]:
        """Ids and output counts, as if `drafts` had been appended; to be read at once."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if not len(drafts):
            return ids, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for token_id in drafts:
            if (place := self._places.get(token_id)) is not None:
                counts[place] += 1
            else:
                new[token_id] = new.get(token_id, 0) + 1
        more_ids, more_counts = (np.fromiter(part, np.int32, len(new)) for part in (new.keys(), new.values()))
        return np.concatenate([ids, more_ids]), np.concatenate([counts, more_counts])
