"""The reference backend: plain torch, the oracle for all others."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ops.base import Forward
from headrace.ops.reference.model_ops import ModelOps
from headrace.ops.reference.sampling import ReferenceSampling
from headrace.ops.reference.step import PagedCache
from headrace.ops.stepwise import Stepwise


class ReferenceOps(ModelOps, ReferenceSampling):
    """All ops of `headrace.ops.base.Ops`."""

    def compile(
        self, model: Forward, caches: Sequence[PagedCache | None], max_num_tokens: int, max_num_draws: int
    ) -> Stepwise:
        return Stepwise(model, self)
