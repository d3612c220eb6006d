"""The CPU backend: native kernels over numpy arrays, bfloat16 held as uint16. No torch."""

from headrace.ops.cpu.model_ops import ModelOps
from headrace.ops.cpu.sampling import CpuSampling


class CpuOps(ModelOps, CpuSampling):
    """All ops of `headrace.ops.base.Ops`. Raises ImportError where the native kernels were not built."""
