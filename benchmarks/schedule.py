"""Time of schedule() and commit() together, in microseconds a step, without a model.

Usage: python benchmarks/schedule.py. Best and median of many steps; 256 rows decode, others wait behind them.
"""

from __future__ import annotations

import statistics
import time

from headrace.schedule.scheduler import Scheduler
from headrace.words.config import SchedulerConfig
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, Emits, RowResult, StepPlan, StepResult

ROWS, PROMPT, STEPS = 256, 512, 300


def result(plan: StepPlan) -> StepResult:
    """A token for every segment that asks for one."""
    rows = [RowResult(s.seq_id, s.epoch, (7,)) for s in plan.segments if s.emits is Emits.TOKEN]
    return StepResult(plan.step, tuple(rows))


def scheduler(num_waiting: int) -> Scheduler:
    """256 sequences that decode, and others that cannot be admitted because the rows are taken."""
    config = SchedulerConfig(max_model_len=4_096, max_num_seqs=ROWS, max_num_batched_tokens=1 << 20)
    made = Scheduler(config, CacheLayout(ROWS * 130, 16))
    for i in range(ROWS + num_waiting):
        prompt = tuple(range(i, i + PROMPT)) if i < ROWS else (i, 1, 2)
        made.add(Request(i + 1, str(i), prompt, Sampling(max_tokens=2_000, ignore_eos=True)))
    made.commit(result(made.schedule()))
    return made


def measure(num_waiting: int) -> list[float]:
    made, times = scheduler(num_waiting), []
    for _ in range(STEPS):
        start = time.perf_counter()
        plan = made.schedule()
        planned = time.perf_counter()
        assert len(plan.segments) == ROWS
        answer = result(plan)
        resumed = time.perf_counter()
        made.commit(answer)
        times.append((planned - start + time.perf_counter() - resumed) * 1e6)
    return times


def main() -> None:
    print(f"{'waiting':>8} {'best µs':>8} {'median µs':>10} {'p95 µs':>8}")
    for num_waiting in (0, 50, 50_000):
        times = measure(num_waiting)
        p95 = statistics.quantiles(times, n=20)[-1]
        print(f"{num_waiting:>8} {min(times):>8.0f} {statistics.median(times):>10.0f} {p95:>8.0f}")


if __name__ == "__main__":
    main()
