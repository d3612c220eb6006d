"""What attention derives from a step's inputs once for all layers: where keys are written, and who attends together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.ops.base import Ints, StepInputs

SHORT = 16
"""Segments of at most so many tokens attend together with others as long."""
WASTE = 1.5
"""Rows whose contexts differ by more than this factor are kept apart."""
FEW = 4
"""Fewer rows than this are not worth a group of their own."""


class Form(NamedTuple):
    """What varies between attention layers. A soft cap c makes of a score s the value c · tanh(s / c)."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        return scores if self.soft_cap is None else torch.tanh(scores / self.soft_cap) * self.soft_cap


@dataclass
class PagedCache:
    """Keys and values, [blocks, kv_heads, block_size, dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def num_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def write(self, k: torch.Tensor, v: torch.Tensor, step: Step) -> None:
        """k and v [T, kv_heads, dim] to the step's slots; a slot of −1 writes nothing."""
        if step.writing is not None:
            k, v = k[step.writing], v[step.writing]
        places = step.places(self)
        self.keys.flatten(0, 2).index_copy_(0, places, k.flatten(0, 1))
        self.values.flatten(0, 2).index_copy_(0, places, v.flatten(0, 1))

    def read(self, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a group's pages, [B, kv_heads, places, dim]. What lies behind a row's last key is stale:
        values are zeroed there, since 0 × NaN is NaN; keys are not."""
        shape = (group.num_rows, self.num_heads, -1, self.keys.shape[-1])
        keys, values = (x.view(shape) for x in self._pages(group.pages, (0, 1)))
        group.zero_tails(values)
        return keys, values

    def blocks(self, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [blocks, kv_heads, block_size, dim] each."""
        return self._pages(block_ids, (0, 0))

    def zero_blocks(self, block_ids: list[int]) -> None:
        self.keys[block_ids] = 0
        self.values[block_ids] = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of what is read, and of the queries that go with it."""
        return self.keys.dtype

    def _pages(self, which: torch.Tensor, over: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `which` of the dimensions `over`, flattened."""
        return self.keys.flatten(*over).index_select(0, which), self.values.flatten(*over).index_select(0, which)


@dataclass
class Group:
    """Segments that attend in one call: B rows of Q queries each over at most L keys."""

    tokens: torch.Tensor | slice
    """[B × Q] places of the queries in the step"""
    positions: torch.Tensor
    """[B, Q] of the queries"""
    longest: int
    """L, the keys of the longest row."""
    pages: torch.Tensor
    """[B × kv_heads × blocks] numbers of (block, head) pairs in the cache"""
    tails: torch.Tensor
    """Places of [B × kv_heads × places] behind a row's last key, `places` being those of all its blocks."""
    _seen: dict[int | None, torch.Tensor] = field(default_factory=dict)
    _hidden: dict[int | None, torch.Tensor] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.positions.shape[0]

    @property
    def num_queries(self) -> int:
        return self.positions.shape[1]

    @property
    def is_whole(self) -> bool:
        """One segment, all of its keys queries too."""
        return self.num_rows == 1 and self.num_queries == self.longest

    def zero_tails(self, found: torch.Tensor) -> None:
        """[B, kv_heads, places, dim]"""
        if self.tails.numel():
            found.view(-1, found.shape[-1]).index_fill_(0, self.tails, 0)

    def seen(self, num_places: int, window: int | None) -> torch.Tensor:
        """[B, Q, places]: which places a query sees. Made once for all layers."""
        if window not in self._seen:
            places, queries = torch.arange(num_places), self.positions[:, :, None]
            seen = places <= queries
            self._seen[window] = seen if window is None else seen & (places > queries - window)
        return self._seen[window]

    def hidden(self, num_places: int, window: int | None) -> torch.Tensor:
        """The opposite of `seen`."""
        if window not in self._hidden:
            self._hidden[window] = ~self.seen(num_places, window)
        return self._hidden[window]


@dataclass
class Step:
    """One step's inputs, and what is made of them for each number of key heads when the first such layer asks."""

    inputs: StepInputs
    slots: NDArray[np.int64]
    """Those that are written."""
    writing: torch.Tensor | None
    """The tokens that are written; None is all."""
    _places: dict[int, torch.Tensor] = field(default_factory=dict)
    _groups: dict[int, list[Group]] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: StepInputs) -> Step:
        is_kept = inputs.slots >= 0
        writing = None if is_kept.all() else torch.from_numpy(np.flatnonzero(is_kept))
        return cls(inputs, inputs.slots[is_kept], writing)

    def places(self, cache: PagedCache) -> torch.Tensor:
        """[T × kv_heads] where each written token's heads go in a cache's [blocks × kv_heads × block_size]."""
        heads = cache.num_heads
        if heads not in self._places:
            block_ids, offsets = np.divmod(self.slots[:, None], cache.block_size)
            places = (block_ids * heads + np.arange(heads)) * cache.block_size + offsets
            self._places[heads] = torch.from_numpy(places.ravel())
        return self._places[heads]

    def groups(self, cache: PagedCache) -> list[Group]:
        heads = cache.num_heads
        if heads not in self._groups:
            self._groups[heads] = [make_group(self.inputs, rows, cache) for rows in together(self.inputs)]
        return self._groups[heads]


def together(inputs: StepInputs) -> list[NDArray[np.int64]]:
    """The segments of each group: short ones of one length and similar context, each long one alone."""
    lengths = np.diff(inputs.query_starts)
    groups: list[NDArray[np.int64]] = []
    for length in np.unique(lengths[lengths <= SHORT]).tolist():
        groups += similar(inputs.context_lens, np.flatnonzero(lengths == length))
    return groups + [np.array([row]) for row in np.flatnonzero(lengths > SHORT)]


def similar(context_lens: Ints, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows cut where padding to the longest would cost much: by falling context, unless all are alike."""
    lengths = context_lens[rows]
    if lengths.max() <= lengths.min() * WASTE:
        return [rows]
    order = rows[np.argsort(-lengths, kind="stable")]
    groups, start = [], 0
    for i in range(1, order.size):
        if context_lens[order[i]] * WASTE < context_lens[order[start]] and min(i - start, order.size - i) >= FEW:
            groups.append(order[start:i])
            start = i
    return [*groups, order[start:]]


def make_group(inputs: StepInputs, rows: NDArray[np.int64], cache: PagedCache) -> Group:
    """`rows` are segments of one length."""
    starts, num_keys = inputs.query_starts[rows], inputs.context_lens[rows]
    num_queries = int(inputs.query_starts[rows[0] + 1] - starts[0])
    longest, heads = int(num_keys.max()), cache.num_heads
    width = -(-longest // cache.block_size)
    pages = inputs.block_tables[rows, None, :width].astype(np.int64) * heads + np.arange(heads)[:, None]
    tokens = (starts[:, None] + np.arange(num_queries)).ravel()
    is_run = bool((np.diff(tokens) == 1).all())
    return Group(
        tokens=slice(int(tokens[0]), int(tokens[0]) + tokens.size) if is_run else torch.from_numpy(tokens),
        positions=torch.from_numpy(inputs.positions[tokens].reshape(rows.size, num_queries)),
        longest=longest,
        pages=torch.from_numpy(pages.ravel()),
        tails=tail_places(num_keys, heads, width * cache.block_size),
    )


def tail_places(num_keys: Ints, heads: int, num_places: int) -> torch.Tensor:
    """Places of [rows × heads × num_places] behind each row's last key."""
    is_tail = np.arange(num_places) >= num_keys[:, None]
    return torch.from_numpy(np.flatnonzero(np.repeat(is_tail, heads, axis=0)))
