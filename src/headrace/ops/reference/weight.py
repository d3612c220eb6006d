"""A weight as the reference keeps it: as it came, or in oneDNN's own layout, which multiplies 1 to 3 times as fast."""

from __future__ import annotations

import torch
import torch.nn.functional as F

PACKABLE = {torch.float32: torch.backends.mkldnn.is_available()}
PACKABLE[torch.bfloat16] = PACKABLE[torch.float32] and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Weight:
    """A matrix [out, in] or a vector. A matrix is packed at its first product; the plain one is let go unless it is
    a table that rows are looked up in."""

    def __init__(self, plain: torch.Tensor, may_pack: bool = True) -> None:
        self._plain: torch.Tensor | None = plain
        self._packed: torch.Tensor | None = None
        self._may_pack = may_pack and plain.ndim == 2 and PACKABLE[plain.dtype]
        self._is_table = False

    @property
    def plain(self) -> torch.Tensor:
        assert self._plain is not None, "a packed weight is asked for as it was"
        return self._plain

    def as_table(self) -> torch.Tensor:
        self._is_table = True
        return self.plain

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, in] → [T, out]"""
        if not self._may_pack:
            return F.linear(x, self.plain, bias)
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.plain.contiguous(), None)
            if not self._is_table:
                self._plain = None
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
