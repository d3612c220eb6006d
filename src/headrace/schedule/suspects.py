"""Rows of failed steps: tried again in groups that are halved until the row that makes steps fail fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from headrace.schedule.sequence import Sequence
from headrace.words.plan import Segment

MAX_FAILURES = 32
"""Failed steps that one row survives. Halving 16,384 rows takes 15."""


class Suspects:
    """A row is suspected from a failed step until it has computed the positions that the step was to compute.

    Rows that failed together for the first time are one group. When a group fails again it is halved; a row that fails
    again and alone is the culprit. A step holds rows of one group, or rows that nobody suspects, so that a culprit
    takes nobody along. Such steps alternate, so that neither waits for the other's end.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Sequence] = {}
        self._last_group = 0
        self._is_trial = False

    def blame(self, failed: Seq[tuple[Sequence, Segment]]) -> list[Sequence]:
        """Suspects the live rows of a failed step; gives those that end: the culprit, or who failed too often."""
        is_again = any(seq.num_failures for seq, _ in failed)
        for seq, segment in failed:
            seq.num_failures += 1
            seq.suspect_until = segment.start + segment.length - segment.num_drafts
            self._rows[seq.seq_id] = seq
        if is_again and len(failed) == 1:
            return [failed[0][0]]
        rows = sorted((seq for seq, _ in failed), key=lambda seq: seq.seq_id)
        half = len(rows) // 2 if is_again else 0
        self._form_group(rows[:half])
        self._form_group(rows[half:])
        return [seq for seq in rows if seq.num_failures >= MAX_FAILURES]

    def _form_group(self, rows: Iterable[Sequence]) -> None:
        self._last_group += 1
        for seq in rows:
            seq.group = self._last_group

    def acquit(self, seq: Sequence, end: int) -> None:
        """A step computed the positions up to `end` of this row."""
        if seq.group and end >= seq.suspect_until:
            seq.group = 0
            del self._rows[seq.seq_id]

    def turns(
        self, running: Iterable[Sequence], head: Callable[[], Sequence | None], is_repeated: bool
    ) -> tuple[int, ...]:
        """Whose step is next, and whose if they have nothing to compute: a group, or 0 for those whom nobody suspects.

        `head` gives the first of the waiting. A turn is repeated when it was short of blocks that come back for it.
        """
        if not self._rows:
            return (0,)
        self._rows = {seq_id: seq for seq_id, seq in self._rows.items() if seq.finish is None}
        group = max((seq.group for seq in running), default=0)
        if not group and (first := head()) is not None:
            group = first.group
        self._is_trial ^= not is_repeated
        return (group, 0) if self._is_trial else (0, group)

    def members(self, seqs: list[Sequence], group: int) -> list[Sequence]:
        """Those of `seqs` that a step of the group may hold."""
        return [seq for seq in seqs if seq.group == group] if self._rows else seqs
