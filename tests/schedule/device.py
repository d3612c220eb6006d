"""A device for scheduler tests whose KV cache stores (id, position): a query that sees a foreign history fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.words.outputs import TokenLogprobs
from headrace.words.plan import NULL_BLOCK, Admission, Emits, RowResult, Segment, StepPlan, StepResult

EOS = 0
VOCAB = 13


def digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def next_token(history: Seq[int], seed: int = 0, choice: int = 0) -> int:
    """The toy model: a token that depends on the whole history and, as a keyed draw does, on seed and choice."""
    return digest(tuple(history), seed, choice) % VOCAB


def draft_token(history: Seq[int], seed: int, choice: int) -> int:
    """A drafter that is right about half of the time."""
    right = next_token(history, seed, choice)
    return right if digest("draft", tuple(history)) % 2 else (right + 1) % VOCAB


def score(history: Seq[int], token: int) -> float:
    """The toy model's log-probability of a token after a history."""
    return -float(digest("score", tuple(history), token) % 1_000) / 100


class Slot(NamedTuple):
    token: int
    position: int
    is_draft: bool


@dataclass
class Row:
    """The worker's side of one row."""

    admission: Admission
    tokens: list[int]
    block_ids: list[int] = field(default_factory=list)
    hit_tokens: int | None = None


class DeviceFault(Exception):
    """Raised where a test asks for it."""


