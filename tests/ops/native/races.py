"""For the thread sanitizer: every op on four threads, from two callers at once. `python -m tests.ops.native.races`"""

from __future__ import annotations

import threading

import numpy as np
from tests.ops.native.built import use_build

use_build()

from headrace import _native  # noqa: E402
from headrace.ops.base import SamplingInputs, StepInputs  # noqa: E402
from headrace.ops.cpu import CpuOps  # noqa: E402

HIDDEN, HEADS, DIM, VOCAB, TOKENS = 96, 3, 32, 700, 50


def matrix(ops: CpuOps, n: int, k: int, seed: int) -> object:
    return ops.weight(np.random.default_rng(seed).normal(0, 0.1, (n, k)).astype(np.float32))


def step(num_tokens: int) -> StepInputs:
    positions = np.arange(num_tokens, dtype=np.int32)
    table = np.arange(1, 5, dtype=np.int32)[None]
    starts, lengths = np.array([0, num_tokens], np.int32), np.array([num_tokens], np.int32)
    return StepInputs(positions % VOCAB, positions, 16 + positions.astype(np.int64), starts, lengths, table)


def run(ops: CpuOps, rounds: int) -> None:
    table, qkv, out = (matrix(ops, n, HIDDEN, i) for i, n in enumerate((VOCAB, 3 * HEADS * DIM, HIDDEN)))
    cache = ops.kv_cache(5, 16, HEADS, DIM)
    norm, inputs = np.ones(HIDDEN, np.float32), step(TOKENS)
    angles = np.ones((64, DIM), np.float32)
    begun = ops.begin(inputs)
    for _ in range(rounds):
        x = ops.embed(inputs.token_ids, table)
        heads = ops.split_heads(ops.linear(ops.rms_norm(x, norm, 1e-5), qkv), (HEADS,) * 3, DIM)
        q, k = (ops.rotate(h, ops.angles(angles, begun)) for h in heads[:2])
        x = ops.add(x, ops.linear(ops.attend(q, k, heads[2], cache, begun, 0.2), out, is_summand=True))
        logits = ops.logits(ops.rms_norm(x, norm, 1e-5), table)
        rows = len(logits)
        floats = [np.full(rows, value, np.float32) for value in (0.8, 0.9)]
        zeros, ids = np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32)
        cuts = SamplingInputs(*floats, zeros + 40, np.zeros(rows, np.float32), np.ones(rows, np.uint64), zeros, ids)
        ops.logprobs(logits, ops.sample(logits, cuts), 5)


def main() -> None:
    for isa in _native.isas():
        for dtype in ("bfloat16", "float32"):
            ops = CpuOps(dtype, 4, isa)
            callers = [threading.Thread(target=run, args=(ops, 5)) for _ in range(2)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
    print("no race was seen on", ", ".join(_native.isas()))


if __name__ == "__main__":
    main()
