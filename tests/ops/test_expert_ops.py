"""The reference ops of mixtures of experts, against a statement of their own in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.ops.reference import ReferenceOps

NEAR = {"float32": 2e-6, "bfloat16": 1.5e-2}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(1, 1, 1), (5, 7, 2), (33, 8, 8), (17, 60, 4)])
def test_each_token_goes_to_its_highest_logits_by_their_softmax(tokens, experts, chosen, renormalize):
    ops, x, router = ReferenceOps(), numbers(tokens, 20), numbers(experts, 20, seed=1)
    routes = ops.route(torch.from_numpy(x), ops.weight(router), chosen, renormalize)
    logits = x.astype(np.float64) @ router.T
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :chosen]
    assert np.array_equal(routes.ids.numpy(), ids)
    weights = np.take_along_axis(softmax(logits), ids, 1)
    if renormalize:
        weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(routes.weights.numpy(), weights, atol=1e-5)


@pytest.mark.parametrize("dtype", NEAR)
def test_ties_go_to_the_lowest_expert_whatever_else_is_there(dtype):
    """Experts 2, 5, 6 and 9 agree to the bit; so do all others."""
    ops, router = ReferenceOps(dtype), np.zeros((70, 8), np.float32)
    router[[2, 5, 6, 9]] = 1
    x = torch.ones(40, 8, dtype=getattr(torch, dtype))
    assert ops.route(x, ops.weight(router), 3, True).ids.tolist() == [[2, 5, 6]] * 40
    routes = ops.route(x, ops.weight(router), 6, True)
    assert routes.ids.tolist() == [[2, 5, 6, 9, 0, 1]] * 40
    assert (routes.weights[:, :4] == routes.weights[0, 0]).all()


def test_router_logits_are_not_rounded_to_bf16():
    """Two experts that differ by less than a bf16 step of their logits are told apart."""
    ops, router = ReferenceOps("bfloat16"), np.zeros((3, 2), np.float32)
    router[1], router[2] = [256.0, 0.0], [256.0, 0.5]
    routes = ops.route(torch.ones(1, 2, dtype=torch.bfloat16), ops.weight(router), 2, True)
    assert routes.ids.tolist() == [[2, 1]] and routes.weights.dtype == torch.float32


def made(ops: ReferenceOps, experts: int, hidden: int, inner: int) -> tuple[list, list, list, list]:
    """Weights as the ops hold them, and what they hold in double."""
    gate_up = [numbers(2 * inner, hidden, seed=2 + i) / hidden**0.5 for i in range(experts)]
    down = [numbers(hidden, inner, seed=50 + i) / inner**0.5 for i in range(experts)]
    held = [[ops.weight(w) for w in kind] for kind in (gate_up, down)]
    exact = [
        [torch.from_numpy(w).to(getattr(torch, ops.dtype)).double().numpy() for w in kind] for kind in (gate_up, down)
    ]
    return *held, *exact


def slow_experts(x: np.ndarray, routes, gate_up: list, down: list) -> np.ndarray:
    """Token by token, expert by expert."""
    out = np.zeros_like(x)
    for token, (ids, weights) in enumerate(zip(routes.ids.tolist(), routes.weights.double().numpy(), strict=True)):
        for expert, weight in zip(ids, weights, strict=True):
            gate, up = np.split(gate_up[expert] @ x[token], 2)
            out[token] += weight * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("fixed_rows", [None, 16])
@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(1, 3, 1), (1, 3, 3), (19, 5, 2), (40, 60, 3)])
def test_experts_add_what_each_token_is_due(tokens, experts, chosen, fixed_rows, dtype):
    ops = ReferenceOps(dtype, fixed_rows=fixed_rows)
    x = torch.from_numpy(numbers(tokens, 24)).to(getattr(torch, dtype))
    routes = ops.route(x, ops.weight(numbers(experts, 24, seed=1)), chosen, False)
    gate_up, down, exact_gate_up, exact_down = made(ops, experts, 24, 10)
    got = ops.experts(x, routes, gate_up, down, "silu")
    wanted = slow_experts(x.double().numpy(), routes, exact_gate_up, exact_down)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.double().numpy(), wanted, atol=NEAR[dtype] * max(1, np.abs(wanted).max()))


def test_experts_are_added_in_fp32_and_rounded_once():
    """256 + 1 + 1 is 258 in bf16 if it is rounded at the end, and 256 if it is rounded at every term."""
    ops = ReferenceOps("bfloat16")
    x = torch.ones(1, 1, dtype=torch.bfloat16)
    gate_up = [ops.weight(np.ones((2, 1), np.float32)) for _ in range(3)]
    down = [ops.weight(np.array([[value]], np.float32)) for value in (256.0, 1.0, 1.0)]
    routes = ops.route(x, ops.weight(np.zeros((3, 1), np.float32)), 3, False)
    routes = routes._replace(weights=torch.ones(1, 3))
    assert ops.experts(x, routes, gate_up, down, "relu").item() == 258


def test_in_fixed_shapes_a_token_has_the_same_bits_in_any_company():
    threads = torch.get_num_threads()
    try:
        for dtype in NEAR:
            ops = ReferenceOps(dtype, num_threads=1, fixed_rows=16)
            x = torch.from_numpy(numbers(45, 24)).to(getattr(torch, dtype))
            router, (gate_up, down, *_) = ops.weight(numbers(6, 24, seed=1)), made(ops, 6, 24, 10)
            whole = ops.experts(x, ops.route(x, router, 2, True), gate_up, down, "silu")
            for start, end in ((0, 1), (3, 20), (44, 45)):
                part = x[start:end]
                alone = ops.experts(part, ops.route(part, router, 2, True), gate_up, down, "silu")
                assert torch.equal(alone, whole[start:end])
    finally:
        torch.set_num_threads(threads)
