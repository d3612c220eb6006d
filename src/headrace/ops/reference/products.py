"""Scores of queries against keys in the precision of fp32, whatever the inputs have."""

from __future__ import annotations

import torch

from headrace.ops.reference.weight import PACKABLE

TWO_PART = {torch.float32: False, torch.bfloat16: PACKABLE[torch.bfloat16]}
"""Where a bf16 product in two parts is faster than one in fp32."""


def scores(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[N, M, dim], [N, L, dim] → fp32 [N, M, L].

    torch rounds a bf16 product to bf16, too coarse for what is exponentiated next. The same product less that result is
    what the rounding took, and the two together are good to 16 bits.
    """
    across = keys.transpose(1, 2)
    if not TWO_PART[q.dtype]:
        return torch.bmm(q.float(), across.float())
    rounded = torch.bmm(q, across)
    return rounded.float().add_(torch.baddbmm(rounded, q, across, beta=-1))
