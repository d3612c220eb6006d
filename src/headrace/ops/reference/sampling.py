"""The sampling part of the reference ops: the host's, on the memory of torch's tensors."""

from __future__ import annotations

import torch

from headrace.ops.base import Floats
from headrace.ops.host_sampling import HostSampling


class ReferenceSampling(HostSampling):
    """`headrace.ops.base.SamplingOps` over torch logits on the CPU."""

    def _values(self, logits: torch.Tensor) -> Floats:
        return logits.numpy()

    def _tensor(self, values: Floats) -> torch.Tensor:
        return torch.from_numpy(values)
