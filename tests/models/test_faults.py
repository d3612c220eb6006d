"""What models of this kind got wrong elsewhere: one test for each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.models import oracle
from tests.models.driver import BLOCK, Driver

from headrace.words.cache_spec import PagedKV

PROMPT = [(7 * i * i + 3 * i) % 101 for i in range(30)]
SHARED = 5
"""Blocks of the prompt that two sequences have in common."""
CHANGES = {"attention_bias": True, "mlp_bias": True}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return oracle.arrays(oracle.make(**CHANGES))


@pytest.fixture(scope="module")
def alone(arrays) -> np.ndarray:
    """Logits [30, vocab] of the prompt, computed whole."""
    return Driver(oracle.config(**CHANGES), arrays).run([PROMPT])[0]


def sharing(arrays: dict[str, np.ndarray]) -> Driver:
    """Sequence 1 holds the first blocks of sequence 0 and has not computed anything itself."""
    driver = Driver(oracle.config(**CHANGES), arrays)
    driver.blocks = {0: [9, 4, 30, 2, 17]}
    driver.blocks[1] = list(driver.blocks[0])
    driver.withhold(driver.blocks[0])
    driver.tokens[1] = PROMPT[: SHARED * BLOCK]
    return driver


@pytest.mark.covers("6b")
def test_a_prefix_that_another_sequence_computed_is_read(arrays, alone):
    driver = sharing(arrays)
    driver.step({0: PROMPT})
    got = driver.step({1: PROMPT[SHARED * BLOCK :]})[1]
    np.testing.assert_allclose(got, alone[SHARED * BLOCK :], atol=1e-5)


@pytest.mark.covers("6b")
def test_a_prefix_that_another_sequence_computes_in_the_same_step_is_read(arrays, alone):
    got = sharing(arrays).step({1: PROMPT[SHARED * BLOCK :], 0: PROMPT})
    np.testing.assert_allclose(got[0], alone, atol=1e-5)
    np.testing.assert_allclose(got[1], alone[SHARED * BLOCK :], atol=1e-5)


@pytest.mark.covers("6b")
def test_every_layer_reads_the_shared_prefix(arrays, alone):
    for number in range(3):
        driver = sharing(arrays)
        driver.step({0: PROMPT})
        driver.caches[number].values[4] += 1
        got = driver.step({1: PROMPT[SHARED * BLOCK :]})[1]
        assert np.abs(got - alone[SHARED * BLOCK :]).max() > 1e-2, f"layer {number}"


@pytest.mark.covers("6f")
def test_the_residual_is_taken_before_the_norm(arrays):
    """With gammas of zero and no biases all layers add nothing: what was embedded reaches the last norm."""
    config = oracle.config()
    silent = {n: np.zeros_like(a) if "layernorm" in n else a for n, a in arrays.items() if not n.endswith("bias")}
    got = Driver(config, silent).run([PROMPT])[0]
    x = silent["model.embed_tokens.weight"][PROMPT].astype(np.float64)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * silent["model.norm.weight"]
    np.testing.assert_allclose(got, x @ silent["lm_head.weight"].T, atol=1e-4)


def names() -> Iterator[str]:
    for i in range(oracle.LLAMA["num_hidden_layers"]):
        yield from (f"model.layers.{i}.{kind}_layernorm.weight" for kind in ("input", "post_attention"))
        for layer in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"):
            yield from (f"model.layers.{i}.{layer}_proj.{kind}" for kind in ("weight", "bias"))
    yield from ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


@pytest.mark.covers("6f")
def test_every_tensor_of_the_checkpoint_is_loaded_and_matters(arrays, alone):
    assert sorted(names()) == sorted(arrays)
    for name in names():
        other = {**arrays, name: arrays[name][::-1].copy()}
        moved = np.abs(Driver(oracle.config(**CHANGES), other).run([PROMPT])[0] - alone).max()
        # The same bias on all keys of a head moves no weight but through the rotation, hence little.
        assert moved > 1e-2, name


@pytest.mark.covers("6f")
def test_the_last_position_that_max_model_len_allows_can_be_computed(arrays, alone):
    config = oracle.config(**CHANGES)
    np.testing.assert_allclose(Driver(config, arrays, max_model_len=30).run([PROMPT])[0], alone, atol=1e-5)
    with pytest.raises(IndexError):
        Driver(config, arrays, max_model_len=29).run([PROMPT])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_caches_and_bytes_are_told_in_the_type_of_the_ops(arrays, dtype):
    model = Driver(oracle.config(**CHANGES), arrays, dtype=dtype, poison=False).model
    assert model.cache_specs() == (PagedKV(2, 16, dtype),) * 3
    item_bytes = {"float32": 4, "bfloat16": 2}[dtype]
    assert model.weight_bytes == item_bytes * sum(array.size for array in arrays.values())


def test_bf16_is_as_near_to_fp32_as_transformers_is(arrays, alone):
    import torch

    model = oracle.make(**CHANGES).to(torch.bfloat16)
    theirs = np.abs(oracle.logits(model, PROMPT) - alone).mean()
    driver = Driver(oracle.config(**CHANGES), arrays, dtype="bfloat16")
    ours = np.abs(driver.run([PROMPT], 7)[0] - alone).mean()
    assert ours < 1.1 * theirs
