"""Time of schedule() and commit() together, in microseconds a step, without a model.

Usage: python benchmarks/schedule.py. One line for each kind of step: best, median and 95th percentile of many steps.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator

from headrace.schedule.scheduler import Scheduler
from headrace.words.config import SchedulerConfig
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, Emits, RowResult, StepPlan, StepResult

ROWS, PROMPT, STEPS = 256, 512, 300


def result(plan: StepPlan) -> StepResult:
    """A token for every segment that asks for one."""
    rows = [RowResult(s.seq_id, s.epoch, (7,)) for s in plan.segments if s.emits is Emits.TOKEN]
    return StepResult(plan.step, tuple(rows))


def request(request_id: int, prompt: tuple[int, ...], max_tokens: int = 2_000) -> Request:
    return Request(request_id, str(request_id), prompt, Sampling(max_tokens=max_tokens, ignore_eos=True))


def decoding(num_waiting: int, num_rows: int = ROWS, budget: int = 1 << 20) -> Scheduler:
    """256 rows, `num_rows` of them decoding, and others that wait."""
    config = SchedulerConfig(max_model_len=4_096, max_num_seqs=ROWS, max_num_batched_tokens=budget)
    made = Scheduler(config, CacheLayout(ROWS * 130, 16))
    for i in range(num_rows):
        made.add(request(i + 1, tuple(range(i, i + PROMPT))))
    while made.num_waiting or any(seq.is_prefilling for seq in made.live()):
        made.commit(result(made.schedule()))
    for i in range(num_waiting):
        made.add(request(ROWS + i + 1, (i, 1, 2)))
    return made


def timed_step(scheduler: Scheduler) -> float:
    """Microseconds of schedule() and commit(); making the result is not theirs."""
    start = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter()
    answer = result(plan)
    resumed = time.perf_counter()
    scheduler.commit(answer)
    return (planned - start + time.perf_counter() - resumed) * 1e6


def decodes(num_waiting: int) -> Iterator[float]:
    scheduler = decoding(num_waiting)
    for _ in range(STEPS):
        yield timed_step(scheduler)


def overlapped() -> Iterator[float]:
    """schedule(t) before commit(t − 1)."""
    scheduler = decoding(50)
    answer = result(scheduler.schedule())
    for _ in range(STEPS):
        start = time.perf_counter()
        plan = scheduler.schedule()
        scheduler.commit(answer)
        took = time.perf_counter() - start
        answer = result(plan)
        yield took * 1e6


def mixed() -> Iterator[float]:
    """255 rows decode beside one prompt of 2,048 tokens after the other, in chunks that fill 1,024 tokens a step."""
    scheduler = decoding(0, ROWS - 1, budget=1_024)
    for i in range(STEPS):
        if scheduler.num_running < ROWS:
            scheduler.add(request(10_000 + i, tuple(range(i, i + 2_048)), max_tokens=1))
        yield timed_step(scheduler)


def prefixes() -> Iterator[float]:
    """Sixteen prompts that share 1,024 tokens, admitted, answered with one token and gone, all in one step."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=2_048), CacheLayout(4_096, 16))
    shared = tuple(range(1_024))
    for i in range(STEPS):
        for j in range(16):
            scheduler.add(request(16 * i + j + 1, shared + (i, j) * 16, max_tokens=1))
        yield timed_step(scheduler)


KINDS: dict[str, Callable[[], Iterator[float]]] = {
    "256 decodes": lambda: decodes(0),
    "256 decodes, 50 waiting": lambda: decodes(50),
    "256 decodes, 50,000 waiting": lambda: decodes(50_000),
    "256 decodes, overlapped": overlapped,
    "255 decodes and a prompt chunk": mixed,
    "16 prompts sharing 1,024 tokens": prefixes,
}


def main() -> None:
    print(f"{'µs a step':<32} {'best':>7} {'median':>7} {'p95':>7}")
    for name, kind in KINDS.items():
        gc.collect()
        times = list(kind())[5:]
        p95 = statistics.quantiles(times, n=20)[-1]
        print(f"{name:<32} {min(times):>7.0f} {statistics.median(times):>7.0f} {p95:>7.0f}")


if __name__ == "__main__":
    main()
