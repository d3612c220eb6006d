"""The state machine is worth its time only if it finds faults: here each is planted by hand, by one small edit of the
scheduler's source, and must be found."""

from __future__ import annotations
import __future__

import inspect
import logging
import re
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

import pytest
from tests.schedule import test_machine

from headrace.schedule import commit
from headrace.schedule.cache_manager import CacheManager
from headrace.schedule.draft import PlanDraft
from headrace.schedule.pool import BlockPool
from headrace.schedule.roster import Roster
from headrace.schedule.scheduler import Scheduler

MAX_EXAMPLES = 1_000
STEPS = (60, 61, 62, 63)
"""What is looked at depends on which modules are loaded: where one length of a run comes upon an accident of the edit
first, the next looks elsewhere."""
SOUND_EXAMPLES = 100


class Edit(NamedTuple):
    """One line of a function (or of a class's method) says something else."""

    owner: Any
    function: str
    old: str
    new: str


class Fault(NamedTuple):
    """`finding` is a pattern for what the machine says: the invariants that break, not an accident of the edit."""

    name: str
    finding: str
    edits: tuple[Edit, ...]


FAULTS = (
    Fault("refcount skipped", "I1|I27|freed twice", (Edit(BlockPool, "share", "self.refs[block_id] += 1", "pass"),)),
    Fault(
        "stale epoch accepted",
        "I5|I12|I16|I19|I23|I24",
        (Edit(Scheduler, "_commit_segment", "seq is None or seq.epoch != segment.epoch", "seq is None"),),
    ),
    Fault("gate ignored", "I11|I12", (Edit(Scheduler, "add", "elif request.gates:", "elif False:"),)),
    Fault("second gate ignored", "I11|I12", (Edit(Roster, "open_gate", "if not seq.gates:", "if True:"),)),
    Fault("wrong slot", "I9", (Edit(Roster, "run", "self.free_rows.pop()", "self.free_rows[-1]"),)),
    Fault(
        "wrong block", "I4|I27", (Edit(PlanDraft, "admit", "tuple(seq.block_ids)", "tuple(seq.block_ids[::-1])"),)
    ),
    Fault("lost sequence", "I11|does not exist", (Edit(Roster, "send_back", "self.wait(seq, where)", "pass"),)),
    Fault(
        "published too early",
        "I27|I6",
        (Edit(CacheManager, "publish", "min(seq.num_computed, len(tokens))", "len(tokens)"),),
    ),
    Fault(
        "freed twice",
        "freed twice",
        (Edit(CacheManager, "release", "self.pool.drop(seq.block_ids)", "self.pool.drop(seq.block_ids * 2)"),),
    ),
    Fault(
        "end looked for after the last token only",
        "I16|I18|I23|I24",
        (Edit(commit, "_append", "if (end", "if taken == len(row.token_ids) and (end"),),
    ),
    Fault(
        "rejected drafts stay computed",
        "I16|does not exist",
        (Edit(commit, "_append", "seq.num_computed -= segment.num_drafts - row.num_accepted", "pass"),),
    ),
)


@pytest.fixture(autouse=True)
def quiet_and_uncounted(monkeypatch: pytest.MonkeyPatch):
    """What is found here must not count as events of the machine's own test."""
    monkeypatch.setattr(test_machine, "COUNTS", dict.fromkeys(test_machine.COUNTS, 0))
    monkeypatch.setattr(test_machine, "SHRINKS", False)
    level = logging.getLogger("headrace").level
    yield
    logging.getLogger("headrace").setLevel(level)


def plant(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Compiles a function again from its edited source, in the place of the one that is there."""
    source = textwrap.dedent(inspect.getsource(getattr(edit.owner, edit.function)))
    assert source.count(edit.old) == 1, f"{edit.function} does not say {edit.old!r} once"
    code = compile(source.replace(edit.old, edit.new), "planted", "exec", __future__.annotations.compiler_flag)
    made: dict[str, FunctionType] = {}
    exec(code, vars(sys.modules[getattr(edit.owner, "__module__", edit.owner.__name__)]), made)
    monkeypatch.setattr(edit.owner, edit.function, made[edit.function])


def said(error: BaseException | None) -> str:
    """What an error says, and those before it: after a failed check the machine still runs to its end."""
    return "" if error is None else f"{error!r} {said(error.__context__)}"


def what_the_machine_says() -> Iterator[str]:
    """What an example found, by runs of each length; nothing where none of MAX_EXAMPLES found anything."""
    for steps in STEPS:
        try:
            test_machine.run_machine(MAX_EXAMPLES, steps)
        except Exception as error:
            yield said(error)


@pytest.mark.slow
def test_the_machine_finds_nothing_in_the_scheduler_as_it_is():
    test_machine.run_machine(SOUND_EXAMPLES)
    assert test_machine.COUNTS["events"] > SOUND_EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_machine_finds_a_planted_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch):
    for edit in fault.edits:
        plant(monkeypatch, edit)
    found = []
    for text in what_the_machine_says():
        found.append(text)
        if re.search(rf"\b({fault.finding})\b", text):
            return
    pytest.fail(f"{fault.finding} is not among {found}")
