"""Paged attention in plain torch: decodes together, longer segments one by one, K and V read back from the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from headrace.ops.base import StepInputs

NEVER = float("-inf")


class Form(NamedTuple):
    """What varies between attention layers. A soft cap c makes of a score s the value c · tanh(s / c)."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        return scores if self.soft_cap is None else torch.tanh(scores / self.soft_cap) * self.soft_cap


@dataclass
class PagedCache:
    """One layer's pages: keys and values [blocks, block_size, kv_heads, dim]."""

    keys: torch.Tensor
    values: torch.Tensor

    def write(self, k: torch.Tensor, v: torch.Tensor, step: Step) -> None:
        """k and v [T, kv_heads, dim] to the step's slots; a slot of −1 writes nothing."""
        if step.writing is not None:
            k, v = k[step.writing], v[step.writing]
        self.keys.flatten(0, 1).index_copy_(0, step.slots, k)
        self.values.flatten(0, 1).index_copy_(0, step.slots, v)

    def read(self, pages: torch.Tensor, tails: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages [rows, blocks] → keys and values [rows, blocks × block_size, kv_heads, dim].

        `tails` are the places behind each row's last key: whatever lies there is zeroed, for 0 × NaN is NaN.
        """
        return self._read(self.keys, pages, tails), self._read(self.values, pages, tails)

    def _read(self, storage: torch.Tensor, pages: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        _, size, heads, dim = storage.shape
        found = storage.flatten(1).index_select(0, pages.flatten()).view(-1, heads, dim)
        found.index_fill_(0, tails, 0)
        return found.view(pages.shape[0], pages.shape[1] * size, heads, dim)


class Group(NamedTuple):
    """Segments that attend in one call: B rows of Q queries each over at most L keys."""

    tokens: torch.Tensor | slice
    """[B × Q] places of the queries in the step"""
    pages: torch.Tensor
    """[B, blocks]"""
    tails: torch.Tensor
    """places behind the last key in [B × L]"""
    positions: torch.Tensor
    """[B, Q] of the queries"""
    same_length: int | None
    """The number of keys where all rows have as many: then nothing lies behind them that needs a mask."""
    is_causal: bool
    """Queries and keys both start at position 0, so that the kernel's own causal mask fits."""


@dataclass
class Step:
    """What attention derives from StepInputs once for all layers."""

    positions: NDArray[np.int32]
    slots: torch.Tensor
    writing: torch.Tensor | None
    groups: list[Group]
    inputs: StepInputs
    masks: dict[tuple[int, int | None], torch.Tensor]

    @classmethod
    def of(cls, inputs: StepInputs) -> Step:
        is_kept = inputs.slots >= 0
        writing = None if is_kept.all() else torch.from_numpy(np.flatnonzero(is_kept))
        slots = torch.from_numpy(inputs.slots[is_kept])
        return cls(inputs.positions, slots, writing, [], inputs, {})

    def plan(self, block_size: int) -> list[Group]:
        """The groups, made when the first layer asks (it knows the block size)."""
        if not self.groups:
            lengths = np.diff(self.inputs.query_starts)
            decodes = np.flatnonzero(lengths == 1)
            self.groups = [decode_group(self.inputs, rows, block_size) for rows in similar(self.inputs, decodes)]
            self.groups += [prompt_group(self.inputs, int(row), block_size) for row in np.flatnonzero(lengths > 1)]
        return self.groups

    def mask(self, number: int, group: Group, num_places: int, window: int | None) -> torch.Tensor:
        """[B, 1, Q, L]: which key each query sees."""
        if (number, window) not in self.masks:
            keys = torch.arange(num_places)
            queries = group.positions[:, :, None]
            seen = keys <= queries
            if window is not None:
                seen &= keys > queries - window
            self.masks[number, window] = seen[:, None]
        return self.masks[number, window]


def similar(inputs: StepInputs, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Decode rows by falling context length, cut where padding would cost more than a third."""
    if rows.size == 0:
        return []
    order = rows[np.argsort(-inputs.context_lens[rows], kind="stable")]
    groups, start = [], 0
    for i in range(1, order.size + 1):
        is_short = i < order.size and inputs.context_lens[order[i]] * 1.5 < inputs.context_lens[order[start]]
        if i == order.size or (is_short and i - start >= 4):
            groups.append(order[start:i])
            start = i
    return groups


def tail_places(num_keys: NDArray[np.int32], num_places: int) -> torch.Tensor:
    """Places of [rows × num_places] behind each row's last key."""
    return torch.from_numpy(np.flatnonzero((np.arange(num_places) >= num_keys[:, None]).ravel()))


def decode_group(inputs: StepInputs, rows: NDArray[np.int64], block_size: int) -> Group:
    num_keys = inputs.context_lens[rows]
    width = -(-int(num_keys.max()) // block_size)
    starts = inputs.query_starts[rows]
    is_whole = rows.size == inputs.query_starts.size - 1 == inputs.positions.size and (np.diff(rows) == 1).all()
    return Group(
        tokens=slice(0, rows.size) if is_whole else torch.from_numpy(starts.astype(np.int64)),
        pages=torch.from_numpy(np.ascontiguousarray(inputs.block_tables[rows, :width])),
        tails=tail_places(num_keys, width * block_size),
        positions=torch.from_numpy(num_keys[:, None] - 1),
        same_length=int(num_keys[0]) if (num_keys == num_keys[0]).all() else None,
        is_causal=False,
    )


def prompt_group(inputs: StepInputs, row: int, block_size: int) -> Group:
    start, end = int(inputs.query_starts[row]), int(inputs.query_starts[row + 1])
    num_keys = inputs.context_lens[row : row + 1]
    width = -(-int(num_keys[0]) // block_size)
    return Group(
        tokens=slice(start, end),
        pages=torch.from_numpy(inputs.block_tables[row : row + 1, :width]),
        tails=tail_places(num_keys, width * block_size),
        positions=torch.from_numpy(inputs.positions[None, start:end]),
        same_length=int(num_keys[0]),
        is_causal=int(num_keys[0]) == end - start,
    )


def attend_fast(q: torch.Tensor, cache: PagedCache, step: Step, form: Form) -> torch.Tensor:
    """[T, heads, dim] → [T, heads, dim], group by group."""
    groups = step.plan(cache.keys.shape[1])
    if len(groups) == 1 and isinstance(groups[0].tokens, slice):
        return _attend_group(q, cache, step, 0, form)
    out = torch.empty_like(q)
    for number, group in enumerate(groups):
        out[group.tokens] = _attend_group(q, cache, step, number, form)
    return out


def _attend_group(q: torch.Tensor, cache: PagedCache, step: Step, number: int, form: Form) -> torch.Tensor:
    """One group; query heads that share a key head lie along a dimension of their own, so that keys are not copied."""
    group = step.groups[number]
    keys, values = cache.read(group.pages, group.tails)
    rows, places, kv_heads, dim = keys.shape
    fold = q.shape[1] // kv_heads
    is_causal = group.is_causal and form.window is None and form.soft_cap is None
    if group.same_length is not None:
        places = group.same_length
        keys, values = keys[:, :places], values[:, :places]
    queries = q[group.tokens].view(rows, -1, kv_heads, fold, dim)
    is_decode = queries.shape[1] == 1
    sees_all = is_causal or (is_decode and form.window is None and group.same_length is not None)
    mask = None if sees_all else step.mask(number, group, places, form.window)
    if is_decode:
        heads = _attention(queries[:, 0], keys.transpose(1, 2), values.transpose(1, 2), mask, False, form)
        return heads.reshape(rows, kv_heads * fold, dim)
    shape = (kv_heads, fold, places, dim)
    wide_keys = keys[0].transpose(0, 1)[:, None].expand(shape)
    wide_values = values[0].transpose(0, 1)[:, None].expand(shape)
    heads = _attention(queries[0].permute(1, 2, 0, 3), wide_keys, wide_values, mask, is_causal, form)
    return heads.permute(2, 0, 1, 3).reshape(-1, kv_heads * fold, dim)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    form: Form,
) -> torch.Tensor:
    """[…, Q, dim] over […, L, dim]"""
    if form.soft_cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=form.scale)
    scores = form.capped((q.float() @ k.float().transpose(-1, -2)) * form.scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, NEVER)
    return (torch.softmax(scores, dim=-1) @ v.float()).to(q.dtype)
