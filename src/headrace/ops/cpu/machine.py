"""The threads and instruction set that the kernels run on, and what these can hold."""

from __future__ import annotations

from headrace import _native
from headrace.words import envs
from headrace.words.errors import ConfigError, ModelError, brief

MAX_INPUTS = 1 << 19
"""Of a matrix: a row of so many, as the kernels take it, fits a thread's room."""
MAX_HEAD_DIM = 512
MAX_VOCAB = 1 << 18


def make_machine(num_threads: int | None, isa: str | None) -> _native.Machine:
    """`num_threads` None is one per allowed core; `isa` None is HEADRACE_ISA or the fastest that the machine has.
    Raises ConfigError."""
    name = isa or envs.get("HEADRACE_ISA") or ""
    if name and name not in (usable := _native.isas()):
        raise ConfigError("HEADRACE_ISA", f"this machine runs {', '.join(usable)}, got {brief(name)}; leave it out")
    try:
        return _native.Machine(num_threads or 0, name)
    except (RuntimeError, MemoryError) as error:
        number = num_threads or "so many"
        raise ConfigError("num_threads", f"{number} threads cannot be started here ({error}); lower it") from error


def check_matrix(num_inputs: int) -> None:
    if num_inputs > MAX_INPUTS:
        raise ModelError("checkpoint", f"has a matrix of {num_inputs} inputs; {MAX_INPUTS} can be multiplied")


def check_heads(dim: int) -> None:
    if dim > MAX_HEAD_DIM:
        raise ModelError("checkpoint", f"has heads of {dim} dimensions; {MAX_HEAD_DIM} can be attended to")


def check_vocabulary(num_tokens: int) -> None:
    if num_tokens > MAX_VOCAB:
        raise ModelError("checkpoint", f"has a vocabulary of {num_tokens} tokens; {MAX_VOCAB} can be drawn from")
