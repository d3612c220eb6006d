"""Attention of the reference ops over paged caches, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ops.paged import TORCH, Pages

from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.products import scores

NEAR = {"float32": 2e-6, "bfloat16": 2e-2}
DTYPES = list(NEAR)
FORMS = {
    "plain": {},
    "window": {"window": 5},
    "wide window": {"window": 1_000},
    "soft cap": {"soft_cap": 1.5},
    "window and soft cap": {"window": 7, "soft_cap": 1.5},
    "scale": {"scale": 0.4},
}
LENGTHS = [1, 3, 9, 16, 17, 33, 40]
EVERYTHING = [(i, 0, length) for i, length in enumerate(LENGTHS)]
LAST = [(i, length - 1, length) for i, length in enumerate(LENGTHS)]
EARLIER = [(i, 0, length - 1) for i, length in enumerate(LENGTHS) if length > 1]


def both_backends(dtype: str) -> list[ReferenceOps]:
    return [ReferenceOps(dtype), ReferenceOps(dtype, fixed_rows=16)]


def assert_near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    np.testing.assert_allclose(got, wanted, atol=NEAR[dtype], rtol=NEAR[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_prompts_then_decodes_in_one_batch(form, dtype):
    pages = Pages(LENGTHS, 6, 2, 24, 8, dtype)
    for ops in both_backends(dtype):
        cache = pages.cache(ops)
        assert_near(pages.attend(ops, cache, EARLIER, **FORMS[form]), pages.wanted(EARLIER, **FORMS[form]), dtype)
        assert_near(pages.attend(ops, cache, LAST, **FORMS[form]), pages.wanted(LAST, **FORMS[form]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_decodes_of_few_and_of_many_rows(num_rows, form, dtype):
    pages = Pages(LENGTHS[-num_rows:], 6, 2, 24, 8, dtype)
    spans = [(i, length - 1, length) for i, length in enumerate(LENGTHS[-num_rows:])]
    for ops in both_backends(dtype):
        cache = pages.cache(ops)
        pages.attend(ops, cache, [(i, 0, end - 1) for i, _, end in spans])
        assert_near(pages.attend(ops, cache, spans, **FORMS[form]), pages.wanted(spans, **FORMS[form]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fold", [1, 2, 4, 8])
def test_query_heads_share_key_heads(fold, dtype):
    pages = Pages([19, 6, 30, 12], 8, 8 // fold, 16, 4, dtype)
    spans = [(0, 0, 18), (1, 0, 5), (2, 0, 29), (3, 0, 11)]
    last = [(0, 18, 19), (1, 5, 6), (2, 29, 30), (3, 11, 12)]
    for ops in both_backends(dtype):
        cache = pages.cache(ops)
        assert_near(pages.attend(ops, cache, spans), pages.wanted(spans), dtype)
        assert_near(pages.attend(ops, cache, last), pages.wanted(last), dtype)


@pytest.mark.parametrize("block", [1, 3, 16, 64])
@pytest.mark.parametrize("dim", [5, 80])
def test_odd_sizes_of_blocks_and_heads(block, dim):
    pages = Pages([37, 5], 3, 1, dim, block, "float32")
    for ops in both_backends("float32"):
        cache = pages.cache(ops)
        for spans in ([(0, 0, 13), (1, 0, 4)], [(0, 13, 36)], [(1, 4, 5), (0, 36, 37)]):
            assert_near(pages.attend(ops, cache, spans), pages.wanted(spans), "float32")


@pytest.mark.covers("M15", "6b")
def test_a_chunk_over_blocks_that_are_no_neighbours_reads_what_earlier_steps_wrote():
    pages = Pages([50], 4, 2, 16, 4, "float32")
    gaps = np.diff(pages.tables[0])
    assert (gaps != 1).all()
    for ops in both_backends("float32"):
        cache = pages.cache(ops)
        for start, end in [(0, 7), (7, 30), (30, 31), (31, 50)]:
            assert_near(
                pages.attend(ops, cache, [(0, start, end)]), pages.wanted([(0, start, end)]), "float32"
            )


@pytest.mark.covers("6b")
def test_a_segment_reads_blocks_that_another_writes_in_the_same_step():
    """Two sequences of one prefix: the second is computed from the shared block's end on, in the step that fills it."""
    pages = Pages([20, 20], 4, 2, 16, 8, "float32")
    for x in (pages.q, pages.k, pages.v):
        x[1][:16] = x[0][:16]
    pages.tables[1][:2] = pages.tables[0][:2]
    spans = [(1, 16, 20), (0, 0, 20)]
    for ops in both_backends("float32"):
        assert_near(pages.attend(ops, pages.cache(ops), spans), pages.wanted(spans), "float32")


