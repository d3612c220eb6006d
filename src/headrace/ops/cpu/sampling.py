"""Sampling over numpy logits with the bits of the reference: whole rows natively, single entries on the host."""

from __future__ import annotations

import numpy as np

from headrace import _native
from headrace.ops.base import Floats, Ints, Logprobs, SamplingInputs
from headrace.ops.host_sampling import HostSampling


class CpuSampling(HostSampling):
    """`headrace.ops.base.SamplingOps`, the draws and the log-probabilities native."""

    machine: _native.Machine

    def sample(self, logits: Floats, inputs: SamplingInputs) -> Ints:
        token_ids = np.empty(len(logits), np.int32)
        self.machine.sample(logits, *inputs, token_ids)
        return token_ids

    def logprobs(self, logits: Floats, token_ids: Ints, num_top: int) -> Logprobs:
        found = Logprobs.room(len(logits), min(num_top, logits.shape[1]))
        self.machine.score(logits, token_ids, *found)
        return found
