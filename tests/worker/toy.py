"""A small model whose next token is a function of the whole text before it, over a paged cache, and plans for it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from headrace.executor.local import Fault, LocalExecutor, no_fault
from headrace.ops.base import Ints, StepInputs
from headrace.ops.reference.sampling import ReferenceSampling
from headrace.ops.stepwise import Stepwise
from headrace.words.cache_spec import PagedKV
from headrace.words.params import Pooling, Sampling
from headrace.words.plan import Admission, Emits, RowResult, Segment, StepPlan
from headrace.worker.drafter import Drafter
from headrace.worker.rows import Rows
from headrace.worker.runner import Runner

VOCAB = 101
HIDDEN = 8
POISON = VOCAB - 1
"""A text that holds this token, which is never drawn, has hidden states that are not numbers."""


class ToyOps(ReferenceSampling):
    """The few ops that the worker calls itself."""

    dtype = "float32"

    def __init__(self, block_size: int = 4) -> None:
        self.block_size = block_size

    def gather(self, x: torch.Tensor, rows: Ints) -> torch.Tensor:
        return x[torch.from_numpy(rows).long()]

    def to_numpy(self, x: torch.Tensor) -> np.ndarray:
        return x.numpy()

    def kv_cache(
        self, num_blocks: int, block_size: int, num_heads: int, head_dim: int, dtype: str | None = None
    ) -> np.ndarray:
        return np.zeros((num_blocks * block_size, num_heads * head_dim), np.int64)

    def kv_caches(self, num_blocks: int, block_size: int, layers: Sequence[PagedKV]) -> list[np.ndarray]:
        return [self.kv_cache(num_blocks, block_size, kv.num_heads, kv.head_dim) for kv in layers]

    def zero_blocks(self, cache: np.ndarray, block_ids: Sequence[int]) -> None:
        cache.reshape(-1, self.block_size, cache.shape[1])[list(block_ids)] = 0


class ToyModel:
    """Writes (id, position) of every token to its slot and reads each query's own past back from the blocks."""

    def __init__(self, block_size: int = 4) -> None:
        self.block_size = block_size
        self.head = torch.from_numpy(np.random.default_rng(1).standard_normal((HIDDEN, VOCAB)).astype(np.float32))
        self.num_logits = 0
        self.largest_tile = 0

    def forward(self, inputs: StepInputs, caches: Sequence[np.ndarray]) -> torch.Tensor:
        cache = caches[0]
        cache[inputs.slots] = np.stack([inputs.token_ids, inputs.positions], axis=1)
        hidden = np.empty((inputs.token_ids.size, HIDDEN), np.float32)
        for i, table in enumerate(inputs.block_tables):
            for t in range(inputs.query_starts[i], inputs.query_starts[i + 1]):
                seen = self.past(cache, table, int(inputs.positions[t]) + 1)
                hidden[t] = state_of(seen)
            assert inputs.positions[inputs.query_starts[i + 1] - 1] + 1 == inputs.context_lens[i]
        return torch.from_numpy(hidden)

    def past(self, cache: np.ndarray, table: Ints, length: int) -> list[int]:
        """The text at positions [0, length) as the cache holds it; every position must be the sequence's own."""
        positions = np.arange(length)
        slots = table[positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size
        assert cache[slots, 1].tolist() == positions.tolist()
        return cache[slots, 0].tolist()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_logits += hidden.shape[0]
        self.largest_tile = max(self.largest_tile, hidden.shape[0])
        logits = sum(hidden[:, i : i + 1] * self.head[i] for i in range(HIDDEN)) * 1.5
        logits[:, POISON] -= 100
        return logits


def state_of(text: Sequence[int]) -> np.ndarray:
    """[HIDDEN] numbers that depend on every token of the text."""
    if POISON in text:
        return np.full(HIDDEN, np.nan, np.float32)
    return np.random.default_rng(zlib.crc32(np.array(text, np.int32).tobytes())).standard_normal(HIDDEN)


class Worker:
    """A runner with the toy model, and an executor over it; `run` takes plans one after the other."""

    def __init__(
        self,
        max_num_seqs: int = 8,
        max_model_len: int = 64,
        eos: tuple[int, ...] = (),
        drafter: Drafter | None = None,
        fault: Fault = no_fault,
        num_blocks: int = 700,
    ) -> None:
        ops = ToyOps()
        self.model = ToyModel()
        self.cache = ops.kv_cache(num_blocks, 4, 1, 2)
        self.rows = Rows(max_num_seqs, max_model_len, 4, eos, max_num_drafts=8)
        self.runner = Runner(Stepwise(self.model, ops), ops, self.rows, [self.cache], 2_048, drafter)
        self.executor = LocalExecutor(self.runner, fault)
        self.step = 0

    def run(self, *segments: Segment, masks: object = None, **deltas: object) -> dict[int, RowResult]:
        """One step; its results by sequence."""
        self.step += 1
        plan = StepPlan(self.step, segments, **deltas)
        self.executor.forward(plan)
        return {row.seq_id: row for row in self.executor.sample(plan, masks).result().rows}

    def generate(self, seq: Toy, num_tokens: int) -> list[int]:
        """The sequence alone from its admission on, token by token."""
        found = list(self.run(seq.prefill(), admissions=(seq.admission(),))[seq.seq_id].token_ids)
        while len(found) < num_tokens:
            found += self.run(seq.decode(len(found)))[seq.seq_id].token_ids
        return found


class Toy:
    """A sequence as a scheduler would describe it: blocks are its row's own."""

    def __init__(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        row: int | None = None,
        epoch: int = 0,
        seed: int = 0,
        choice: int = 0,
        pooling: Pooling | None = None,
    ) -> None:
        self.seq_id, self.prompt, self.epoch, self.seed, self.choice = seq_id, tuple(prompt), epoch, seed, choice
        self.row = seq_id if row is None else row
        self.pooling = pooling
        self.sampling = None if pooling else sampling or Sampling(temperature=0.0)

    def admission(self, output: Sequence[int] = ()) -> Admission:
        """With blocks for 64 tokens."""
        first = 1 + 16 * self.row
        return Admission(
            self.seq_id,
            self.epoch,
            self.row,
            (*self.prompt, *output),
            len(self.prompt),
            tuple(range(first + 15, first - 1, -1)),
            self.sampling,
            self.pooling,
            self.seed,
            self.choice,
        )

    def segment(self, start: int, length: int, emits: Emits = Emits.TOKEN, num_drafts: int = 0) -> Segment:
        return Segment(self.seq_id, self.epoch, self.row, start, length, num_drafts, emits)

    def prefill(self, emits: Emits = Emits.TOKEN) -> Segment:
        return self.segment(0, len(self.prompt), emits)

    def decode(self, num_outputs: int, num_drafts: int = 0) -> Segment:
        """The step that follows `num_outputs` output tokens."""
        return self.segment(len(self.prompt) + num_outputs - 1, 1 + num_drafts, Emits.TOKEN, num_drafts)
