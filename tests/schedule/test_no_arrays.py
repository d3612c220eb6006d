"""The deciding layer runs where neither torch nor numpy exists."""

import subprocess
import sys

import pytest

LIFE = """
import sys
sys.modules.update(torch=None, numpy=None)
import importlib, pkgutil
import headrace.schedule, headrace.words
for package in (headrace.schedule, headrace.words):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from headrace.schedule.scheduler import Scheduler
from headrace.words.config import SchedulerConfig
from headrace.words.params import Request, Sampling
from headrace.words.plan import CacheLayout, RowResult, StepResult
scheduler = Scheduler(SchedulerConfig(max_model_len=64), CacheLayout(9, 4))
scheduler.add(Request(1, "r", (1, 2, 3), Sampling(max_tokens=3)))
tokens = []
while scheduler.has_unfinished():
    plan = scheduler.schedule()
    rows = tuple(RowResult(segment.seq_id, segment.epoch, (7,)) for segment in plan.segments)
    for event in scheduler.commit(StepResult(plan.step, rows)):
        tokens += event.token_ids
print(tokens, event.finish.reason.value)
"""


@pytest.mark.covers("M1")
def test_a_whole_life_without_torch_and_numpy():
    done = subprocess.run([sys.executable, "-W", "error", "-c", LIFE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[7, 7, 7] length\n"
