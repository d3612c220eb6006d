"""Every block format against the gguf package, bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize

from headrace.load.gguf import GGUFFile
from headrace.load.quants import QUANTS


@pytest.mark.parametrize("number", QUANTS, ids=lambda number: QUANTS[number].name)
def test_dequantized_values_have_the_bits_of_the_gguf_package(number):
    quant = QUANTS[number]
    raw = np.random.default_rng(number).integers(0, 256, (300, quant.block_bytes), np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = dequantize(raw, GGMLQuantizationType(number)).reshape(-1)
    got = quant.dequantize(raw)
    assert got.dtype == np.float32 and got.size == 300 * quant.block_values
    is_nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(got), is_nan) and not is_nan.all()
    assert np.array_equal(got[~is_nan].view(np.uint32), wanted[~is_nan].view(np.uint32))


def test_the_default_models_matrices_have_the_bits_of_the_gguf_package(default_model_path):
    file = GGUFFile(default_model_path)
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        info = file.tensors[name]
        raw = file.raw(info).reshape(*info.shape[:-1], -1)
        wanted = dequantize(raw, GGMLQuantizationType[info.quant.name]) if info.quant.name != "F32" else None
        got = file.tensor(name)
        assert got.shape == info.shape and np.isfinite(got).all() and got.any()
        if wanted is not None:
            assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))
