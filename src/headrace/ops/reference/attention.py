"""Paged attention in plain torch: short segments together, long ones one by one, K and V read back from the cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from headrace.ops.reference.products import TWO_PART, scores
from headrace.ops.reference.step import Form, Group, PagedCache, Step

NEVER = float("-inf")
MANY = 4
"""Rows from which torch's own attention loses to two batched products."""


def attend_fast(q: torch.Tensor, cache: PagedCache, step: Step, form: Form) -> torch.Tensor:
    """[T, heads, dim] → [T, heads, dim], group by group."""
    groups = step.groups(cache)
    if len(groups) == 1 and isinstance(groups[0].tokens, slice):
        return _attend_group(q, cache, groups[0], form)
    out = torch.empty_like(q)
    for group in groups:
        out[group.tokens] = _attend_group(q, cache, group, form)
    return out


def _attend_group(q: torch.Tensor, cache: PagedCache, group: Group, form: Form) -> torch.Tensor:
    """One group → [B × Q, heads, dim]. Query heads that share a key head lie along a dimension of their own, `fold`, so
    that keys are not copied."""
    keys, values = cache.read(group)
    rows, kv_heads, _, dim = keys.shape
    queries = q[group.tokens].view(rows, group.num_queries, kv_heads, -1, dim)
    is_decode = group.num_queries == 1
    is_batch = rows >= MANY and TWO_PART[q.dtype] if is_decode else rows > 1
    if is_batch or form.soft_cap is not None:
        heads = _by_products(queries, keys, values, group, form)
    elif is_decode:
        heads = _decode(queries, keys, values, group, form)
    else:
        heads = _prompt(queries[0], keys[0], values[0], group, form)
    return heads.reshape(rows * group.num_queries, -1, dim)


def _by_products(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: Group, form: Form) -> torch.Tensor:
    """[B, Q, kv_heads, fold, dim] over [B, kv_heads, places, dim]. Whole pages are multiplied: cut, they are copied."""
    rows, num_queries, kv_heads, fold, dim = q.shape
    places = keys.shape[2]
    flat = q.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, fold * num_queries, dim)
    found = form.capped(scores(flat, keys.flatten(0, 1)).mul_(form.scale))
    hidden = group.hidden(places, form.window)[:, None, None]
    found.view(rows, kv_heads, fold, num_queries, places).masked_fill_(hidden, NEVER)
    weights = torch.softmax(found, dim=-1).to(q.dtype)
    summed = torch.bmm(weights, values.flatten(0, 1))
    return summed.view(rows, kv_heads, fold, num_queries, dim).permute(0, 3, 1, 2, 4)


def _decode(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: Group, form: Form) -> torch.Tensor:
    """[B, 1, kv_heads, fold, dim] over [B, kv_heads, places, dim]: heads that share keys are queries of one call."""
    places, mask = keys.shape[2], None
    if group.num_rows > 1 or form.window is not None:
        group.zero_tails(keys)
        mask = group.seen(places, form.window)[:, None]
    else:
        keys, values = keys[:, :, : group.longest], values[:, :, : group.longest]
    return F.scaled_dot_product_attention(q[:, 0], keys, values, attn_mask=mask, scale=form.scale)


def _prompt(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: Group, form: Form) -> torch.Tensor:
    """[Q, kv_heads, fold, dim] over [kv_heads, places, dim]"""
    is_causal = group.is_whole and form.window is None
    mask = None if is_causal else group.seen(keys.shape[1], form.window)[:, None, :, : group.longest]
    shape = (q.shape[1], q.shape[2], group.longest, q.shape[3])
    wide_keys, wide_values = (x[:, None, : group.longest].expand(shape) for x in (keys, values))
    heads = F.scaled_dot_product_attention(
        q.permute(1, 2, 0, 3), wide_keys, wide_values, attn_mask=mask, is_causal=is_causal, scale=form.scale
    )
    return heads.permute(2, 0, 1, 3)