class FakeDevice:
    """Runs plans in order. `fail_forward` and `fail_result` make the next step raise; `poisoned` sequences give NaN.
    A step that `breaks` says so of, or that holds a `cursed` sequence, raises whenever it is tried.

    With `overlap` a sequence may lose its blocks before anybody knows of its NaN; attention's masks guard these.
    """

    def __init__(self, num_blocks: int, block_size: int, overlap: bool = False) -> None:
        self.block_size = block_size
        self.kv: list[list[Slot | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.unclean: set[int] = set()
        self.knows_nan_late = overlap
        self.rows: dict[int, Row] = {}
        self.fail_forward = False
        self.fail_result = False
        self.poisoned: set[int] = set()
        self.cursed: set[int] = set()
        self.breaks: Callable[[StepPlan], bool] = lambda plan: False
        self.num_tokens = 0
        self.steps: list[StepPlan] = []
        self._contexts: dict[tuple[int, int], list[list[int]]] = {}

    def forward(self, plan: StepPlan) -> None:
        if self.fail_forward:
            self.fail_forward = False
            raise DeviceFault("forward")
        if self.breaks(plan) or any(segment.seq_id in self.cursed for segment in plan.segments):
            raise DeviceFault("cursed")
        self.steps.append(plan)
        for block in plan.zero_blocks:
            self.kv[block] = [None] * self.block_size
            self.unclean.discard(block)
        for row in plan.retired_rows:
            self.rows.pop(row, None)
        for admission in plan.admissions:
            assert admission.row not in self.rows, "I9: a row was given away while it was taken"
            self.rows[admission.row] = Row(admission, list(admission.token_ids), list(admission.block_ids))
        for growth in plan.growths:
            self.rows[growth.row].block_ids.extend(growth.block_ids)
            self._hand_out(growth.block_ids)
        self._begin_rows(plan)
        self._contexts = {}
        for segment in plan.segments:
            self._write(segment)
        for segment in plan.segments:
            self._contexts[segment.seq_id, segment.epoch] = self._read(segment)

    def _begin_rows(self, plan: StepPlan) -> None:
        starts = {segment.row: segment.start for segment in plan.segments}
        for admission in plan.admissions:
            row = self.rows[admission.row]
            row.hit_tokens = starts[admission.row]
            assert row.hit_tokens % self.block_size == 0
            num_hits = row.hit_tokens // self.block_size
            assert not self.unclean.intersection(row.block_ids[:num_hits]), "a block that holds NaN was hit"
            self._hand_out(row.block_ids[num_hits:])

    def _hand_out(self, block_ids: Seq[int]) -> None:
        for block in block_ids:
            assert block != NULL_BLOCK, "I2: the null block was handed out"
            assert block not in self.unclean, "a block that held NaN was handed out without being zeroed"
            self.kv[block] = [None] * self.block_size

    def _write(self, segment: Segment) -> None:
        row = self.rows[segment.row]
        assert row.admission.seq_id == segment.seq_id, "I9: a segment on a foreign row"
        assert row.admission.epoch == segment.epoch, "I9: a segment on a row of another epoch"
        assert row.hit_tokens is not None and segment.start >= row.hit_tokens, "I4: a shared block is written"
        known = segment.length - segment.num_drafts
        assert segment.start + known <= len(row.tokens), "a token that does not exist yet is computed"
        history = row.tokens[: segment.start + known]
        for _ in range(segment.num_drafts):
            history.append(draft_token(history, row.admission.seed, row.admission.choice))
        for position in range(segment.start, segment.start + segment.length):
            block = row.block_ids[position // self.block_size]
            old = self.kv[block][position % self.block_size]
            assert old is None or old.is_draft, f"I4: position {position} of block {block} is written twice"
            is_draft = position >= segment.start + known
            self.kv[block][position % self.block_size] = Slot(history[position], position, is_draft)
        self.num_tokens += segment.length

    def _read(self, segment: Segment) -> list[list[int]]:
        """I27: each query sees exactly positions 0 … p of its own ids."""
        row = self.rows[segment.row]
        history = []
        for position in range(segment.start + segment.length):
            slot = self.kv[row.block_ids[position // self.block_size]][position % self.block_size]
            assert slot is not None, f"I27: position {position} was never written"
            assert slot.position == position, f"I27: position {position} holds position {slot.position}"
            known = segment.start + segment.length - segment.num_drafts
            assert position >= known or slot.token == row.tokens[position], "I27: a foreign token is seen"
            history.append(slot.token)
        return [history[: p + 1] for p in range(segment.start, segment.start + segment.length)]

    def sample(self, plan: StepPlan) -> StepResult:
        if self.fail_result:
            self.fail_result = False
            raise DeviceFault("result")
        results = [self._sample(segment) for segment in plan.segments if segment.emits is not Emits.NOTHING]
        return StepResult(plan.step, tuple(reversed(results)))

    def _sample(self, segment: Segment) -> RowResult:
        row, contexts = self.rows[segment.row], self._contexts[segment.seq_id, segment.epoch]
        result = RowResult(segment.seq_id, segment.epoch)
        if segment.seq_id in self.poisoned and segment.start + segment.length >= len(row.tokens):
            if not self.knows_nan_late:
                self.unclean.update(row.block_ids[row.hit_tokens // self.block_size :])
            row.tokens.append(EOS)  # a step that is planned already reads some token here; its result is void
            return result._replace(failure="the logits are not finite")
        if segment.emits is Emits.HIDDEN:
            mean = row.admission.pooling.pooling == "mean"
            return result._replace(hidden=(float(sum(c[-1] for c in contexts) if mean else sum(contexts[-1])),))
        if segment.emits is Emits.LOGPROBS:
            result = result._replace(prompt_logprobs=self._score(segment, contexts))
        if segment.start + segment.length - segment.num_drafts < len(row.tokens):
            return result
        return self._draw(segment, row, contexts, result)

    def _score(self, segment: Segment, contexts: list[list[int]]) -> tuple[TokenLogprobs, ...]:
        prompt = self.rows[segment.row].tokens[: self.rows[segment.row].admission.num_prompt_tokens]
        following = prompt[segment.start + 1 : segment.start + segment.length + 1]
        return tuple(TokenLogprobs((t,), (score(c, t),), 1) for c, t in zip(contexts, following, strict=False))

    def _draw(self, segment: Segment, row: Row, contexts: list[list[int]], result: RowResult) -> RowResult:
        """Verification: drafts are accepted while they are what would have been drawn."""
        admission, tokens, logprobs = row.admission, [], []
        for j, context in enumerate(contexts[segment.length - segment.num_drafts - 1 :]):
            token = next_token(context, admission.seed, admission.choice)
            tokens.append(token)
            logprobs.append(TokenLogprobs((token,), (score(context, token),), 1))
            follows = contexts[segment.length - segment.num_drafts + j][-1] if j < segment.num_drafts else None
            if follows != token:
                break
        row.tokens.extend(tokens)
        return result._replace(token_ids=tuple(tokens), logprobs=tuple(logprobs), num_accepted=len(tokens) - 1)
