"""Routing and mixtures of experts, against the reference ops."""

import numpy as np
import pytest
from tests.ops.native.machines import assert_same_on_all, numbers, ops_of
from tests.ops.native.test_elementwise import DTYPES, floats

from headrace import _native
from headrace.ops.reference import ReferenceOps
from headrace.ops.reference.model_ops import to_torch

EXPERTS, HIDDEN, INNER = 11, 40, 24


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_routes_have_the_reference_s_experts_and_weights(dtype, renormalize):
    x, router = numbers(dtype, 9, HIDDEN), numbers(dtype, EXPERTS, HIDDEN, seed=1)
    reference = ReferenceOps(dtype)
    wanted = reference.route(to_torch(x), reference.weight(router), 4, renormalize)
    ids = assert_same_on_all(dtype, lambda ops: ops.route(x, ops.weight(router), 4, renormalize).ids)
    weights = assert_same_on_all(dtype, lambda ops: ops.route(x, ops.weight(router), 4, renormalize).weights)
    assert (ids == wanted.ids.numpy()).all()
    np.testing.assert_allclose(weights, wanted.weights.numpy(), rtol=2e-5)


def test_ties_go_to_the_lowest_ids_in_order():
    router = np.ones((5, HIDDEN), np.float32)
    router[3] *= 2
    routes = ops_of(_native.isas()[-1], 1, "float32")
    found = routes.route(np.ones((2, HIDDEN), np.float32), routes.weight(router), 3, True)
    assert found.ids.tolist() == [[3, 0, 1]] * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_experts_add_up_in_the_order_of_a_token_s_experts(dtype, rows):
    x, router = numbers(dtype, rows, HIDDEN), numbers(dtype, EXPERTS, HIDDEN, seed=1)
    gate_up = [numbers(dtype, 2 * INNER, HIDDEN, seed=2 + i) for i in range(EXPERTS)]
    down = [numbers(dtype, HIDDEN, INNER, seed=50 + i) for i in range(EXPERTS)]

    def run(ops, x):
        routes = ops.route(x, ops.weight(router), 3, True)
        return ops.experts(x, routes, list(map(ops.weight, gate_up)), list(map(ops.weight, down)), "silu")

    expected = run(ReferenceOps(dtype), to_torch(x))
    result = assert_same_on_all(dtype, lambda ops: run(ops, x))
    tolerance = 2e-6 if dtype == "float32" else 0.01
    scale = np.abs(floats(expected)).max()
    np.testing.assert_allclose(floats(result), floats(expected), rtol=0, atol=tolerance * scale)


def test_what_does_not_fit_is_refused():
    ops = ops_of(_native.isas()[-1], 1, "float32")
    x = np.ones((2, HIDDEN), np.float32)
    routes = ops.route(x, ops.weight(np.ones((EXPERTS, HIDDEN), np.float32)), 2, True)
    routes.ids[0, 0] = EXPERTS
    weights = [ops.weight(np.ones((2 * INNER, HIDDEN), np.float32))] * EXPERTS
    down = [ops.weight(np.ones((HIDDEN, INNER), np.float32))] * EXPERTS
    with pytest.raises(ValueError, match="no such expert"):
        ops.experts(x, routes, weights, down, "silu")
    with pytest.raises(ValueError, match="two matrices"):
        ops.experts(x, routes, weights, down[1:], "silu")
