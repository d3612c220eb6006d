"""What may be said to a running core: frozen messages that enter by its front door."""

from __future__ import annotations

from typing import NamedTuple

from headrace.words.outputs import FinishReason
from headrace.words.params import Request


class Add(NamedTuple):
    request: Request


class Abort(NamedTuple):
    request_id: int
    detail: str | None = None


class GateReady(NamedTuple):
    request_id: int
    gate: str


class GateFailed(NamedTuple):
    request_id: int
    gate: str
    detail: str
    reason: FinishReason | None = None
    """None: what the gate's kind says (image, grammar)."""


Message = Add | Abort | GateReady | GateFailed
