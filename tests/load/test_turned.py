"""Matrices that GPT-2 stores the other way round are kept as integers all the same."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tests.load import gguf_convert
from tests.models import families
from tests.models.cases import PROMPTS, case
from tests.models.driver import DictSource, Driver

from headrace.comm import SoloComm
from headrace.load.dry_build import dry_build
from headrace.load.gguf_model import open_gguf
from headrace.load.rounding import RoundedWeights
from headrace.models.registry import family
from headrace.ops.rounding import rounded_values

TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def build(config, source, ops):
    return family(config.architecture).build(config, source, ops, SoloComm(), 64)


def matrices(model) -> list:
    of_layers = [(x.attention.qkv, x.attention.out, x.mlp.up, x.mlp.down) for x in model.layers]
    return [linear.weight for layer in of_layers for linear in layer]


@pytest.mark.parametrize("bits", [4, 8])
def test_they_are_rounded_along_their_inputs(bits):
    made = case("gpt2")
    config = made.config()
    arrays = {
        name: rounded_values(array.T, bits).T if name.endswith(TURNED) else array for name, array in made.arrays.items()
    }
    arrays["transformer.wte.weight"] = rounded_values(arrays["transformer.wte.weight"], 8)
    wanted = Driver(config, arrays).run(PROMPTS)
    driver = Driver(config, made.arrays)
    driver.model = build(config, RoundedWeights(DictSource(made.arrays), bits, config.vocab_size), driver.ops)
    for got, logits in zip(driver.run(PROMPTS), wanted, strict=True):
        assert np.array_equal(got, logits)


def test_kernels_keep_them_as_integers_and_the_plan_says_so():
    native = pytest.importorskip("headrace.ops.cpu", reason="the native kernels were not built")
    made = case("gpt2")
    source = RoundedWeights(DictSource(made.arrays), 8, made.config().vocab_size)
    model = build(made.config(), source, native.CpuOps("bfloat16", 1))
    assert {weight.bits for weight in matrices(model)} == {8}
    plan = dry_build(made.config(), source, "bfloat16", keeps_blocks=True)
    assert plan.weight_bytes == model.weight_bytes < dry_build(made.config(), source, "bfloat16").weight_bytes


def test_blocks_of_a_gguf_file_stay_blocks(tmp_path):
    native = pytest.importorskip("headrace.ops.cpu", reason="the native kernels were not built")
    made = families.make("GPT2LMHeadModel", n_embd=64, n_head=4, n_inner=96)
    kind = gguf.GGMLQuantizationType.Q8_0
    parts = open_gguf(gguf_convert.write(tmp_path / "model.gguf", made, "GPT2LMHeadModel", kind=kind))
    model = build(parts.config, parts.weights, native.CpuOps("bfloat16", 1))
    assert {weight.bits for weight in matrices(model)} == {8}
    name = "transformer.h.1.mlp.c_fc.weight"
    whole, part = parts.weights.get(name), parts.weights.blocks(name, is_turned=True)
    assert whole.shape == (64, 96) and part.shape == (96, 64) and np.array_equal(part.dequantize(), whole.T)
    np.testing.assert_allclose(whole, made.arrays[name], atol=np.abs(made.arrays[name]).max() / 100)
    assert parts.weights.blocks(name) is None
    assert parts.weights.blocks("transformer.wte.weight", is_turned=True) is None
