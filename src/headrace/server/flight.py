"""The flight recorder: the last steps of the engine in numbers, kept whatever happens."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from headrace.engine.core import EngineCore
from headrace.engine.live import Prefill, is_alive, is_chunk, prefills
from headrace.words.plan import Executor, PendingStep, StepPlan

MOST_CHUNKS = 256
"""That are kept of a request."""


class StepRecord(NamedTuple):
    """One step: monotonic seconds when it began, its plan in counts, and seconds until its tokens were drawn."""

    step: int
    began_s: float
    num_segments: int
    num_tokens: int
    num_prefills: int
    """Segments of more than one token that are no verification."""
    num_drafts: int
    num_admissions: int
    num_retired: int
    num_new_blocks: int
    took_s: float | None
    """None: it has not come back, or it raised."""


class Chunk(NamedTuple):
    """Positions [start, start + length) of one continuation's prompt (or of what a preemption lost), computed in one
    step: monotonic seconds when it began, and seconds it took."""

    choice: int
    start: int
    length: int
    began_s: float
    took_s: float


class FlightRecorder:
    """Written by the core's thread, read by the event loop."""

    def __init__(self, num_steps: int) -> None:
        self._records: deque[StepRecord] = deque(maxlen=num_steps)
        self._open: StepRecord | None = None
        self._core: EngineCore | None = None
        self._prefills: list[Prefill] = []
        self._chunks: dict[int, list[Chunk]] = {}
        self.token_counts: deque[int] = deque(maxlen=1 << 16)
        """Tokens of each step since somebody took them."""

    def attach(self, core: EngineCore) -> None:
        """Before the core starts."""
        core.executor = _Recorded(core.executor, self)
        self._core = core

    def begin(self, plan: StepPlan) -> None:
        self._prefills = list(prefills(self._core, plan)) if self._core else []
        self._open = StepRecord(
            step=plan.step,
            began_s=time.monotonic(),
            num_segments=len(plan.segments),
            num_tokens=plan.num_tokens,
            num_prefills=sum(1 for s in plan.segments if is_chunk(s)),
            num_drafts=sum(s.num_drafts for s in plan.segments),
            num_admissions=len(plan.admissions),
            num_retired=len(plan.retired_rows),
            num_new_blocks=_num_blocks(plan),
            took_s=None,
        )

    def end(self, has_failed: bool = False) -> None:
        record, self._open = self._open, None
        if record is not None:
            took_s = None if has_failed else time.monotonic() - record.began_s
            self._records.append(record._replace(took_s=took_s))
            self.token_counts.append(record.num_tokens)
            if took_s is not None:
                self._note_chunks(record.began_s, took_s)

    def chunks(self, request_id: int) -> list[Chunk]:
        """Those of an open request, the first MOST_CHUNKS."""
        return list(self._chunks.get(request_id, ()))

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._chunks.pop(request_id, None)

    def _note_chunks(self, began_s: float, took_s: float) -> None:
        """Whoever ended meanwhile has been forgotten already."""
        for request_id, choice, segment in self._prefills:
            if self._core is not None and is_alive(self._core, segment.seq_id):
                known = self._chunks.setdefault(request_id, [])
                if len(known) < MOST_CHUNKS:
                    known.append(Chunk(choice, segment.start, segment.length, began_s, took_s))

    def read(self) -> list[dict[str, Any]]:
        """The oldest first; times as seconds before now. The last one may not be over."""
        running = self._open
        records = [*self._records, *([running] if running else [])]
        now_s = time.monotonic()
        return [{**r._asdict(), "began_s": round(r.began_s - now_s, 6)} for r in records]


def _num_blocks(plan: StepPlan) -> int:
    granted = sum(len(admission.block_ids) for admission in plan.admissions)
    return granted + sum(len(growth.block_ids) for growth in plan.growths)


class _Recorded:
    """An executor, each of its steps noted."""

    def __init__(self, inner: Executor, recorder: FlightRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def forward(self, plan: StepPlan) -> None:
        self._recorder.begin(plan)
        try:
            self._inner.forward(plan)
        except BaseException:
            self._recorder.end(has_failed=True)
            raise

    def sample(self, plan: StepPlan, masks: object | None = None) -> PendingStep:
        try:
            pending = self._inner.sample(plan, masks)
        except BaseException:
            self._recorder.end(has_failed=True)
            raise
        self._recorder.end()
        return pending

    def close(self) -> None:
        self._inner.close()
