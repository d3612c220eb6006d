"""GPTQ checkpoints: 4 or 8 bits, words along the inputs (arXiv 2210.17323)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from headrace.load.awq import turned
from headrace.load.integers import Grouped, unpack
from headrace.load.quantized import SCALE_TYPES, Found, Matrix, Stored, Told, check, extents, modules, words32
from headrace.ops.base import Integers, Ints
from headrace.words.errors import ModelError, brief

BITS = (4, 8)
ZERO_SHIFT = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero."""
LEFT_OUT = "-:"
"""Before the names of matrices that are not quantized."""


class Scheme:
    """What config.json says of all matrices."""

    def __init__(self, told: Told) -> None:
        self.bits = told.one_of("bits", BITS)
        self.group = told.group_size()
        self.is_symmetric = bool(told.raw.get("sym", True))
        self.is_reordered = told.one_of("desc_act", (True, False), False)
        self.zero_shift = ZERO_SHIFT[told.one_of("checkpoint_format", tuple(ZERO_SHIFT), "gptq", other="format")]
        if any(not str(name).startswith(LEFT_OUT) for name in told.part("dynamic")):
            raise told.refuse("has settings of their own for some matrices (dynamic), which is not built")


def read(stored: Stored, told: Told) -> Found:
    """qweight [in × bits / 32, out], qzeros [groups, out × bits / 32], scales [groups, out], perhaps g_idx [in] with
    the group of each input. Raises ModelError."""
    scheme = Scheme(told)
    names = modules(stored, "qweight")
    return Found({f"{name}.weight": matrix(stored, name, scheme) for name in names}, spare=zero_biases(stored, names))


def zero_biases(stored: Stored, names: list[str]) -> frozenset[str]:
    """What some quantizers write beside every matrix, whether the model has a bias or not."""
    biases = [f"{name}.bias" for name in names if f"{name}.bias" in stored.names()]
    return frozenset(name for name in biases if stored.dtype(name) in SCALE_TYPES and not stored.get(name).any())


def matrix(stored: Stored, name: str, scheme: Scheme) -> Matrix:
    words, rows = extents(stored, f"{name}.qweight")
    per_word = 32 // scheme.bits
    columns = words * per_word
    group = min(scheme.group or columns, columns)
    num_groups = -(-columns // group)
    if rows % per_word:
        raise ModelError(stored.file, f"the matrix {brief(name)} has {rows} outputs, which {per_word} does not divide")
    weight = check(stored, f"{name}.qweight", ("I32",), (words, rows))
    zeros = check(stored, f"{name}.qzeros", ("I32",), (num_groups, rows // per_word))
    scales = check(stored, f"{name}.scales", SCALE_TYPES, (num_groups, rows))
    packed_zeros = Integers(
        stored.raw(zeros), scheme.bits, (rows // per_word, num_groups), is_turned=True, holds_rows=True
    )
    grouped = Grouped(
        Integers(stored.raw(weight), scheme.bits, (rows, words), is_turned=True),
        (rows, columns),
        group,
        turned(stored, scales),
        lambda: unpack(packed_zeros, (rows, num_groups)) + np.int16(scheme.zero_shift),
        is_symmetric=scheme.is_symmetric,
        has_half_scales=stored.dtype(scales) != "F32",
        groups=groups_of(stored, f"{name}.g_idx", columns, group, scheme.is_reordered),
    )
    order = (f"{name}.g_idx",) if f"{name}.g_idx" in stored.names() else ()
    return Matrix.of((weight, zeros, scales, *order), grouped)


def groups_of(stored: Stored, name: str, columns: int, group: int, is_reordered: bool) -> Callable[[], Ints] | None:
    """None where the groups follow one another. ModelError for one that there is not, and where inputs should be in an
    order of their own and no tensor says in which."""
    if name not in stored.names():
        if is_reordered and group < columns:
            raise ModelError(stored.file, f"the tensor {brief(name)} is missing, the order of inputs in groups")
        return None
    order = words32(stored, check(stored, name, ("I32",), (columns,)))
    if order.size and not (0 <= order.min() and order.max() < -(-columns // group)):
        raise ModelError(stored.file, f"the tensor {brief(name)} names a group that does not exist")
    in_order = np.arange(columns, dtype=np.int32) // group
    return None if np.array_equal(order, in_order) else partial(words32, stored, name)
