"""Who guesses tokens ahead. Verification is exact: a guess can save a step, never change a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.ops.base import Ints
from headrace.words.plan import Segment


class Drafter(Protocol):
    def propose(self, segment: Segment, text: Ints) -> Sequence[int]:
        """Exactly `segment.num_drafts` token ids that may follow `text` [known tokens], each within the vocabulary."""


class NoDrafter:
    """For plans without drafts."""

    def propose(self, segment: Segment, text: Ints) -> Sequence[int]:
        raise AssertionError("a plan asks for drafts, and nobody drafts")
