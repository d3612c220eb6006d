"""What one segment's result means for its sequence: tokens taken one by one, each checked for the end."""

from __future__ import annotations

from headrace.schedule.sequence import Sequence
from headrace.words.config import SchedulerConfig
from headrace.words.outputs import Finish, FinishReason
from headrace.words.plan import Emits, RowResult, Segment

NOTHING, LOGPROBS = Emits.NOTHING, Emits.LOGPROBS


End = tuple[Finish, str]
"""How a sequence ends, and the code path that says so."""
Outcome = tuple[RowResult, End | None]
"""What of a row's result is to be told, and the end of its sequence if it ends."""
NOTHING_TOLD = RowResult(0, 0)


def judge(seq: Sequence, segment: Segment, row: RowResult | None, config: SchedulerConfig) -> Outcome | None:
    """Applies a result of the current epoch to its sequence. None when nobody has to hear of it."""
    if row is None:
        if segment.emits is not NOTHING:
            return _failed("the worker gave no result for this request")
        row = NOTHING_TOLD
    elif row.failure is not None:
        return _failed(row.failure)
    ends_known = segment.start + segment.length - segment.num_drafts >= len(seq.tokens)
    if seq.request.pooling is not None:
        return _pool(seq, segment, row, ends_known)
    if seq.is_scoring:
        row = _score(seq, segment, row)
    if not ends_known:
        return (row, None) if row.prompt_logprobs else None
    if not seq.max_tokens:
        told = row._replace(token_ids=(), logprobs=())
        return told, (Finish(FinishReason.LENGTH_CAPPED), "commit: prompt scored")
    return _append(seq, segment, row, config)


def _failed(detail: str) -> Outcome:
    told = NOTHING_TOLD._replace(failure=detail)
    return told, (Finish(FinishReason.FAILED, None, detail), "commit: this row failed")


def _pool(seq: Sequence, segment: Segment, row: RowResult, ends_known: bool) -> Outcome | None:
    """Adds a segment's hidden state; the last one ends the request with the vector and no tokens."""
    assert seq.request.pooling is not None
    if segment.emits is NOTHING:
        return None
    assert row.hidden is not None
    sums = seq.pooled or [0.0] * len(row.hidden)
    seq.pooled = [a + b for a, b in zip(sums, row.hidden, strict=True)]
    if not ends_known:
        return None
    count = len(seq.tokens) if seq.request.pooling.pooling == "mean" else 1
    told = row._replace(hidden=tuple(value / count for value in seq.pooled))
    return told, (Finish(FinishReason.LENGTH_CAPPED), "commit: prompt pooled")


def _score(seq: Sequence, segment: Segment, row: RowResult) -> RowResult:
    """Only new prompt logprobs: what a preempted sequence computes again is not told again."""
    if segment.emits is not LOGPROBS:
        return row
    new = row.prompt_logprobs[len(seq.prompt_logprobs) - segment.start :]
    seq.prompt_logprobs.extend(new)
    return row._replace(prompt_logprobs=new)


def _append(seq: Sequence, segment: Segment, row: RowResult, config: SchedulerConfig) -> Outcome:
    """Accepted drafts, then the drawn token, one by one; what follows an end is dropped."""
    assert 0 < len(row.token_ids) == row.num_accepted + 1 <= segment.num_drafts + 1
    seq.pending -= 1 + segment.num_drafts
    seq.num_computed -= segment.num_drafts - row.num_accepted
    taken = 0
    for token_id in row.token_ids:
        seq.tokens.append(token_id)
        taken += 1
        if (end := _end(seq, token_id, config)) is not None:
            return row._replace(token_ids=row.token_ids[:taken], logprobs=row.logprobs[:taken]), end
    return row, None


def _end(seq: Sequence, token_id: int, config: SchedulerConfig) -> End | None:
    """Whether the token just appended ends the sequence; a stop wins over the length on the same token."""
    sampling = seq.request.sampling
    assert sampling is not None
    num_outputs = len(seq.tokens) - seq.num_prompt_tokens
    may_stop = num_outputs >= sampling.min_tokens
    if may_stop and not sampling.ignore_eos and token_id in config.eos_token_ids:
        return Finish(FinishReason.STOPPED), "commit: end-of-sequence token"
    if may_stop and token_id in sampling.stop_token_ids:
        return Finish(FinishReason.STOPPED, token_id), "commit: stop token"
    if seq.matcher is not None and (stop := seq.matcher.push(token_id, may_stop)) is not None:
        return Finish(FinishReason.STOPPED, stop), "commit: stop string"
    if num_outputs >= sampling.max_tokens:
        detail = f"max_tokens ({sampling.max_tokens}) reached"
        return Finish(FinishReason.LENGTH_CAPPED, None, detail), "commit: max_tokens"
    if len(seq.tokens) >= config.max_model_len:
        detail = f"max_model_len ({config.max_model_len}) reached"
        return Finish(FinishReason.LENGTH_CAPPED, None, detail), "commit: max_model_len"
    return None