@pytest.mark.covers("6d", "M21")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_slot_of_minus_one_writes_nothing(dtype):
    pages = Pages([9, 4], 2, 2, 8, 4, dtype)
    for ops in both_backends(dtype):
        cache = pages.cache(ops, stale=3.0)
        inputs = pages.inputs([(0, 0, 9), (1, 0, 4)])
        inputs.slots[[2, 8, 9, 12]] = -1
        step = ops.begin(inputs)
        q, k, v = (torch.cat(x) for x in (pages.q, pages.k, pages.v))
        before = cache.keys.clone(), cache.values.clone()
        ops.attend(q, k, v, cache, step, 1.0)
        for found, old, new in zip((cache.keys, cache.values), before, (k, v), strict=True):
            wanted = old.transpose(1, 2).flatten(0, 1).clone()
            for token in np.flatnonzero(inputs.slots >= 0):
                wanted[inputs.slots[token]] = new[token]
            assert torch.equal(found.transpose(1, 2).flatten(0, 1), wanted)


def test_pages_begin_as_zeros_and_are_zeroed_one_by_one():
    ops = ReferenceOps("bfloat16")
    cache = ops.kv_cache(5, 4, 2, 8)
    assert not cache.keys.any() and not cache.values.any()
    cache.keys[:], cache.values[:] = float("nan"), float("nan")
    ops.zero_blocks(cache, (1, 3))
    for pages in (cache.keys, cache.values):
        assert [bool(torch.isnan(page).any()) for page in pages] == [True, False, True, False, True]


@pytest.mark.parametrize("form", FORMS)
def test_drafts_of_several_rows_attend_together(form):
    pages = Pages([30, 12, 7, 25, 18], 4, 2, 16, 8, "bfloat16")
    ends = [30, 12, 7, 25, 18]
    for ops in both_backends("bfloat16"):
        cache = pages.cache(ops)
        pages.attend(ops, cache, [(i, 0, end - 4) for i, end in enumerate(ends)])
        spans = [(i, end - 4, end) for i, end in enumerate(ends)]
        assert_near(pages.attend(ops, cache, spans, **FORMS[form]), pages.wanted(spans, **FORMS[form]), "bfloat16")


def test_segments_keep_their_places_whatever_their_order():
    pages = Pages(LENGTHS, 6, 2, 24, 8, "float32")
    ops = ReferenceOps("float32")
    cache = pages.cache(ops)
    pages.attend(ops, cache, EARLIER)
    spans = [(5, 30, 33), (0, 0, 1), (6, 10, 40), (2, 8, 9), (1, 2, 3), (4, 0, 17), (3, 15, 16)]
    assert_near(pages.attend(ops, cache, spans), pages.wanted(spans), "float32")


def test_scores_of_bf16_keep_more_than_bf16():
    generator = torch.Generator().manual_seed(0)
    q, keys = (
        torch.randn(2, count, 64, generator=generator).mul(3).to(TORCH["bfloat16"]) for count in (3, 50)
    )
    exact = q.double() @ keys.double().transpose(1, 2)
    assert (scores(q, keys) - exact).abs().max() < 1e-2 * (exact.bfloat16() - exact).abs().max()
