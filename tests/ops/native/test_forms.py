"""Matrices of several parts take the bytes that a plan of memory says, whether kernels keep them or not."""

import gguf
import numpy as np
import pytest
from tests.ops.native.machines import KINDS, ops_of

from headrace import _native
from headrace.layers.weights import Weights
from headrace.ops.base import Blocks, Codes, Integers, Part, QuantizedMatrix, Unrounded
from headrace.ops.forms import BLOCK_FORMS

COLUMNS = 512
UNKNOWN = "Q2_K"


def blocks(name: str, rows: int) -> Blocks:
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    raw = np.zeros(rows * COLUMNS // values * size, np.uint8)
    return Blocks(name, raw, (rows, COLUMNS), None, lambda: np.zeros((rows, COLUMNS), np.float32))


def codes(bits: int, rows: int) -> Codes:
    scales = np.ones((rows, COLUMNS // 16), np.float32)
    words = Integers(np.zeros(rows * COLUMNS * bits // 8, np.uint8), bits, (rows, COLUMNS * bits // 32))
    return Codes(words, (rows, COLUMNS), 16, bits == 4, True, lambda: (scales, scales if bits == 4 else None), np.array)


def unrounded(bits: int, rows: int) -> Unrounded:
    values = np.ones((rows, COLUMNS), np.float32)
    return Unrounded(bits, values.shape, lambda: values, lambda: values)


class Parts:
    """A source whose tensors are these parts."""

    def __init__(self, *parts: Part) -> None:
        self.parts = dict(zip("abc", parts, strict=False))

    def names(self):
        return self.parts.keys()

    def shape(self, name):
        return self.parts[name].shape

    def get(self, name):
        return self.parts[name].dequantize()

    def blocks(self, name, is_turned=False):
        return self.parts[name]


def planned_and_held(*parts: Part) -> tuple[int, int]:
    """Bytes that reading the parts as one matrix counts, and those of the weight that is made of it."""
    ops = ops_of(*KINDS[0], "bfloat16")
    source = Parts(*parts)
    weights = Weights(source, keeps_blocks=ops.keeps_blocks)
    matrix = weights.matrix(list(source.names()), [part.shape[0] for part in parts], COLUMNS)
    return weights.num_bytes("bfloat16"), ops.weight(matrix).nbytes


def test_the_formats_that_plans_know_are_those_of_the_kernels():
    assert set(_native.block_formats()) == set(BLOCK_FORMS)


@pytest.mark.parametrize("first", [*BLOCK_FORMS, UNKNOWN])
def test_formats_below_one_another_take_what_the_plan_says(first):
    for second in (*BLOCK_FORMS, UNKNOWN):
        planned, held = planned_and_held(blocks(first, 64), blocks(second, 32))
        assert planned == held, second
        assert (held == 96 * COLUMNS * 2) == (UNKNOWN in (first, second))


def test_what_kernels_do_not_keep_together_is_planned_as_it_is_held():
    parts = {"4": codes(4, 32), "8": codes(8, 64), "r4": unrounded(4, 32), "r8": unrounded(8, 64)}
    for one in parts.values():
        planned, held = planned_and_held(one)
        assert planned == held < one.shape[0] * COLUMNS * 2
    kept = planned_and_held(parts["4"], parts["8"])
    assert kept[0] == kept[1] < 96 * COLUMNS * 2
    assert planned_and_held(parts["r4"], parts["r8"]) == (96 * COLUMNS * 2,) * 2
    assert QuantizedMatrix((parts["r8"], blocks("Q8_0", 32))).form is None
