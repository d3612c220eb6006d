"""Every block format against the gguf package, bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

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


def test_all_tensors_of_the_default_model_have_the_bits_of_the_gguf_package(default_model_path):
    file = GGUFFile(default_model_path)
    assert {info.quant.name for info in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
    for name, info in file.tensors.items():
        raw = file.raw(info.name).reshape(*info.shape[:-1], -1)
        wanted = dequantize(raw, GGMLQuantizationType[info.quant.name])
        got = file.tensor(name)
        assert got.shape == info.shape and got.any()
        assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32)), name


QUANTIZABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def test_a_file_that_the_gguf_package_writes_and_quantizes_is_read_within_the_formats_steps(tmp_path):
    values = np.random.default_rng(2).standard_normal((6, 64), np.float32)
    writer = GGUFWriter(tmp_path / "written.gguf", "llama")
    for name in QUANTIZABLE:
        kind = GGMLQuantizationType[name]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "written.gguf")
    assert file.metadata == {"general.architecture": "llama"} and list(file.tensors) == QUANTIZABLE
    for name in QUANTIZABLE:
        wanted = dequantize(quantize(values, GGMLQuantizationType[name]), GGMLQuantizationType[name])
        got = file.tensor(name)
        assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))
        assert np.abs(got - values).max() < {"F32": 1e-9, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(name, 0.5)
