"""Times the native ops by shape: µs, GB/s or GFLOP/s, and the share of what this machine was measured to reach.

Usage: python benchmarks/native_ops.py [--isa avx512] [--threads 2]. The limits are measured in the same run: the best
streaming read of 256 MB, and the best product of a block that stays in the cache. On a machine that others
use, only the shares mean something.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import headrace

BUILD = Path(__file__).resolve().parents[1] / "build" / "native"
if BUILD.is_dir():
    headrace.__path__.append(str(BUILD))

from headrace.ops.base import SamplingInputs, StepInputs  # noqa: E402
from headrace.ops.cpu import CpuOps  # noqa: E402
from headrace.words.cache_spec import PagedKV  # noqa: E402

ROUNDS = 9
READ_BYTES = 256 << 20
CACHES_BYTES = 64 << 20
SHAPES = {
    "135M qkv": (960, 576),
    "135M out": (576, 576),
    "135M gate, up": (3072, 576),
    "135M down": (576, 1536),
    "135M head": (49152, 576),
    "1B gate, up": (16384, 2048),
    "1B down": (2048, 8192),
}
ROWS = (1, 8, 32, 256)


def best_s(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def words(*shape: int) -> np.ndarray:
    """bfloat16 between 0.5 and 1, either sign."""
    rng = np.random.default_rng(0)
    return (rng.integers(0x3F00, 0x3F80, shape) | rng.integers(0, 2, shape) << 15).astype(np.uint16)


class Limits:
    """Bytes and FLOPs per second that the machine gives."""

    def __init__(self, ops: CpuOps) -> None:
        table, x = ops.weight(words(READ_BYTES // 2 // 1024, 1024)), words(1, 1024)
        y = np.empty((1, table.shape[0]), np.float32)
        by_product = READ_BYTES / best_s(lambda: ops.machine.linear(x, table, None, y))
        self.read = max(by_product, ops.machine.read_rate(table))
        small, many = ops.weight(words(256, 512)), words(768, 512)
        self.flops = 2 * 256 * 512 * 768 / best_s(lambda: ops.linear(many, small), 20)


def show(op: str, shape: str, seconds: float, num_bytes: float, num_flops: float, limits: Limits) -> None:
    by_read, by_flops = num_bytes / seconds / limits.read, num_flops / seconds / limits.flops
    is_read = by_read >= by_flops
    rate = f"{num_bytes / seconds / 1e9:.1f} GB/s" if is_read else f"{num_flops / seconds / 1e9:.0f} GFLOP/s"
    print(f"{op:10} {shape:32} {seconds * 1e6:10.0f} µs {rate:>15} {max(by_read, by_flops):6.0%}", flush=True)


def linears(ops: CpuOps, limits: Limits) -> None:
    for name, (n, k) in SHAPES.items():
        copies = [ops.weight(words(n, k)) for _ in range(max(1, (96 << 20) // (2 * n * k)))]
        for rows in ROWS:
            x, y = words(rows, k), np.empty((rows, n), np.uint16)

            def run(copies=copies, x=x, y=y) -> None:
                for weight in copies:
                    ops.machine.linear(x, weight, None, y)

            seconds = best_s(run, 3 if rows > 32 else ROUNDS) / len(copies)
            show("linear", f"{name}, {rows} rows", seconds, 2 * n * k, 2 * n * k * rows, limits)


def decode_step(rows: int, context: int, size: int) -> StepInputs:
    width = context // size
    tables = np.arange(1, 1 + rows * width, dtype=np.int32).reshape(rows, width)
    positions = np.full(rows, context - 1, np.int32)
    slots = tables[:, -1].astype(np.int64) * size + size - 1
    lens = np.full(rows, context, np.int32)
    return StepInputs(np.zeros(rows, np.int32), positions, slots, np.arange(rows + 1, dtype=np.int32), lens, tables)


def prompt_step(length: int, size: int) -> StepInputs:
    positions = np.arange(length, dtype=np.int32)
    tables = np.arange(1, 1 + length // size, dtype=np.int32)[None]
    slots = positions.astype(np.int64) + size
    ends = np.array([0, length], np.int32)
    return StepInputs(positions, positions, slots, ends, ends[1:].copy(), tables)


def attention(ops: CpuOps, limits: Limits, heads: int = 9, kv_heads: int = 3, dim: int = 64, size: int = 32) -> None:
    """Over caches that are together too large to stay near the core, as those of a model's layers are."""
    contexts = ((1, 512), (1, 2048), (8, 1024), (32, 320))
    steps = {f"{rows} rows, context {n}": decode_step(rows, n, size) for rows, n in contexts}
    for name, step in {**steps, "a prompt of 1024": prompt_step(1024, size)}.items():
        tokens, keys = step.positions.size, int(step.positions.astype(np.int64).sum()) + step.positions.size
        parts = ops.split_heads(words(tokens, (heads + 2 * kv_heads) * dim), (heads, kv_heads, kv_heads), dim)
        begun = ops.begin(step)
        for held in ("bfloat16", "int8"):
            num_bytes = PagedKV(kv_heads, dim, held).bytes_per_token() * int(step.context_lens.sum())
            count = 1 if tokens > 32 else 1 + CACHES_BYTES // num_bytes
            caches = [ops.kv_cache(int(step.block_tables.max()) + 1, size, kv_heads, dim, held) for _ in range(count)]
            for cache in caches:
                cache.fill(1)  # pages that nobody has written are one and the same

            def run(parts=parts, caches=caches, begun=begun) -> None:
                for cache in caches:
                    ops.attend(*parts, cache, begun, dim**-0.5)

            show("attend", f"{name}, {held}", best_s(run) / count, num_bytes, 4 * heads * dim * keys, limits)


def sampling(ops: CpuOps, limits: Limits, rows: int = 32, vocab: int = 49152) -> None:
    logits = np.random.default_rng(0).standard_normal((rows, vocab)).astype(np.float32) * 3
    kinds = {"greedy": (0.0, 1.0, 0), "T 0.8": (0.8, 1.0, 0), "T 0.8, top-p 0.95, top-k 50": (0.8, 0.95, 50)}
    for name, (temperature, top_p, top_k) in kinds.items():
        inputs = SamplingInputs(
            np.full(rows, temperature, np.float32),
            np.full(rows, top_p, np.float32),
            np.full(rows, top_k, np.int32),
            np.zeros(rows, np.float32),
            np.arange(rows, dtype=np.uint64),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.int32),
        )
        show("sample", f"{rows} × {name}", best_s(lambda i=inputs: ops.sample(logits, i)), logits.nbytes, 0, limits)
    token_ids = np.zeros(rows, np.int32)
    seconds = best_s(lambda: ops.logprobs(logits, token_ids, 5))
    show("logprobs", f"{rows} rows, 5 alternatives", seconds, logits.nbytes, 0, limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args()
    ops = CpuOps("bfloat16", asked.threads, asked.isa)
    limits = Limits(ops)
    print(f"{ops.machine.isa}, {ops.machine.num_threads} threads")
    print(f"limits: read {limits.read / 1e9:.1f} GB/s, product in the cache {limits.flops / 1e9:.0f} GFLOP/s")
    for part in (linears, attention, sampling):
        part(ops, limits)


if __name__ == "__main__":
    main()
