"""A model's forward as one native call: the bits of the same ops called one by one, close to the reference."""

import random

import numpy as np
import pytest
from tests.models import oracle
from tests.ops.native.driver import NativeDriver
from tests.ops.native.machines import ISAS, KINDS, ops_of

VARIANTS = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "gelu": {"hidden_act": "gelu"},
}
RNG = random.Random(3)
PROMPTS = [[RNG.randrange(101) for _ in range(n)] for n in (1, 4, 9, 23, 30)]


def logits_of(name: str, ops, is_lowered: bool, chunk: int | None = None) -> np.ndarray:
    model = oracle.make(**VARIANTS[name])
    driver = NativeDriver(oracle.config(**VARIANTS[name]), oracle.arrays(model), ops, is_lowered)
    return np.concatenate(driver.run(PROMPTS, chunk))


@pytest.mark.parametrize("name", VARIANTS)
def test_fp32_logits_equal_transformers(name):
    model = oracle.make(**VARIANTS[name])
    wanted = np.concatenate([oracle.logits(model, prompt) for prompt in PROMPTS])
    got = logits_of(name, ops_of(ISAS[-1], 2, "float32"), is_lowered=True)
    np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_call_equals_op_by_op_in_any_chunks_on_every_instruction_set(dtype):
    expected = logits_of("biases", ops_of(ISAS[-1], 1, dtype), is_lowered=False).tobytes()
    for kind in KINDS:
        for chunk in (None, 7, 1):
            assert logits_of("biases", ops_of(*kind, dtype), True, chunk).tobytes() == expected, (kind, chunk)


def test_buffers_are_shared_between_layers():
    model = oracle.make()
    driver = NativeDriver(oracle.config(), oracle.arrays(model), ops_of(ISAS[-1], 1, "float32"), is_lowered=True)
    program = driver.model._program
    assert program.num_ops == 3 + 10 * 3 + 2
    assert program.num_buffers <= 12


def test_a_step_larger_than_the_program_is_refused():
    model = oracle.make()
    driver = NativeDriver(oracle.config(), oracle.arrays(model), ops_of(ISAS[-1], 1, "float32"), is_lowered=True)
    with pytest.raises(ValueError, match="more tokens"):
        driver.step({i: [1] * 30 for i in range(3)})


def test_token_ids_and_positions_outside_the_model_are_refused():
    model = oracle.make()
    driver = NativeDriver(oracle.config(), oracle.arrays(model), ops_of(ISAS[-1], 1, "float32"), is_lowered=True)
    with pytest.raises(ValueError, match="no such token id"):
        driver.step({0: [101]})
    with pytest.raises(ValueError, match="tables of positions"):
        driver.step({1: [1] * 65})
