"""Mixtures of experts whose routers cannot decide: the lowest expert it is, in any chunk and company."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import families
from tests.models.cases import PROMPTS, case
from tests.models.driver import Driver

TIED = {"all": slice(None), "a pair": [1, 3], "three": [0, 2, 4]}
"""Experts that share their row of every router."""


def to_the_lowest(router: Any, inputs: Any, outputs: Any) -> Any:
    """transformers leaves the order of equals to torch.topk, and whether they are equal to the shape of the product."""
    logits = torch.nn.functional.linear(inputs[0].flatten(0, -2).double(), router.weight.double()).float()
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, : router.top_k]
    weights = torch.softmax(logits, dim=-1).gather(1, ids)
    return logits, weights / weights.sum(-1, keepdim=True), ids


def tied(name: str, which: Any) -> families.Saved:
    model = copy.deepcopy(case(name).model)
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            with torch.no_grad():
                module.weight[which] = module.weight[which][:1].clone()
            module.register_forward_hook(to_the_lowest)
    return families.saved(model)


@pytest.mark.parametrize("which", TIED)
@pytest.mark.parametrize("name", ["mixtral", "qwen3 moe"])
def test_equals_go_to_the_lowest_expert_whole_in_chunks_and_token_by_token(name, which):
    made = tied(name, TIED[which])
    wanted = [families.logits(made.model, prompt) for prompt in PROMPTS]
    for chunk in (None, 7, 1):
        got = Driver(made.config(), made.arrays).run(PROMPTS, chunk)
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["mixtral", "qwen3 moe"])
def test_which_of_two_equals_is_taken_matters(name):
    made = tied(name, TIED["a pair"])

    def other(tensor: str) -> str:
        swapped = {".experts.1.": ".experts.3.", ".experts.3.": ".experts.1."}
        for own, taken in swapped.items():
            if own in tensor:
                return tensor.replace(own, taken)
        return tensor

    exchanged = {tensor: made.arrays[other(tensor)] for tensor in made.arrays}
    ours, theirs = (Driver(made.config(), arrays).run(PROMPTS) for arrays in (made.arrays, exchanged))
    assert max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) > 1e-2


@pytest.mark.covers("I25", "D42")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_fixed_shapes_a_row_has_the_same_bits_in_any_company(dtype):
    threads = torch.get_num_threads()
    made, options = case("qwen3 moe"), {"fixed_rows": 16, "num_threads": 1, "dtype": dtype}
    try:
        whole = Driver(made.config(), made.arrays, **options).run(PROMPTS)
        for prompt, wanted in zip(PROMPTS, whole, strict=True):
            for chunk in (None, 5, 1):
                alone = Driver(made.config(), made.arrays, **options).run([prompt], chunk)[0]
                assert np.array_equal(alone, wanted), (len(prompt), chunk)
    finally:
        torch.set_num_threads(threads)
