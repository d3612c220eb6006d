"""Every block format against the gguf package, bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize

from headrace.load.quants import QUANTS


@pytest.mark.parametrize("number", QUANTS, ids=lambda number: QUANTS[number].name)
def test_dequantized_values_have_the_bits_of_the_gguf_package(number):
    quant = QUANTS[number]
    raw = np.random.default_rng(number).integers(0, 256, (300, quant.block_bytes), np.uint8)
    wanted = dequantize(raw, GGMLQuantizationType(number)).reshape(-1)
    got = quant.dequantize(raw)
    assert got.dtype == np.float32 and got.size == 300 * quant.block_values
    is_nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(got), is_nan) and not is_nan.all()
    assert np.array_equal(got[~is_nan].view(np.uint32), wanted[~is_nan].view(np.uint32))
