"""Time of the sampling pipeline and of the step's inputs, in milliseconds per step, on one thread.

Usage: python benchmarks/sampling.py [VOCAB]. Medians of five; logits are random with the spread of a language model's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from headrace.ops.reference import ReferenceOps
from headrace.sampling.pipeline import Places, draw
from headrace.sampling.table import SamplingTable
from headrace.words.params import Sampling
from headrace.words.plan import Admission, Emits, Segment, StepPlan
from headrace.worker.inputs import InputBuffers, columns
from headrace.worker.rows import Rows

ROWS = (1, 8, 32, 256)
TEXT = 256
SPREAD = 3.0
KINDS = {
    "greedy": Sampling(temperature=0.0),
    "T 1": Sampling(temperature=1.0),
    "T 0.8, top-k 50": Sampling(temperature=0.8, top_k=50),
    "T 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "T 0.8, top-p 0.95, top-k 50": Sampling(temperature=0.8, top_p=0.95, top_k=50),
    "the same, three penalties": Sampling(
        temperature=0.8, top_p=0.95, top_k=50, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
    ),
    "greedy, 20 logprobs": Sampling(temperature=0.0, logprobs=20),
}


def median_ms(run: Callable[[], object], rounds: int = 5) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def sampling_ms(sampling: Sampling, num_rows: int, vocab: int) -> float:
    """One step of `num_rows` equal rows behind a text of 256 tokens, half of them the prompt."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab, (num_rows, TEXT)).astype(np.int32)
    table = SamplingTable(num_rows)
    for row in range(num_rows):
        table.admit(row, sampling, row, 0, tokens[row], TEXT // 2)
    rows = np.arange(num_rows, dtype=np.int32)
    places = Places(rows, np.full(num_rows, TEXT, np.int32), np.full(num_rows, TEXT // 2, np.int32))
    logits = torch.from_numpy((rng.standard_normal((num_rows, vocab)) * SPREAD).astype(np.float32))
    ops = ReferenceOps()
    return median_ms(lambda: draw(ops, logits, places, table, tokens))


def decode_plan(num_rows: int, length: int, block_size: int) -> tuple[StepPlan, StepPlan]:
    """An admission of `num_rows` sequences of `length` tokens, and the decode that follows."""
    num_blocks = -(-length // block_size)
    admissions = tuple(
        Admission(
            *(row, 0, row, tuple(range(length)), length // 2),
            *(tuple(range(row * num_blocks, (row + 1) * num_blocks)), Sampling(temperature=0.0), None, 0, 0),
        )
        for row in range(1, num_rows + 1)
    )
    segments = tuple(Segment(row, 0, row, length - 1, 1, 0, Emits.TOKEN) for row in range(1, num_rows + 1))
    return StepPlan(1, (), admissions=admissions), StepPlan(2, segments)


def inputs_ms(num_rows: int, length: int, block_size: int = 16) -> float:
    rows = Rows(num_rows, 8_192, block_size)
    admission, decode = decode_plan(num_rows, length, block_size)
    rows.apply(admission)
    buffers = InputBuffers(rows, 2_048)

    def build() -> None:
        rows.apply(decode)
        buffers.fill(decode, columns(decode.segments))

    return median_ms(build, 25)


def print_table(head: Sequence[object], lines: Sequence[Sequence[object]]) -> None:
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(str(cell) for cell in line) + " |")


def main() -> None:
    vocab = int(sys.argv[1]) if len(sys.argv) > 1 else 49_152
    torch.set_num_threads(1)
    lines = [[name, *(f"{sampling_ms(kind, n, vocab):.2f}" for n in ROWS)] for name, kind in KINDS.items()]
    print_table([f"sampling, ms per step (vocabulary {vocab})", *(f"{n} rows" for n in ROWS)], lines)
    print()
    lengths = (100, 1_000, 8_000)
    cells = [f"{inputs_ms(256, length):.2f}" for length in lengths]
    print_table(["inputs, ms per step", *(f"at {length} tokens" for length in lengths)], [["256 decodes", *cells]])


if __name__ == "__main__":
    main()
