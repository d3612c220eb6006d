"""Time of one step's forward and logits beside transformers' on the same random weights in SmolLM2-135M's shape.

Usage: python benchmarks/model_step.py [THREADS] [DTYPE …]. The two alternate; medians in milliseconds, and their ratio.
On one thread it is processor time, which does not count what other programs take.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from headrace.comm import SoloComm
from headrace.models.llama import Llama
from headrace.ops.base import StepInputs
from headrace.ops.reference import ReferenceOps
from headrace.words.config import ModelConfig, RopeConfig

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM = 49_152, 576, 1_536, 30, 9, 3, 64
EPS, THETA, MAX_LEN, BLOCK = 1e-5, 100_000.0, 2_048, 16
CONFIG = ModelConfig(
    *("LlamaForCausalLM", VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM, MAX_LEN, EPS, RopeConfig(THETA)),
    tie_word_embeddings=True,
)
WORK = [("decode", 1, 128), ("decode", 1, 336), ("decode", 8, 128), ("decode", 8, 336)]
WORK += [("decode", 32, 128), ("decode", 32, 336), ("prefill", 1, 2_048)]
ROUNDS = {"decode": 9, "prefill": 3}
Run = Callable[[], object]


class StateDict:
    """transformers' weights as a WeightSource."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}

    def names(self) -> Sequence[str]:
        return list(self._state)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._state[name].shape)

    def get(self, name: str) -> NDArray[Any]:
        tensor = self._state[name].detach()
        return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def theirs(dtype: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM, max_position_embeddings=MAX_LEN,
        rms_norm_eps=EPS, rope_parameters={"rope_type": "default", "rope_theta": THETA}, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def inputs(num_rows: int, start: int, end: int) -> StepInputs:
    """Positions [start, end) of `num_rows` sequences, blocks in a shuffled order."""
    positions = np.tile(np.arange(start, end, dtype=np.int32), num_rows)
    width = -(-end // BLOCK)
    tables = np.random.default_rng(0).permutation(num_rows * width).astype(np.int32).reshape(num_rows, width) + 1
    rows = np.repeat(np.arange(num_rows), end - start)
    slots = tables[rows, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    starts = np.arange(num_rows + 1, dtype=np.int32) * (end - start)
    return StepInputs(positions * 7 % VOCAB, positions, slots, starts, np.full(num_rows, end, np.int32), tables)


def our_run(model: Llama, ops: ReferenceOps, num_rows: int, start: int, end: int) -> Run:
    step = inputs(num_rows, start, end)
    specs = model.cache_specs()
    caches = [ops.kv_cache(int(step.block_tables.max()) + 1, BLOCK, s.num_heads, s.head_dim) for s in specs]
    ends = step.query_starts[1:] - 1
    return lambda: model.logits(ops.gather(model.forward(step, caches), ends))


def their_run(model: LlamaForCausalLM, num_rows: int, start: int, end: int) -> Run:
    shape, dtype = (num_rows, KV_HEADS, start, DIM), model.dtype
    cache = DynamicCache()
    for layer in range(LAYERS):
        cache.update(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), layer)
    ids = torch.arange(start, end).repeat(num_rows, 1) * 7 % VOCAB

    def run() -> None:
        model(ids, cache=cache, use_cache=True, logits_to_keep=1)
        cache.crop(start - end)

    return run


def median_times(runs: Sequence[Run], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Milliseconds of each; they take turns, so that a slow minute of the machine hits all."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, taken in zip(runs, times, strict=True):
            began = clock()
            run()
            taken.append(1e3 * (clock() - began))
    return [statistics.median(taken[1:]) for taken in times]


def lines(dtype: str, threads: int) -> Iterator[list[str]]:
    them = theirs(dtype)
    ops = ReferenceOps(dtype, threads)
    us = Llama.build(CONFIG, StateDict(them), ops, SoloComm(), MAX_LEN)
    for kind, num_rows, context in WORK:
        start = context - 1 if kind == "decode" else 0
        runs = [our_run(us, ops, num_rows, start, context), their_run(them, num_rows, start, context)]
        ours, other = median_times(runs, ROUNDS[kind], time.process_time if threads == 1 else time.perf_counter)
        name = f"{kind} {num_rows} × {context}"
        yield [dtype, name, f"{ours:.1f}", f"{other:.1f}", f"{other / ours:.2f}"]


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(f"| {threads} threads | step | ours, ms | transformers, ms | ratio |\n| --- | --- | --- | --- | --- |")
    with torch.inference_mode():
        for dtype in sys.argv[2:] or ["bfloat16", "float32"]:
            for line in lines(dtype, threads):
                print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
