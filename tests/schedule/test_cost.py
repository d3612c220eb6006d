"""What a step of the scheduler costs; benchmarks/schedule.py prints the figures. The bounds here are wide, for slow and
busy machines."""

import time

from tests.schedule.harness import answer

from headrace.schedule.scheduler import Scheduler
from headrace.words.config import SchedulerConfig
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout


def decoding(num_waiting: int) -> Scheduler:
    """256 sequences that decode, and others that wait for a row."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=2_048, max_num_batched_tokens=8_192), CacheLayout(8_192, 16))
    for i in range(256 + num_waiting):
        scheduler.add(Request(i, "r", (i, 1, 2, 3), Sampling(max_tokens=1_000)))
    scheduler.commit(answer(scheduler.schedule()))
    assert (scheduler.num_running, scheduler.num_waiting) == (256, num_waiting)
    return scheduler


def timed_step(scheduler: Scheduler) -> float:
    start = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter()
    result = answer(plan)
    resumed = time.perf_counter()
    scheduler.commit(result)
    assert len(plan.segments) == 256
    return planned - start + time.perf_counter() - resumed


def test_a_step_of_256_rows_is_short_and_no_longer_with_50000_waiting_than_with_50():
    few, many = decoding(50), decoding(50_000)
    best = [float("inf"), float("inf")]
    for _ in range(150):
        for i, scheduler in enumerate((few, many)):
            best[i] = min(best[i], timed_step(scheduler))
    assert best[0] < 0.002, f"{best[0] * 1e6:.0f} µs"
    assert best[1] < 1.25 * best[0], f"{best[1] * 1e6:.0f} µs with 50,000 waiting, {best[0] * 1e6:.0f} with 50"


def test_an_admission_among_50000_waiting_takes_no_longer_than_among_50():
    took = []
    for num_waiting in (50, 50_000):
        scheduler = decoding(num_waiting)
        best = float("inf")
        for victim in range(40):
            scheduler.abort(victim)
            best = min(best, timed_step(scheduler))
        took.append(best)
    assert took[1] < 1.25 * took[0], took
