"""The page on a request's life says what the code does: labels and ends are read from it, and no text is missing."""

import re
from pathlib import Path

import pytest
from tests.schedule.harness import Harness
from tools import gen_docs, labels

from headrace.schedule.sequence import Status
from headrace.words.outputs import FinishReason, Move

SCHEDULE = gen_docs.ROOT / "src" / "headrace" / "schedule"

SOURCE = """
class Books:
    def wait(self, seq, where):
        seq.move(Status.WAITING, self.clock, where)

    def send_back(self, seq, where):
        self.wait(seq, where)

    def finish(self, seq, finish, where):
        seq.move(Status.FINISHED, self.clock, where)

class Desk:
    def add(self, seq, gate):
        if seq.is_bad:
            self.books.finish(seq, Finish(FinishReason.FAILED, None, "not a label"), "add: refused")
        else:
            self.books.send_back(seq, f"gate ready: {gate}")

    def expire(self, seq):
        finish = Finish(FinishReason.TIMED_OUT if seq.is_late else reason_for(seq))
        if seq.is_odd:
            finish = Finish(reason_for(seq))
        self.books.finish(seq, finish, "deadline")

def reason_for(seq):
    return FinishReason.MEDIA_FAILED if seq.has_image else FinishReason.FAILED

def judge(seq):
    return Finish(FinishReason.STOPPED), "commit: stop"

def outcome(seq):
    finish = Finish(FinishReason.LENGTH_CAPPED)
    return Outcome(finish=finish, where="commit: length")
"""


def read(root: Path, source: str) -> labels.Functions:
    folder = root / "schedule"
    folder.mkdir()
    (folder / "a.py").write_text(source)
    return labels.read_functions(folder)


def test_labels_are_found_through_functions_that_hand_them_on(tmp_path):
    found = {(label.status, label.text, label.place.function) for label in labels.find_labels(read(tmp_path, SOURCE))}
    assert found == {
        ("FINISHED", "add: refused", "Desk.add"),
        ("WAITING", "gate ready: {gate}", "Desk.add"),
        ("FINISHED", "deadline", "Desk.expire"),
        ("FINISHED", "commit: stop", "judge"),
        ("FINISHED", "commit: length", "outcome"),
    }


def test_each_end_has_the_label_that_goes_with_it_and_reasons_asked_of_a_function_are_followed(tmp_path):
    found = {(end.reason, end.text, end.place.function) for end in labels.find_ends(read(tmp_path, SOURCE))}
    assert found == {
        ("FAILED", "add: refused", "Desk.add"),
        ("TIMED_OUT", "deadline", "Desk.expire"),
        ("MEDIA_FAILED", "deadline", "Desk.expire"),
        ("FAILED", "deadline", "Desk.expire"),
        ("STOPPED", "commit: stop", "judge"),
        ("LENGTH_CAPPED", "commit: length", "outcome"),
    }


@pytest.mark.parametrize("body", ["x = Finish(FinishReason.FAILED)", "seq.finish(Finish(unknown), where='x')"])
def test_an_end_without_a_label_or_a_reason_is_an_error(tmp_path, body):
    with pytest.raises(ValueError, match="no reason or no label"):
        labels.find_ends(read(tmp_path, f"def f(seq, unknown):\n    {body}\n"))


def timelines_of_a_lively_day() -> list[Move]:
    """What is noted when requests are blocked, preempted, aborted, refused, late, failed and finished."""
    harness = Harness(num_blocks=6, max_num_batched_tokens=16)
    harness.add(range(8), max_tokens=10, ignore_eos=True)
    harness.add(range(8), max_tokens=10, ignore_eos=True)
    late = harness.add([5], queue_timeout_s=1.0, gates=("image:0",))
    broken, gated = (harness.add([n], gates=("image:0",)) for n in (6, 7))
    harness.add(range(63))
    harness.scheduler.gate_fail(broken, "image:0", "no image")
    harness.step()
    harness.clock.now += 5
    harness.scheduler.gate_ready(gated, "image:0")
    aborted = harness.add([8])
    harness.scheduler.abort(aborted)
    harness.run()
    assert harness.record(late).reason is FinishReason.TIMED_OUT
    return [move for record in harness.records.values() for move in record.events[-1].timeline]


def test_a_real_run_shows_only_labels_of_the_page_with_the_status_it_gives_them():
    found = labels.find_labels(labels.read_functions(SCHEDULE))
    moves = timelines_of_a_lively_day()
    assert {move.target for move in moves} == {status.value for status in Status}
    for move in moves:
        patterns = [re.escape(label.text) for label in found if Status[label.status].value == move.target]
        assert any(re.fullmatch(re.sub(r"\\\{.*?\\\}", ".+", pattern), move.where) for pattern in patterns), move


def test_a_reason_is_set_by_the_scheduler_alone():
    package = SCHEDULE.parent
    setting = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if SCHEDULE not in path.parents
        and re.search(r"\bFinish\(", path.read_text("utf-8").replace("class Finish(", ""))
    ]
    assert setting == []


def test_a_member_without_a_text_and_a_text_without_a_member_are_errors():
    gen_docs.require_texts("status", ["a"], ["a"])
    with pytest.raises(ValueError, match="b"):
        gen_docs.require_texts("status", ["a"], ["a", "b"])
    with pytest.raises(ValueError, match="b"):
        gen_docs.require_texts("status", ["a", "b"], ["a"])


def test_the_page_names_every_reason_and_every_status():
    page = gen_docs.page()
    for reason in FinishReason:
        assert f"### `{reason.value}`\n" in page
    for status in Status:
        assert f"| `{status.value}` |" in page
