"""Folders in packed formats, made by auto-round and compressed-tensors, against what these say that they mean."""

from __future__ import annotations

import numpy as np
import pytest
from tests.load import exporters

from headrace.load.checkpoint import open_checkpoint
from headrace.load.dry_build import dry_build
from headrace.ops.base import Codes, QuantizedMatrix

pytest.importorskip("auto_round", reason="auto-round is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
torch = exporters.torch
INTEGERS = [name for name in exporters.EXPORTS if not name.startswith(("float8", "fp8"))]
KEPT = [name for name in INTEGERS if "order" not in name]
LAST = "model.layers.1.mlp.down_proj.weight"


def rounded_as(wanted, array: np.ndarray):
    """In the type of the scales, in which other people's code computes."""
    return torch.from_numpy(array.copy()).to(wanted.dtype)


@pytest.mark.parametrize("name", exporters.EXPORTS)
def test_every_matrix_means_what_its_exporter_says_to_the_bit(tmp_path, name):
    meant = exporters.write(tmp_path, exporters.export_of(name))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        weights = checkpoint.weights
        assert set(weights.names()) == set(meant)
        for tensor, wanted in meant.items():
            got = weights.get(tensor)
            assert got.shape == tuple(wanted.shape) == tuple(weights.shape(tensor))
            assert torch.equal(rounded_as(wanted, got), wanted), tensor
        assert checkpoint.config.dtype == ("bfloat16" if name in KEPT else "float16")
        assert weights.nbytes < sum(2 * wanted.numel() for wanted in meant.values()) + 40_000
        assert len(checkpoint.fingerprint) == 32


@pytest.mark.parametrize("name", KEPT)
def test_what_kernels_keep_means_the_same_and_takes_the_bytes_of_the_plan(tmp_path, name):
    native = pytest.importorskip("headrace.ops.cpu", reason="the native kernels were not built")
    exporters.write(tmp_path, exporters.export_of(name))
    ops = native.CpuOps("bfloat16", 1)
    with open_checkpoint(str(tmp_path)) as checkpoint:
        names = [n for n in checkpoint.weights.names() if "_proj" in n]
        for tensor in names:
            part = checkpoint.weights.blocks(tensor)
            assert isinstance(part, Codes)
            matrix = QuantizedMatrix((part,))
            packed = ops.weight(matrix)
            assert packed.nbytes == matrix.num_bytes and packed.bits == part.integers.bits
            wanted = checkpoint.weights.get(tensor)
            got = ops.embed(np.arange(len(wanted), dtype=np.int32), packed)
            np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_an_order_of_the_inputs_of_its_own_is_not_kept_in_integers(tmp_path):
    exporters.write(tmp_path, exporters.export_of("gptq in another order"))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.weights.blocks(LAST) is None


@pytest.mark.parametrize("name", ["awq", "packed int4", "int8 by rows"])
def test_matrices_that_were_left_out_are_read_as_they_are(tmp_path, name):
    exporters.write(tmp_path, exporters.export_of(name), left_out="down_proj")
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.weights.blocks(LAST) is None
        assert np.array_equal(checkpoint.weights.get(LAST), exporters.weights()[LAST].half().numpy())


def test_the_plan_counts_integers_as_they_are_kept_and_the_rest_in_the_type_that_is_asked_for(tmp_path):
    exporters.write(tmp_path, exporters.export_of("gptq"))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        arguments = checkpoint.config, checkpoint.weights
        kept, numbers = dry_build(*arguments, "bfloat16", True), dry_build(*arguments, "bfloat16", False)
    matrices = sum(2 * w.numel() for name, w in exporters.weights().items() if "_proj" in name)
    assert numbers.weight_bytes - kept.weight_bytes == matrices - matrices * 5 // 16
