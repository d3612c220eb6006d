"""`usage` of an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.server.generation import Generation


def usage_of(counts: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """From (prompt tokens, output tokens, cached tokens) of each prompt."""
    rows = list(counts)
    num_prompt = sum(row[0] for row in rows)
    num_output = sum(row[1] for row in rows)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(row[2] for row in rows)},
    }


def usage_now(generation: Generation) -> dict[str, Any]:
    """As far as the tokens have come."""
    states = [stream.state for stream in generation.streams]
    return usage_of((len(s.request.prompt_ids), s.num_output_tokens, s.num_cached_tokens) for s in states)
