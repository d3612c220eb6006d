"""Pure decisions: who is kept, who must go, and when prefill may be tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from headrace.schedule.sequence import Sequence
from headrace.words.config import SchedulerConfig, VictimPolicy
from headrace.words.outputs import FinishReason
from headrace.words.params import Request


def keep_order(running: Iterable[Sequence], policy: VictimPolicy) -> list[Sequence]:
    """Running sequences, the most worth keeping first; the victim is always the last.

    The first admitted leads whatever its priority, so that somebody always completes. Then lower priority values,
    then the earlier admitted (`latest` is the victim) or those with fewer outputs (`most_output` is the victim).
    `running` comes in order of admission. Extending in this order means that a victim never has a segment in the plan.
    """
    order = list(running)
    if len(order) < 2:
        return order
    rest = order[1:]
    if policy == "most_output":
        rest.sort(key=attrgetter("num_output_tokens"))
    rest.sort(key=attrgetter("request.priority"))
    return order[:1] + rest


def refusal(request: Request, config: SchedulerConfig, usable_blocks: int, block_size: int) -> str | None:
    """Why a request can never run here, or None. The numbers are in the text."""
    length = len(request.prompt_ids)
    needed = length + 1 if request.max_tokens else length
    if needed > config.max_model_len:
        return (
            f"the prompt has {length} tokens and max_model_len is {config.max_model_len}; "
            f"shorten it to {config.max_model_len - (needed - length)} or raise max_model_len"
        )
    blocks = -(-needed // block_size)
    if blocks > usable_blocks:
        return (
            f"a prompt of {length} tokens needs {blocks} cache blocks of {block_size} tokens, {usable_blocks} exist; "
            "shorten it or raise kv_cache_memory_bytes"
        )
    for span in request.spans:
        if span.atomic and span.length > config.max_num_batched_tokens:
            return (
                f"a media item takes {span.length} tokens in one step and max_num_batched_tokens is "
                f"{config.max_num_batched_tokens}; use a smaller item or raise it"
            )
    return None


def gate_reason(gate: str) -> FinishReason:
    """The reason for the failure of a gate, by the gate's kind (the word before a colon)."""
    kinds = {"image": FinishReason.MEDIA_FAILED, "grammar": FinishReason.GRAMMAR_FAILED}
    return kinds.get(gate.split(":")[0], FinishReason.FAILED)


def chunk_length(seq: Sequence, budget: int) -> int:
    """Positions of `seq` that a step with `budget` tokens left computes; an atomic span goes whole or not at all."""
    start = seq.num_computed
    end = start + min(budget, seq.num_uncomputed)
    for span in seq.request.spans:
        if span.atomic and start < span.start + span.length and span.start < end < span.start + span.length:
            end = span.start
    return max(0, end - start)


@dataclass(slots=True)
class AttemptPoints:
    """When the `attempt` policy tries prefill: nothing decodes, enough waits, the wait is long in steps or seconds, or
    a prompt is half done. Both bounds count from the moment when somebody waits and no attempt is made."""

    max_steps: int
    max_wait_s: float
    target_tokens: int
    steps: int = 0
    since_s: float | None = None

    def is_due(
        self, now_s: float, num_waiting: int, waiting_tokens: int, num_decoding: int, num_prefilling: int
    ) -> bool:
        """Decides for this step and remembers the decision."""
        if num_waiting and self.since_s is None:
            self.since_s = now_s
        waited_s = 0.0 if self.since_s is None else now_s - self.since_s
        due = (
            num_decoding == 0
            or num_prefilling > 0
            or waiting_tokens >= self.target_tokens
            or waited_s >= self.max_wait_s
            or self.steps >= self.max_steps
        )
        if due or not num_waiting:
            self.steps, self.since_s = 0, None
        else:
            self.steps += 1
        return due
