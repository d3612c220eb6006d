"""Packed formats that are not built, and folders that lie about theirs: refused in one line with file and cause."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.load import folder as f

from headrace.layers.weights import Weights
from headrace.load.checkpoint import Checkpoint, open_checkpoint
from headrace.words.errors import ModelError

CONFIG, FILE = "config.json: quantization_config", "model.safetensors: "
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [4, 4]}
I32, I8, E4M3 = np.int32, np.int8, np.dtype("V1")


def packed_config(weights: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    of_all = {"targets": ["Linear"], "format": "pack-quantized"}
    groups = {"group_0": {**of_all, "weights": {**WEIGHTS, **(weights or {})}}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, **changes}


def awq(**changes: Any) -> dict[str, np.ndarray | None]:
    """[16 outputs, 32 inputs]"""
    made = {"qweight": np.zeros((32, 2), I32), "qzeros": np.zeros((2, 2), I32), "scales": np.ones((2, 16), np.float16)}
    return {f"q.{name}": array for name, array in {**made, **changes}.items()}


def gptq(**changes: Any) -> dict[str, np.ndarray | None]:
    made = {"qweight": np.zeros((4, 16), I32), "qzeros": np.zeros((2, 2), I32), "scales": np.ones((2, 16), np.float16)}
    return {f"q.{name}": array for name, array in {**made, **changes}.items()}


def whole_rows() -> dict[str, np.ndarray | None]:
    return gptq(qzeros=np.zeros((1, 2), I32), scales=np.ones((1, 16), np.float16))


def packed(**changes: Any) -> dict[str, np.ndarray | None]:
    made = {
        "weight_packed": np.zeros((16, 4), I32),
        "weight_shape": np.array([16, 32]),
        "weight_scale": np.ones((16, 2), np.float16),
    }
    return {f"q.{name}": array for name, array in {**made, **changes}.items()}


def fp8(**changes: Any) -> dict[str, np.ndarray | None]:
    made = {"weight": np.zeros((8, 8), E4M3), "weight_scale_inv": np.ones((2, 2), np.float32)}
    return {f"q.{name}": array for name, array in {**made, **changes}.items()}


CASES: dict[str, tuple[Any, dict[str, np.ndarray | None], str]] = {
    "a text": ("awq", awq(), "config.json: is quantized by 'awq', which is not built"),
    "no method": ({"bits": 4}, awq(), "config.json: is quantized by None, which is not built; built are awq, gptq"),
    "another method": ({"quant_method": "bitsandbytes"}, awq(), "is quantized by 'bitsandbytes', which is not built"),
    "a method that is a list": ({"quant_method": ["awq"]}, awq(), "is quantized by ['awq'], which is not built"),
    "awq of 3 bits": ({**AWQ, "bits": 3}, awq(), f"{CONFIG} has bits 3; built is 4"),
    "awq of true bits": ({**GPTQ, "bits": True}, gptq(), f"{CONFIG} has bits True; built are 4, 8"),
    "awq for vectors": ({**AWQ, "version": "gemv"}, awq(), f"{CONFIG} has version 'gemv'; built are gemm"),
    "a group of nothing": ({**AWQ, "group_size": 0}, awq(), f"{CONFIG} has group_size 0 instead of a positive whole"),
    "no group": ({**AWQ, "group_size": None}, awq(), f"{CONFIG} has group_size None instead of a positive"),
    "groups that do not divide": (
        {**AWQ, "group_size": 24}, awq(), f"{FILE}the matrix 'q' has 32 inputs, which 24 does not divide"
    ),
    "no zeros": (AWQ, awq(qzeros=None), f"{FILE}the tensor 'q.qzeros' is missing, which a quantized matrix needs"),
    "too few scales": (
        AWQ, awq(scales=np.ones((1, 16), np.float16)), f"{FILE}the tensor 'q.scales' has the shape [1, 16], not [2, 16]"
    ),
    "scales of integers": (AWQ, awq(scales=np.ones((2, 16), I32)), "'q.scales' is I32 instead of F16 or BF16"),
    "integers that are numbers": (AWQ, awq(qweight=np.ones((32, 2), np.float32)), "'q.qweight' is F32 instead of I32"),
    "integers in a row": (AWQ, awq(qweight=np.zeros(64, I32)), "'q.qweight' has the shape [64], and is no matrix"),
    "no integers": (AWQ, awq(qweight=np.zeros((0, 2), I32)), "'q.qweight' has the shape [0, 2], and is no matrix"),
    "nothing quantized": (AWQ, {}, f"{FILE}holds no matrix as awq stores them, though config.json says so"),
    "a matrix twice": (AWQ, {**awq(), "q.weight": np.ones((16, 32), np.float16)}, f"{FILE}holds 'q.weight' twice"),
    "gptq of 2 bits": ({**GPTQ, "bits": 2}, gptq(), f"{CONFIG} has bits 2; built are 4, 8"),
    "gptq for one kernel": ({**GPTQ, "checkpoint_format": "marlin"}, gptq(), "checkpoint_format 'marlin'; built"),
    "gptq in part": ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, gptq(), "has settings of their own for some"),
    "dynamic that is a list": ({**GPTQ, "dynamic": [1]}, gptq(), f"{CONFIG} has dynamic [1] instead of an object"),
    "gptq of 12 outputs": (GPTQ, gptq(qweight=np.zeros((4, 12), I32)), "'q' has 12 outputs, which 8 does not divide"),
    "a group that is not there": (GPTQ, gptq(g_idx=np.full(32, 2, I32)), "'q.g_idx' names a group that does not exist"),
    "no order, though there is one": ({**GPTQ, "desc_act": True}, gptq(), "'q.g_idx' is missing, the order of inputs"),
    "an order that is perhaps": ({**GPTQ, "desc_act": "yes"}, gptq(), f"{CONFIG} has desc_act 'yes'; built are True"),
    "no order in packed groups": (
        packed_config({"actorder": "group"}), packed(), "'q.weight_g_idx' is missing, the order of inputs in groups"
    ),
    "an order of another kind": (packed_config({"actorder": "odd"}), packed(), f"{CONFIG} has actorder 'odd'"),
    "zeros that are not there": (
        packed_config({"symmetric": False}), packed(), "'q.weight_zero_point' is missing, which an asymmetric matrix"
    ),
    "an order that is too short": (GPTQ, gptq(g_idx=np.zeros(31, I32)), "'q.g_idx' has the shape [31], not [32]"),
    "another format": (packed_config(format="nvfp4-pack-quantized"), packed(), "'nvfp4-pack-quantized'; built are"),
    "several formats, none of them named": (
        packed_config(format="mixed-precision", config_groups={"g": {"weights": WEIGHTS}}), packed(),
        f"{CONFIG} has format 'mixed-precision'; built are pack-quantized",
    ),
    "no groups": (packed_config(config_groups={}), packed(), f"{CONFIG} names no config_groups"),
    "a group that is a list": (packed_config(config_groups={"g": [1]}), packed(), "has config_groups whose 'g' is no"),
    "packed of 3 bits": (packed_config({"num_bits": 3}), packed(), f"{CONFIG} has num_bits 3; built are 4, 8"),
    "packed floats": (packed_config({"type": "float"}), packed(), f"{CONFIG} has type 'float'; built is int"),
    "another strategy": (packed_config({"strategy": "token"}), packed(), "has strategy 'token'; built are"),
    "integers in blocks": (packed_config({"strategy": "block"}), packed(), "integers with the strategy 'block'"),
    "sparse": (packed_config(sparsity_config={"format": "sparse-24-bitmask"}), packed(), "matrices are sparse"),
    "turned": (packed_config(transform_config={"config_groups": {"a": {}}}), packed(), "transforms activations"),
    "not compressed": (packed_config(quantization_status="frozen"), packed(), "has quantization_status 'frozen'"),
    "another shape": (packed_config(), packed(weight_shape=np.array([16, 64])), "does not hold [16, 64] as"),
    "a negative shape": (packed_config(), packed(weight_shape=np.array([16, -32])), "does not hold [16, -32]"),
    "no shape": (packed_config(), packed(weight_shape=None), "the tensor 'q.weight_shape' is missing"),
    "scales of other groups": (packed_config(), packed(weight_scale=np.ones((16, 3), np.float16)), "the shape [16, 3]"),
    "zeros that do not fit": (packed_config(), packed(weight_zero_point=np.zeros((16, 2), I32)), "[16, 2], not [2, 2]"),
    "float8 without a scale": (FP8, fp8(weight_scale_inv=None), "'q.weight' is F8_E4M3 and has no scale"),
    "float8 with few scales": (FP8, fp8(weight_scale_inv=np.ones((2, 1), np.float32)), "[2, 1], which does not fit"),
    "float8 with integer scales": (FP8, fp8(weight_scale_inv=np.ones((2, 2), I32)), "is I32 instead of F16 or BF16"),
    "float8 of the other kind": ({**FP8, "fmt": "e5m2"}, fp8(), f"{CONFIG} has fmt 'e5m2'; built are e4m3"),
    "blocks of nothing": ({**FP8, "weight_block_size": [0, 4]}, fp8(), f"{CONFIG} has blocks of [0, 4] instead of two"),
}


@pytest.mark.parametrize(("tensors", "name"), [(gptq(), "q.qweight"), (packed(), "q.weight_packed")])
def test_packed_matrices_of_which_the_configuration_says_nothing_are_named(tmp_path, tensors, name):
    f.write(tmp_path, model__safetensors=f.safetensors(tensors), quantize_config__json=GPTQ)
    with pytest.raises(ModelError, match=f"^config.json: has no quantization_config, though .* holds '{name}'; "):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, case):
    told, tensors, words = CASES[case]
    given = {name: array for name, array in tensors.items() if array is not None}
    f.write(tmp_path, config__json={**f.CONFIG, "quantization_config": told}, model__safetensors=f.safetensors(given))
    with pytest.raises(ModelError) as caught:
        open_checkpoint(str(tmp_path))
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 350
    assert str(tmp_path) not in message


@pytest.mark.parametrize(
    ("told", "tensors"),
    [
        (AWQ, awq()),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 16, "version": "GEMM"}, awq()),
        (GPTQ, gptq()),
        ({**GPTQ, "dynamic": {"-:lm_head": {}}, "checkpoint_format": "gptq_v2"}, gptq()),
        ({**GPTQ, "desc_act": True}, gptq(g_idx=np.arange(32, dtype=I32)[::-1] // 16)),
        ({**GPTQ, "desc_act": True, "group_size": -1}, whole_rows()),
        (packed_config(), packed()),
        (packed_config({"actorder": "group"}), packed(weight_g_idx=np.full(32, -1, I32))),
        (packed_config({"actorder": "weight"}), packed()),
        (packed_config({"symmetric": False}), packed(weight_zero_point=np.zeros((2, 2), I32))),
        (packed_config(format="mixed-precision", ignore=["re:.*head"]), packed()),
        (FP8, fp8()),
        ({**FP8, "weight_block_size": [2**40, 4]}, fp8(weight_scale_inv=np.ones((1, 2), np.float32))),
    ],
)
def test_the_same_without_the_fault_is_read(tmp_path, told, tensors):
    f.write(tmp_path, config__json={**f.CONFIG, "quantization_config": told}, model__safetensors=f.safetensors(tensors))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert list(checkpoint.weights.names()) == ["q.weight"]
        assert checkpoint.weights.get("q.weight").shape == checkpoint.weights.shape("q.weight")
        assert checkpoint.config.quantization == told["quant_method"]


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("told", "tensors", "name"),
    [
        (AWQ, awq(), "q.scales"),
        (GPTQ, gptq(), "q.scales"),
        (packed_config(), packed(), "q.weight_scale"),
        (FP8, fp8(), "q.weight_scale_inv"),
    ],
)
def test_scales_that_are_no_numbers_are_refused_when_they_are_read(tmp_path, told, tensors, name, scale):
    scales = tensors[name].copy()
    scales[-1, -1] = scale
    config = {**f.CONFIG, "quantization_config": told}
    f.write(tmp_path, config__json=config, model__safetensors=f.safetensors({**tensors, name: scales}))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        part = checkpoint.weights.blocks("q.weight")
        for read in (part.scales if part else None, lambda: checkpoint.weights.get("q.weight")):
            if read is not None:
                with pytest.raises(ModelError, match=f"'{name}' holds scales that are not finite; it is damaged"):
                    read()


def opened_with_bias(folder: Path, bias: np.ndarray) -> Checkpoint:
    tensors = {**gptq(), "q.bias": bias}
    f.write(folder, config__json={**f.CONFIG, "quantization_config": GPTQ}, model__safetensors=f.safetensors(tensors))
    return open_checkpoint(str(folder))


def test_biases_of_zero_beside_gptq_matrices_are_there_for_models_that_ask_and_no_fault_for_others(tmp_path):
    with opened_with_bias(tmp_path, np.zeros(16, np.float16)) as checkpoint:
        weights = Weights(checkpoint.weights)
        weights.get("q.weight", 16, 32)
        weights.check_all_read()
        assert weights.has("q.bias") and not weights.get("q.bias", 16).any()


def test_a_bias_that_says_something_must_have_a_place(tmp_path):
    with opened_with_bias(tmp_path, np.eye(16, dtype=np.float16)[5]) as checkpoint:
        weights = Weights(checkpoint.weights)
        weights.get("q.weight", 16, 32)
        with pytest.raises(ModelError, match="the model has no place for the tensor q.bias"):
            weights.check_all_read()


ODD = [None, True, 0, -1, 3, 8, 2**40, 1.5, "", "group", [], [4, 4], [0, -1], {}, {"format": 1}]
SHAPES = [(), (1,), (0,), (2,), (16,), (32,), (1, 1), (2, 2), (16, 1), (16, 2), (32, 2), (4, 16), (2, 16), (2, 2, 2)]
TYPES = [np.float32, np.float16, I32, I8, np.int64, E4M3]


def damaged(value: Any, rng: random.Random) -> Any:
    """A copy with one entry, however deep, that is something else."""
    if not isinstance(value, dict) or not value:
        return rng.choice(ODD)
    name = rng.choice([name for name in value if name != "quant_method"])
    return {**value, name: damaged(value[name], rng) if rng.random() < 0.6 else rng.choice(ODD)}


@pytest.mark.parametrize(
    ("told", "tensors"),
    [
        (AWQ, awq()),
        (GPTQ, gptq(g_idx=np.arange(32, dtype=I32) // 16)),
        (packed_config(), packed(weight_zero_point=np.zeros((2, 2), I32))),
        (
            packed_config(format="int-quantized", config_groups={"g": {"weights": {**WEIGHTS, "num_bits": 8}}}),
            {"q.weight": np.ones((16, 32), I8), "q.weight_scale": np.ones((16, 2), np.float16)},
        ),
        (FP8, fp8()),
    ],
)
def test_any_damage_is_refused_or_what_is_read_can_be_used(tmp_path, told, tensors):
    rng = random.Random(5)
    num_read = 0
    for _ in range(100):
        changed = dict(tensors)
        if rng.random() < 0.5:
            changed[rng.choice(sorted(changed))] = np.zeros(rng.choice(SHAPES), rng.choice(TYPES))
        config = {**f.CONFIG, "quantization_config": damaged(told, rng) if rng.random() < 0.6 else told}
        f.write(tmp_path, config__json=config, model__safetensors=f.safetensors(changed))
        try:
            opened = open_checkpoint(str(tmp_path))
        except ModelError as error:
            assert "\n" not in str(error) and len(str(error)) < 350
            continue
        with opened as checkpoint:
            for name in [name for name in checkpoint.weights.names() if name == "q.weight"]:
                num_read += 1
                assert checkpoint.weights.get(name).shape == checkpoint.weights.shape(name)
                part = checkpoint.weights.blocks(name)
                assert part is None or part.scales()[0].shape[0] == part.shape[0]
    assert num_read > 10
