"""Runs a model over its paged caches by hand: prompts whole, in chunks or token by token, on shuffled blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from headrace.comm import SoloComm
from headrace.models.registry import family
from headrace.ops.base import StepInputs
from headrace.ops.reference import ReferenceOps
from headrace.words.cache_spec import PagedKV
from headrace.words.config import ModelConfig

BLOCK = 4


class DictSource:
    """Weights from a dictionary of arrays."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def names(self) -> Seq[str]:
        return self._arrays.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def get(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def blocks(self, name: str, is_turned: bool = False) -> None:
        return None


class Driver:
    """One model, its caches, and sequences that each own blocks in a shuffled order."""

    def __init__(
        self,
        config: ModelConfig,
        arrays: dict[str, np.ndarray],
        num_blocks: int = 64,
        poison: bool = True,
        max_model_len: int = 64,
        **ops: Any,
    ) -> None:
        self.ops = ReferenceOps(**ops)
        self.model = family(config.architecture).build(
            config, DictSource(arrays), self.ops, SoloComm(), max_model_len
        )
        self.caches = [self._cache(spec, num_blocks) for spec in self.model.cache_specs()]
        if poison:
            for cache in self.caches:
                cache.keys[1:] = float("nan")
                cache.values[1:] = float("nan")
        self._free = random.Random(7).sample(range(1, num_blocks), num_blocks - 1)
        self.blocks: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}

    def _cache(self, spec: PagedKV, num_blocks: int) -> Any:
        assert isinstance(spec, PagedKV)
        return self.ops.kv_cache(num_blocks, BLOCK, spec.num_heads, spec.head_dim)

    def withhold(self, block_ids: Seq[int]) -> None:
        """These blocks are given out by hand."""
        self._free = [block for block in self._free if block not in block_ids]

    def step(self, chunks: dict[int, Seq[int]]) -> dict[int, np.ndarray]:
        """Appends tokens to sequences, all in one forward; gives the logits [length, vocab] of each chunk."""
        segments = []
        for seq, ids in chunks.items():
            known = self.tokens.setdefault(seq, [])
            table = self.blocks.setdefault(seq, [])
            segments.append((seq, len(known), len(ids)))
            known.extend(ids)
            while len(table) * BLOCK < len(known):
                table.append(self._free.pop())
        hidden = self.model.forward(self._inputs(segments), self.caches)
        logits = self.ops.to_numpy(self.model.logits(hidden))
        ends = np.cumsum([length for _, _, length in segments])
        return {seq: logits[end - length : end] for (seq, _, length), end in zip(segments, ends, strict=True)}

    def _inputs(self, segments: list[tuple[int, int, int]]) -> StepInputs:
        width = max(len(self.blocks[seq]) for seq, _, _ in segments)
        tables = np.zeros((len(segments), width), np.int32)
        ids, positions, slots = [], [], []
        for i, (seq, start, length) in enumerate(segments):
            table = self.blocks[seq]
            tables[i, : len(table)] = table
            for position in range(start, start + length):
                ids.append(self.tokens[seq][position])
                positions.append(position)
                slots.append(table[position // BLOCK] * BLOCK + position % BLOCK)
        starts = np.cumsum([0] + [length for _, _, length in segments]).astype(np.int32)
        ends = np.array([start + length for _, start, length in segments], np.int32)
        return StepInputs(
            np.array(ids, np.int32), np.array(positions, np.int32), np.array(slots, np.int64), starts, ends, tables
        )

    def run(self, prompts: Seq[Seq[int]], chunk: int | None = None) -> list[np.ndarray]:
        """Logits [length, vocab] of each prompt, all prompts side by side, `chunk` tokens a step (None: whole)."""
        parts: list[list[np.ndarray]] = [[] for _ in prompts]
        longest = max(map(len, prompts))
        for start in range(0, longest, chunk or longest):
            pieces = {i: p[start : start + (chunk or longest)] for i, p in enumerate(prompts) if start < len(p)}
            for i, logits in self.step(pieces).items():
                parts[i].append(logits)
        return [np.concatenate(part) for part in parts]
