"""A hook of schemathesis: rules between fields, which JSON Schema cannot say. It compares no two values (min_tokens is
not above max_tokens) and multiplies none (prompts times n fit the queue), and it has no word for the last item of a
list (a message that is continued has text) nor for the number that a name of a field spells (ids of logit_bias are
below the vocabulary's size)."""

from typing import Any

import schemathesis
from tests.engine import tiny

from headrace.cli.serve import MAX_NUM_QUEUED_REQUESTS

COMPLETIONS_MAX_TOKENS = 16


@schemathesis.hook
def filter_body(context: Any, body: Any) -> bool:
    """Whether the body keeps the rules."""
    if not isinstance(body, dict):
        return True
    return all(rule(body) for rule in RULES)


def keeps_lengths(body: dict[str, Any]) -> bool:
    default = COMPLETIONS_MAX_TOKENS if "prompt" in body else None
    most = body.get("max_completion_tokens")
    most = body.get("max_tokens", default) if most is None else most
    return most is None or (body.get("min_tokens") or 0) <= most


def keeps_logprobs(body: dict[str, Any]) -> bool:
    return not body.get("top_logprobs") or bool(body.get("logprobs"))


def keeps_streams(body: dict[str, Any]) -> bool:
    if body.get("stream"):
        return body.get("prompt_logprobs") is None
    return body.get("stream_options") is None


def keeps_continuation(body: dict[str, Any]) -> bool:
    if not body.get("continue_final_message"):
        return True
    content = body["messages"][-1]["content"] if body.get("messages") else ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return bool(text.strip()) and not body.get("add_generation_prompt")


def keeps_best_of(body: dict[str, Any]) -> bool:
    return body.get("best_of") in (None, 1, body.get("n"))


def keeps_ids(body: dict[str, Any]) -> bool:
    return all(int(name) < tiny.CONFIG["vocab_size"] for name in body.get("logit_bias") or ())


def keeps_room(body: dict[str, Any]) -> bool:
    prompts = body.get("prompt")
    is_several = isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list)
    return (len(prompts) if is_several else 1) * (body.get("n") or 1) <= MAX_NUM_QUEUED_REQUESTS


RULES = (keeps_lengths, keeps_logprobs, keeps_streams, keeps_continuation, keeps_best_of, keeps_ids, keeps_room)
