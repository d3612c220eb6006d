"""Mixtures of experts: who goes where, and what comes back, added in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Routes(NamedTuple):
    """Each token's experts, best first."""

    ids: torch.Tensor
    """[T, chosen]"""
    weights: torch.Tensor
    """fp32 [T, chosen]"""


def route(logits: torch.Tensor, num_chosen: int, renormalize: bool) -> Routes:
    """fp32 [T, experts] → the highest logits, ties to the lowest id."""
    # Not topk, which leaves the order of equals open.
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    weights = torch.softmax(logits, dim=-1).gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routes(ids, weights)


def combine(x: torch.Tensor, routes: Routes, run: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`run(expert, [N, hidden])` → fp32 [N, hidden] is called once per expert with all of its tokens."""
    num_tokens, num_chosen = routes.ids.shape
    parts = torch.empty(num_tokens, num_chosen, x.shape[1])
    for expert in routes.ids.unique().tolist():
        tokens, ranks = torch.where(routes.ids == expert)
        parts[tokens, ranks] = run(expert, x[tokens])
    total = torch.zeros(num_tokens, x.shape[1])
    for rank in range(num_chosen):
        total += parts[:, rank] * routes.weights[:, rank, None]
    return total.to(x.dtype)
