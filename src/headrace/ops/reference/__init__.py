"""The reference backend: plain torch, the oracle for all others."""

from headrace.ops.reference.model_ops import ModelOps
from headrace.ops.reference.sampling import ReferenceSampling


class ReferenceOps(ModelOps, ReferenceSampling):
    """All ops of `headrace.ops.base.Ops`."""
