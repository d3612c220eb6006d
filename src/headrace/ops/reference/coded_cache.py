"""Pages that hold keys and values as integers of 8 bits, each vector with a scale of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headrace.ops.reference.step import PagedCache, Step

MOST = 127
LEAST_PEAK = 2.0**-100
"""A vector that is nowhere larger is held as zeros, so that no scale is denormal."""


@dataclass
class CodedCache(PagedCache):
    """Codes in int8, read back as scale × code in fp32, and attended to in fp32 whatever the queries have."""

    key_scales: torch.Tensor
    """[blocks, kv_heads, block_size], as `value_scales`"""
    value_scales: torch.Tensor

    @classmethod
    def zeros(cls, shape: tuple[int, int, int, int]) -> CodedCache:
        # numpy leaves zeroed pages to the kernel until they are touched; torch.zeros writes all of them now.
        codes = [torch.from_numpy(np.zeros(shape, np.int8)) for _ in range(2)]
        scales = [torch.from_numpy(np.zeros(shape[:3], np.float32)) for _ in range(2)]
        return cls(*codes, *scales)

    @property
    def dtype(self) -> torch.dtype:
        return self.key_scales.dtype

    def write(self, k: torch.Tensor, v: torch.Tensor, step: Step) -> None:
        keys, key_scales = quantize(k)
        values, value_scales = quantize(v)
        super().write(keys, values, step)
        which = slice(None) if step.writing is None else step.writing
        places = step.places(self)
        self.key_scales.view(-1).index_copy_(0, places, key_scales[which].flatten())
        self.value_scales.view(-1).index_copy_(0, places, value_scales[which].flatten())

    def zero_blocks(self, block_ids: list[int]) -> None:
        super().zero_blocks(block_ids)
        self.key_scales[block_ids] = 0
        self.value_scales[block_ids] = 0

    def _pages(self, which: torch.Tensor, over: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super()._pages(which, over)
        key_scales, value_scales = (
            x.flatten(*over).index_select(0, which)[..., None] for x in (self.key_scales, self.value_scales)
        )
        return keys * key_scales, values * value_scales


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[…, dim] → int8 […, dim] and scales, fp32 […], as `Ops.kv_cache` defines them."""
    wide = x.float()
    peaks = wide.abs().amax(-1)
    scales = torch.where(peaks < LEAST_PEAK, 0.0, peaks / MOST).masked_fill(~torch.isfinite(peaks), float("nan"))
    codes = torch.round(wide / scales[..., None])
    return torch.where((scales > 0)[..., None], codes, 0.0).to(torch.int8), scales
