"""Log-probabilities in OpenAI's two shapes, with the true bytes of every token."""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.words.outputs import Logprob, PositionLogprobs

NEVER = -9999.0
"""How JSON says minus infinity."""


def number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER


def token_text(entry: Logprob) -> str:
    """A token's text; one that is not whole UTF-8 as OpenAI's completions write it: `bytes:\\xf0\\x9f`."""
    raw = entry.bytes or b""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_entry(entry: Logprob) -> dict[str, Any]:
    return {"token": entry.decoded_token, "logprob": number(entry.logprob), "bytes": list(entry.bytes or b"")}


def chat_logprobs(positions: Sequence[PositionLogprobs], num_top: int) -> dict[str, Any]:
    """`logprobs` of a chat choice: each emitted token with the `num_top` most likely ones."""
    content = []
    for position in positions:
        emitted = next(iter(position.values()))
        content.append({**chat_entry(emitted), "top_logprobs": [chat_entry(each) for each in _top(position, num_top)]})
    return {"content": content, "refusal": None}


def _top(position: PositionLogprobs, num_top: int) -> list[Logprob]:
    ranked = [entry for entry in position.values() if entry.rank is not None and entry.rank <= num_top]
    return sorted(ranked, key=lambda entry: entry.rank or 0)


class TextOffsets:
    """Where each token's text begins in the text of a choice, in characters."""

    def __init__(self, start: int = 0) -> None:
        self._position = start
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: bytes) -> int:
        start = self._position
        self._position += len(self._utf8.decode(token))
        return start


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    token_ids: Sequence[int],
    num_top: int,
    offsets: TextOffsets,
    texts: Any,
) -> dict[str, Any]:
    """`logprobs` of a completion choice; a position that nothing stands before has null. `texts` gives token bytes."""
    shaped: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for position, token_id in zip(positions, token_ids, strict=True):
        emitted = Logprob(0.0, None, None, texts(token_id)) if position is None else next(iter(position.values()))
        shaped["text_offset"].append(offsets.next(emitted.bytes or b""))
        shaped["tokens"].append(token_text(emitted))
        shaped["token_logprobs"].append(None if position is None else number(emitted.logprob))
        shaped["top_logprobs"].append(None if position is None else _top_texts(position, num_top))
    return shaped


def _top_texts(position: PositionLogprobs, num_top: int) -> dict[str, float]:
    """The most likely tokens by text, and the emitted one where it is none of them, as OpenAI has it."""
    emitted = next(iter(position.values()))
    found = {token_text(entry): number(entry.logprob) for entry in _top(position, num_top)}
    found.setdefault(token_text(emitted), number(emitted.logprob))
    return found


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[Mapping[str, Any] | None] | None:
    """vLLM's shape: for each prompt token a dict by token id, null for the first."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": number(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in positions
    ]
