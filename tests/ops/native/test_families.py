"""Every family as a native program: close to transformers, and the same bits op by op, in chunks, on every machine."""

import gc

import numpy as np
import pytest
from tests.models import families
from tests.models.cases import CASES, PROMPTS, case
from tests.ops.native.driver import NativeDriver
from tests.ops.native.machines import ISAS, KINDS, ops_of


def logits_of(name: str, ops, is_lowered: bool, chunk: int | None = None) -> np.ndarray:
    model = case(name)
    return np.concatenate(NativeDriver(model.config(), model.arrays, ops, is_lowered).run(PROMPTS, chunk))


@pytest.mark.parametrize("name", CASES)
def test_fp32_logits_equal_transformers(name):
    wanted = np.concatenate([families.logits(case(name).model, prompt) for prompt in PROMPTS])
    got = logits_of(name, ops_of(ISAS[-1], 2, "float32"), is_lowered=True)
    np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_bf16_bits_depend_neither_on_chunks_nor_on_threads_nor_on_the_machine(name):
    expected = logits_of(name, ops_of(ISAS[-1], 1, "bfloat16"), is_lowered=False, chunk=7)
    assert np.isfinite(expected).all()
    for kind in KINDS[-3:]:
        assert logits_of(name, ops_of(*kind, "bfloat16"), True).tobytes() == expected.tobytes(), kind
    assert logits_of(name, ops_of(*KINDS[0], "bfloat16"), True, 7).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["mixtral", "gpt2"])
def test_a_program_keeps_the_weights_that_it_reads(name):
    model, ops = case(name), ops_of(ISAS[-1], 1, "bfloat16")
    driver = NativeDriver(model.config(), model.arrays, ops, is_lowered=True)
    driver.step({0: PROMPTS[3]})
    again = driver._inputs([(0, 0, len(PROMPTS[3]))])
    expected = driver.model.forward(again, driver.caches).tobytes()
    driver.model._model = None
    gc.collect()
    others = [ops.weight(np.full(array.shape, 7, np.float32)) for array in model.arrays.values() if array.ndim == 2]
    assert others and driver.model.forward(again, driver.caches).tobytes() == expected
