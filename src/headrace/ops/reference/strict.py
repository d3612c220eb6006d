"""The same arithmetic in shapes that never vary, so that a row's bits do not depend on its company, chunk or place."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headrace.ops.base import Ints
from headrace.ops.reference.step import Form, PagedCache, Step

NEVER = float("-inf")
QUERIES = 16
KEYS = 512


def in_row_tiles(x: torch.Tensor, size: int, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Applies `run` to exactly `size` rows at a time, the last tile padded with zeros."""
    num_rows = x.shape[0]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -num_rows % size))
    tiles = [run(padded[i : i + size]) for i in range(0, num_rows, size)]
    return torch.cat(tiles)[:num_rows] if tiles else run(padded)


def attend_strict(q: torch.Tensor, cache: PagedCache, step: Step, form: Form) -> torch.Tensor:
    """[T, heads, dim] → [T, heads, dim] in tiles of 16 queries by 512 keys counted from position 0."""
    inputs, out = step.inputs, torch.empty_like(q)
    for row in range(inputs.query_starts.size - 1):
        num_keys = int(inputs.context_lens[row])
        keys, values = _contiguous(cache, inputs.block_tables[row], num_keys)
        for start in range(int(inputs.query_starts[row]), int(inputs.query_starts[row + 1]), QUERIES):
            end = min(start + QUERIES, int(inputs.query_starts[row + 1]))
            positions = torch.from_numpy(inputs.positions[start:end])
            out[start:end] = _attend_tile(q[start:end], keys, values, positions, form)
    return out


def _contiguous(cache: PagedCache, block_table: Ints, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence's keys and values in fp32, [kv_heads, partitions × 512, dim], zeros behind the last."""
    pages = torch.from_numpy(block_table[: -(-num_keys // cache.block_size)])
    tensors = []
    for blocks in cache.blocks(pages):
        found = blocks.transpose(0, 1).flatten(1, 2)[:, :num_keys].float()
        tensors.append(torch.nn.functional.pad(found, (0, 0, 0, -num_keys % KEYS)))
    return tensors[0], tensors[1]


def _attend_tile(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    form: Form,
) -> torch.Tensor:
    """At most 16 queries [rows, heads, dim], padded to 16; partitions merged in order by (max, sum, accumulator)."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[0]
    padded = torch.nn.functional.pad(q.float(), (0, 0, 0, 0, 0, QUERIES - rows))
    tile = padded.view(QUERIES, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    at = torch.nn.functional.pad(positions, (0, QUERIES - rows)).repeat(heads // kv_heads)
    best = torch.full((*tile.shape[:2], 1), NEVER)
    total, sums = torch.zeros_like(best), torch.zeros_like(tile)
    for start in range(0, keys.shape[1], KEYS):
        scores = form.capped(torch.matmul(tile, keys[:, start : start + KEYS].transpose(1, 2)) * form.scale)
        scores = scores.masked_fill(~_seen(at, start, form.window), NEVER)
        new_best = torch.maximum(best, scores.max(-1, keepdim=True).values)
        safe = torch.where(new_best == NEVER, torch.zeros_like(new_best), new_best)
        weights, keep = torch.exp(scores - safe), torch.exp(best - safe)
        total = total * keep + weights.sum(-1, keepdim=True)
        sums = sums * keep + torch.matmul(weights, values[:, start : start + KEYS])
        best = new_best
    heads_last = (sums / total).view(kv_heads, -1, QUERIES, dim).permute(2, 0, 1, 3)
    return heads_last.reshape(QUERIES, heads, dim)[:rows].to(q.dtype)


def _seen(positions: torch.Tensor, start: int, window: int | None) -> torch.Tensor:
    """[queries, 512]: which keys of the partition from `start` each query sees."""
    keys = torch.arange(start, start + KEYS)
    seen = keys <= positions[:, None]
    return seen if window is None else seen & (keys > positions[:, None] - window)
