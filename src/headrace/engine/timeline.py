"""A request's life as lines that a person can read."""

from __future__ import annotations

from headrace.engine.output import Output
from headrace.words.outputs import EmbeddingOutput, Move, RequestMetrics

NOWHERE = "new"


def render(output: Output) -> str:
    """Every change of status of every continuation: seconds since the request arrived, what changed, and who did it."""
    if isinstance(output, EmbeddingOutput):
        lines = [f"request {output.request_id}: {len(output.prompt_token_ids)} prompt tokens"]
        return "\n".join([*lines, *_moves(output.timeline, None), _end(output.finish_reason, output.finish_detail)])
    lines = [_heading(output.request_id, len(output.prompt_token_ids), output.num_cached_tokens)]
    arrival_s = output.metrics.arrival_s if output.metrics else None
    for choice in output.outputs:
        if len(output.outputs) > 1:
            lines.append(f"choice {choice.index}")
        lines += _moves(choice.timeline, arrival_s)
        stop = "" if choice.stop_reason is None else f" at {choice.stop_reason!r}"
        what = choice.finish_reason and choice.finish_reason + stop
        lines.append(f"{_end(what, choice.finish_detail)}; {len(choice.token_ids)} tokens, seed {choice.seed}")
        if choice.num_preemptions:
            lines.append(f"  preempted {choice.num_preemptions} times and recomputed")
    return "\n".join(lines + _times(output.metrics))


def _heading(request_id: str, num_prompt_tokens: int, num_cached: int) -> str:
    cached = f", {num_cached} of them from the prefix cache" if num_cached else ""
    return f"request {request_id}: {num_prompt_tokens} prompt tokens{cached}"


def _moves(timeline: tuple[Move, ...], arrival_s: float | None) -> list[str]:
    start_s = arrival_s if arrival_s is not None else timeline[0].time_s if timeline else 0.0
    return [
        f"  {move.time_s - start_s:+10.4f} s  {move.source or NOWHERE:>8} → {move.target:<8}  {move.where}"
        for move in timeline
    ]


def _end(reason: str | None, detail: str | None) -> str:
    return f"  ended: {reason or 'not yet'}" + (f" ({detail})" if detail else "")


def _times(metrics: RequestMetrics | None) -> list[str]:
    if metrics is None:
        return []
    named = {"in the queue": metrics.queue_time_s, "to the first token": metrics.time_to_first_token_s}
    if metrics.finished_s is not None:
        named["in all"] = metrics.finished_s - metrics.arrival_s
    parts = [f"{seconds:.4f} s {name}" for name, seconds in named.items() if seconds is not None]
    return [f"  {', '.join(parts)}"] if parts else []
