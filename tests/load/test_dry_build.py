"""Models built without reading a weight."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.models.cases import CASES, case
from tests.models.driver import DictSource, Driver

from headrace.load.dry_build import dry_build
from headrace.words.errors import ModelError


class Untouchable(DictSource):
    """Its values must not be asked for."""

    def get(self, name):
        pytest.fail(f"{name} was read")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_is_what_the_built_model_says(name, dtype):
    made = case(name)
    built = Driver(made.config(), made.arrays, dtype=dtype).model
    plan = dry_build(made.config(), Untouchable(made.arrays), dtype)
    assert (plan.weight_bytes, plan.cache_specs) == (built.weight_bytes, built.cache_specs())


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_tensors_is_told_before_any_is_read(name):
    made = case(name)
    last = sorted(made.arrays)[-1]
    shapes = {**made.arrays, last: np.zeros((3, 3, 3), np.float32)}
    with pytest.raises(ModelError, match="has the shape"):
        dry_build(made.config(), Untouchable(shapes))
    with pytest.raises(ModelError, match="is missing"):
        dry_build(made.config(), Untouchable({n: a for n, a in made.arrays.items() if n != last}))
    with pytest.raises(ModelError, match="no place for the tensor model.odd"):
        dry_build(made.config(), Untouchable({**made.arrays, "model.odd": made.arrays[last]}))


def test_a_model_of_terabytes_takes_no_memory():
    made = case("mistral")
    wide = {"vocab_size": 2**20, "hidden_size": 2**16, "intermediate_size": 2**18, "num_hidden_layers": 3}
    config = made.config(**wide, num_attention_heads=2**9, num_key_value_heads=2**9, head_dim=2**7)
    sizes = {101: 2**20, 48: 2**16, 80: 2**18, 16: 2**16}
    arrays = {
        name: np.broadcast_to(np.float32(0), [sizes[size] for size in array.shape])
        for name, array in made.arrays.items()
    }
    tracemalloc.start()
    plan = dry_build(config, DictSource(arrays), "bfloat16")
    assert plan.weight_bytes > 2**39 and tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
