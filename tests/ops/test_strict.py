"""With fixed rows a row's bits are its own: one row, sixteen, any place among others, any chunk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.ops.paged import TORCH, Pages

from headrace.ops.reference import ReferenceOps

pytestmark = pytest.mark.covers("D42", "I25")
DTYPES = ["float32", "bfloat16"]
LONG = 530
"""More keys than one partition holds."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["linear", "logits", "rms_norm", "glu", "rotate"])
def test_a_row_alone_has_the_bits_it_has_among_others(op, dtype):
    ops = ReferenceOps(dtype, fixed_rows=16)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(53, 576, generator=generator).to(TORCH[dtype])
    matrix, gamma = (ops.weight(torch.randn(*shape, generator=generator).numpy()) for shape in ((200, 576), (576,)))
    angles = torch.randn(53, 64, generator=generator)
    run = {
        "linear": lambda rows: ops.linear(x[rows], matrix),
        "logits": lambda rows: ops.logits(x[rows], matrix),
        "rms_norm": lambda rows: ops.rms_norm(x[rows], gamma, 1e-5),
        "glu": lambda rows: ops.glu(x[rows], "silu"),
        "rotate": lambda rows: ops.rotate(x[rows].view(-1, 9, 64), angles[rows]),
    }[op]
    whole = run(slice(0, 53))
    for start, end in [(0, 1), (7, 8), (52, 53), (0, 16), (5, 21), (16, 49), (40, 53)]:
        assert torch.equal(run(slice(start, end)), whole[start:end]), (start, end)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [{}, {"window": 40}, {"soft_cap": 2.0}])
def test_attention_has_the_same_bits_whole_in_chunks_as_decodes_and_in_company(form, dtype):
    pages = Pages([LONG, 40], 4, 2, 16, 16, dtype)
    ops = ReferenceOps(dtype, fixed_rows=16)
    whole = pages.attend(ops, pages.cache(ops), [(0, 0, LONG)], **form)
    for steps in ([0, 16, 32, LONG], [0, 7, 500, 513, LONG], [0, 500, *range(508, LONG + 1)]):
        cache = pages.cache(ops)
        parts = [pages.attend(ops, cache, [(0, a, b)], **form) for a, b in zip(steps, steps[1:], strict=False)]
        assert np.array_equal(np.concatenate(parts), whole), steps
    crowd = pages.attend(ops, pages.cache(ops), [(1, 0, 40), (0, 0, LONG)], **form)
    assert np.array_equal(crowd[40:], whole)


def test_the_pages_a_sequence_gets_do_not_change_bits():
    wanted = None
    for block in (1, 8, 16, 64):
        pages, ops = Pages([70], 4, 2, 16, block, "bfloat16"), ReferenceOps("bfloat16", fixed_rows=16)
        got = pages.attend(ops, pages.cache(ops), [(0, 0, 70)])
        wanted = got if wanted is None else wanted
        assert np.array_equal(got, wanted), block
