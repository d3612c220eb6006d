"""Keys and values held as int8 by the reference ops, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ops.paged import TORCH, Pages

from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.coded_cache import quantize

FORMS = {"plain": {}, "window": {"window": 5}, "window and soft cap": {"window": 7, "soft_cap": 1.5}}
LENGTHS = [1, 9, 16, 33]
EARLIER = [(i, 0, length - 1) for i, length in enumerate(LENGTHS) if length > 1]
LAST = [(i, length - 1, length) for i, length in enumerate(LENGTHS)]
NEAR = {"float32": 3e-6, "bfloat16": 1e-2}


def held(x: torch.Tensor) -> torch.Tensor:
    codes, scales = quantize(x)
    return codes * scales[..., None]


def test_codes_are_the_nearest_of_255_and_ties_go_to_the_even_one():
    codes, scales = quantize(torch.tensor([[127, 0.5, 1.5, 2.5, -126.5, -127], [-2.0, 1, 0, 0.5, 2, -1]]))
    assert codes.tolist() == [[127, 0, 2, 2, -126, -127], [-127, 64, 0, 32, 127, -64]]
    assert scales.tolist() == [1, np.float32(2) / np.float32(127)]
    x = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    assert ((held(x) - x).abs() <= quantize(x)[1][:, None] * 0.5001).all()


def test_what_is_tiny_is_zero_and_what_is_not_finite_has_no_scale():
    codes, scales = quantize(torch.tensor([[1e-31, -1e-32], [float("nan"), 1], [1, float("inf")], [float("-inf"), 2]]))
    assert not codes.any() and scales[0] == 0 and scales[1:].isnan().all()


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_over_what_is_held(form, dtype):
    pages = Pages(LENGTHS, 6, 2, 24, 8, dtype)
    exact = Pages(LENGTHS, 6, 2, 24, 8, dtype)
    exact.k, exact.v = [held(x) for x in pages.k], [held(x) for x in pages.v]
    for ops in (ReferenceOps(dtype), ReferenceOps(dtype, fixed_rows=16)):
        cache = ops.kv_cache(pages.num_blocks, pages.block, 2, 24, "int8")
        cache.key_scales[1:] = cache.value_scales[1:] = float("nan")
        for spans in (EARLIER, LAST):
            got = pages.attend(ops, cache, spans, **FORMS[form])
            np.testing.assert_allclose(got, exact.wanted(spans, **FORMS[form]), atol=NEAR[dtype], rtol=NEAR[dtype])


def test_blocks_are_zeroed_one_by_one():
    ops = ReferenceOps("bfloat16")
    cache = ops.kv_cache(5, 4, 2, 8, "int8")
    parts = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
    assert not any(part.any() for part in parts)
    for part in parts:
        part[:] = 3
    ops.zero_blocks(cache, (1, 3))
    for part in parts:
        assert [bool(block.any()) for block in part] == [True, False, True, False, True]
