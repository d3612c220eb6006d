"""Checkpoints of compressed-tensors: integers of 4 or 8 bits, packed or not, and 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.load import float8
from headrace.load.gptq import groups_of
from headrace.load.integers import Grouped, unpack
from headrace.load.quantized import SCALE_TYPES, Found, Matrix, Stored, Told, check, extents, finite, modules, words32
from headrace.ops.base import Integers, Ints
from headrace.words.errors import ModelError, brief

FORMATS = {"pack-quantized": ("int", (4, 8)), "int-quantized": ("int", (8,)), "float-quantized": ("float", (8,))}
"""What numbers each may hold, and of how many bits."""
MIXED = "mixed-precision"
STRATEGIES = ("tensor", "channel", "group", "block")
UNUSED = ("input_zero_point", "output_zero_point", "input_global_scale")
SHAPE_TYPES: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
MAX_SIZE = 2**31
ORDERS = (None, False, "weight", "static", True, "group", "dynamic")
"""That inputs were quantized in; with the last three their groups are in it too."""


class Scheme(NamedTuple):
    """How some matrices are quantized; which ones is told by their tensors."""

    bits: int
    group: int | None
    is_symmetric: bool
    block: tuple[int, int] | None
    is_reordered: bool
    """Whether inputs have an order of their own."""


def read(stored: Stored, told: Told) -> Found:
    """Raises ModelError."""
    told.one_of("quantization_status", ("compressed",), "compressed")
    if told.part("sparsity_config").get("format", "dense") != "dense":
        raise told.refuse("says that matrices are sparse (sparsity_config), which is not built")
    if told.part("transform_config").get("config_groups"):
        raise told.refuse("transforms activations (transform_config), which is not built")
    schemes = tuple(schemes_of(told))
    found = {f"{name}.weight": packed_matrix(stored, name, schemes) for name in modules(stored, "weight_packed")}
    for name in modules(stored, "weight"):
        if stored.dtype(weight := f"{name}.weight") == "I8":
            found[weight] = plain_matrix(stored, name, schemes)
    blocks = [scheme.block for scheme in schemes if scheme.block is not None]
    found |= {name: float8.matrix(stored, name, next(iter(blocks), None)) for name in float8.float8_names(stored)}
    unused = frozenset(name for name in stored.names() if name.rpartition(".")[2] in UNUSED)
    return Found(found, unused | float8.unused(stored))


def schemes_of(told: Told) -> Iterator[Scheme]:
    default = told.one_of("format", (*FORMATS, MIXED), "pack-quantized")
    groups = told.part("config_groups")
    if not groups:
        raise told.refuse("names no config_groups")
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise told.refuse(f"has config_groups whose {brief(name)} is no object")
        own = Told(group, told.file)
        yield scheme_of(Told(own.part("weights"), told.file), own.one_of("format", tuple(FORMATS), default))


def scheme_of(told: Told, form: str) -> Scheme:
    kind, bits = FORMATS[form]
    told.one_of("type", (kind,), "int")
    strategy = told.one_of("strategy", STRATEGIES, "group" if told.raw.get("group_size") else "tensor")
    if strategy == "block" and kind == "int":
        raise told.refuse("has integers with the strategy 'block', which is not built")
    return Scheme(
        told.one_of("num_bits", bits),
        told.group_size() if strategy == "group" else None,
        told.one_of("symmetric", (True, False), True),
        float8.block_size(told, told.raw.get("block_structure")) if strategy == "block" else None,
        told.one_of("actorder", ORDERS) in ORDERS[4:],
    )


def packed_matrix(stored: Stored, name: str, schemes: tuple[Scheme, ...]) -> Matrix:
    """weight_packed [out, in × bits / 32], weight_shape, weight_scale [out, groups], perhaps weight_zero_point
    [out × bits / 32, groups] and weight_g_idx [in]"""
    packed = f"{name}.weight_packed"
    num_rows, num_words = extents(stored, packed)
    shape_name = check(stored, f"{name}.weight_shape", tuple(SHAPE_TYPES), (2,))
    rows, columns = (int(n) for n in stored.raw(shape_name).view(SHAPE_TYPES[stored.dtype(shape_name)]))
    fitting = [s for s in schemes if 0 < columns < MAX_SIZE and -(-columns * s.bits // 32) == num_words]
    if rows != num_rows or not fitting:
        raise ModelError(
            stored.file, f"the tensor {brief(packed)} has the shape {[num_rows, num_words]}, which does not hold "
            f"{[rows, columns]} as {brief(shape_name)} says"
        )  # fmt: skip
    weight = check(stored, packed, ("I32",), (num_rows, num_words))
    integers = Integers(stored.raw(weight), fitting[0].bits, (num_rows, num_words))
    return grouped_matrix(stored, name, (weight, shape_name), integers, (rows, columns), fitting)


def plain_matrix(stored: Stored, name: str, schemes: tuple[Scheme, ...]) -> Matrix:
    """weight [out, in] of signed bytes, weight_scale [out, groups], perhaps weight_zero_point as many"""
    shape = extents(stored, f"{name}.weight")
    integers = Integers(stored.raw(f"{name}.weight"), 8, shape, word_bytes=1, is_signed=True)
    fitting = [scheme for scheme in schemes if scheme.bits == 8]
    return grouped_matrix(stored, name, (f"{name}.weight",), integers, shape, fitting)


def grouped_matrix(
    stored: Stored,
    name: str,
    tensors: tuple[str, ...],
    integers: Integers,
    shape: tuple[int, int],
    schemes: list[Scheme],
) -> Matrix:
    rows, columns = shape
    scale = check(stored, f"{name}.weight_scale", SCALE_TYPES, *scale_shapes(shape, schemes))
    count = 1 if len(stored.shape(scale)) < 2 else stored.shape(scale)[1]
    grouping = [s for s in schemes if s.group and -(-columns // s.group) == count and count > 1]
    group = next((s.group for s in grouping if s.group), columns)
    zero = f"{name}.weight_zero_point"
    has_zero = zero in stored.names()
    if not has_zero and not any(scheme.is_symmetric for scheme in grouping or schemes):
        raise ModelError(stored.file, f"the tensor {brief(zero)} is missing, which an asymmetric matrix needs")
    order = f"{name}.weight_g_idx"
    grouped = Grouped(
        integers,
        shape,
        min(group, columns),
        lambda: np.broadcast_to(finite(stored, scale).reshape(-1, count), (rows, count)),
        partial(zeros, stored, zero if has_zero else None, integers, (rows, count)),
        is_symmetric=not has_zero,
        has_half_scales=stored.dtype(scale) != "F32",
        groups=own_order(stored, order, columns, group, all(s.is_reordered for s in grouping)),
    )
    if has_zero:
        check_zero(stored, zero, integers.bits, tuple(stored.shape(scale)), (rows, count))
    others = [other for other in (zero, order) if other in stored.names()]
    return Matrix.of((*tensors, scale, *others), grouped)


def own_order(stored: Stored, name: str, columns: int, group: int, is_reordered: bool) -> Callable[[], Ints] | None:
    """As `groups_of`; what is −1 throughout was never set."""
    is_set = name in stored.names() and stored.dtype(name) == "I32" and not (words32(stored, name) == -1).all()
    if name in stored.names() and not is_set:
        check(stored, name, ("I32",), (columns,))
        return None
    return groups_of(stored, name, columns, group, is_reordered)


def scale_shapes(shape: tuple[int, int], schemes: list[Scheme]) -> list[tuple[int, ...]]:
    """That scales may have: one for all, one of each row, or one of each group."""
    rows, columns = shape
    groups = [(rows, -(-columns // scheme.group)) for scheme in schemes if scheme.group]
    return list(dict.fromkeys([(), (1,), (1, 1), (rows,), (rows, 1), *groups]))


def check_zero(stored: Stored, name: str, bits: int, as_scale: tuple[int, ...], shape: tuple[int, int]) -> None:
    if stored.dtype(name) == "I32":
        check(stored, name, ("I32",), (-(-shape[0] * bits // 32), shape[1]))
    else:
        check(stored, name, ("I8",), as_scale)


def zeros(stored: Stored, name: str | None, integers: Integers, shape: tuple[int, int]) -> NDArray[np.int16]:
    """[rows, groups], or [1, 1], in the range that `unpack` gives: of 4 bits 8 more than what is meant"""
    middle = np.int16(8 if integers.bits == 4 else 0)
    if name is None:
        return np.full((1, 1), middle)
    if stored.dtype(name) == "I8":
        signed = stored.raw(name).view(np.int8).reshape(-1, shape[1]).astype(np.int16)
        return np.broadcast_to(signed + middle, shape)
    num_words, num_groups = stored.shape(name)
    return unpack(Integers(stored.raw(name), integers.bits, (num_words, num_groups), holds_rows=True), shape)
