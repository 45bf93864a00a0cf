"""Tests of features at convergence: autograd as the oracle, closed forms, kinks, and bad input."""

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap

import bnrank
from bnrank.measures.critical_points import stationarity
from bnrank.theory import feature_convergence
from helpers import network, normal


def by_autograd(net, x, y, ridge, weights=None, derivatives=None):
    """Both sides and the average gradient outer products of every layer, from autograd.

    ``derivatives`` are those of the activation, (N, n_l) per hidden layer; by default PyTorch's.
    """
    weights = torch.ones(len(x)).double() if weights is None else weights
    shares = weights / weights.sum()
    inputs, a = [], x.double()
    for number, layer in enumerate(net.layers):
        a = a.detach().requires_grad_() if number == 0 else a
        inputs.append(a)
        z = layer(a)
        if number == len(net.layers) - 1:
            break
        a = torch.nn.functional.leaky_relu(z, net.slope) if derivatives is None else z * derivatives[number]
    gradients = torch.autograd.grad((shares * (z - y).square().sum(1)).sum(), inputs, retain_graph=True)
    found = []
    for layer, a, g in zip(net.layers, inputs, gradients, strict=True):
        left = layer.weight.T @ torch.cat([layer.weight, layer.bias[:, None]], 1)
        right = -(g.T @ torch.cat([a, torch.ones(len(a), 1)], 1)) / (2 * ridge)
        rows = [torch.autograd.grad(z[:, k].sum(), a, retain_graph=True)[0] for k in range(z.shape[1])]
        outer = torch.einsum("n,kni,knj->ij", shares, torch.stack(rows), torch.stack(rows))
        found.append([value.detach().numpy() for value in (left, right, outer)])
    return found


def relative(left, right):
    return np.linalg.norm(left - right) / (np.linalg.norm(left) + np.linalg.norm(right))


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_both_sides_are_those_of_autograd(slope, weighted):
    net, x, y, ridge = network([3, 5, 4, 2], slope, seed=3), normal(7, 3, seed=1), normal(7, 2, seed=2), 0.05
    weights = torch.arange(1.0, 8.0).double() if weighted else None
    found = feature_convergence(net, bnrank.Task(x, y, weights=weights), ridge)
    for number, (left, right, outer) in enumerate(by_autograd(net, x, y, ridge, weights)):
        np.testing.assert_allclose(found.features[number], left[:, :-1], atol=1e-12)
        np.testing.assert_allclose(found.predicted[number], right[:, :-1], atol=1e-12)
        np.testing.assert_allclose(found.outer_products[number], outer, atol=1e-12)
        assert found.errors[number] == pytest.approx(relative(left, right), rel=1e-10)  # with the column of the biases
        cosine = (left[:, :-1] * outer).sum() / np.linalg.norm(left[:, :-1]) / np.linalg.norm(outer)
        assert found.correlations[number] == pytest.approx(cosine, rel=1e-10)
    assert found.errors.min() > 0.1


def test_the_outer_products_are_those_of_the_jacobian_of_the_network():
    net, x = network([3, 5, 4, 2], seed=3), normal(7, 3, seed=1)
    found = feature_convergence(net, (x, normal(7, 2)), 0.1)
    jacobians = vmap(jacrev(net))(x)
    expected = torch.einsum("nki,nkj->ij", jacobians, jacobians) / 7
    np.testing.assert_allclose(found.outer_products[0], expected.detach().numpy(), atol=1e-12)


def test_repeated_samples_count_as_often_as_they_occur():
    net, x, y = network([3, 4, 2], seed=1), normal(5, 3, seed=1), normal(7, 2, seed=2)
    rows = [0, 0, 1, 2, 3, 4, 4]
    found = feature_convergence(net, (x[rows], y), 0.1)
    for number, (_, right, outer) in enumerate(by_autograd(net, x[rows], y, 0.1)):
        np.testing.assert_allclose(found.predicted[number], right[:, :-1], atol=1e-12)
        np.testing.assert_allclose(found.outer_products[number], outer, atol=1e-12)


def test_a_minimum_in_closed_form():
    # C = (v w - 2)^2 with lambda = 1/2: v = w = sqrt(3/2), both sides are 3/2 in both layers, and J = (3/2, sqrt(3/2)).
    side = 1.5**0.5
    weights = torch.tensor([[side]], dtype=torch.float64)
    task = torch.ones(1, 1), torch.full((1, 1), 2.0)
    found = feature_convergence(bnrank.networks.from_layers([weights, weights]), task, 0.5)
    assert found.errors == pytest.approx([0, 0], abs=1e-15)
    assert [float(f[0, 0]) for f in (*found.features, *found.predicted)] == pytest.approx([1.5] * 4)
    assert [float(f[0, 0]) for f in found.outer_products] == pytest.approx([2.25, 1.5])
    off = feature_convergence(bnrank.networks.from_layers([weights, 1.1 * weights]), task, 0.5)
    # W_2^T W_2 = 1.815, and -g a / (2 lambda) = -2 (1.65 - 2) 1.65 = 1.155
    assert off.errors[1] == pytest.approx((1.815 - 1.155) / (1.815 + 1.155))


def test_at_kinks_the_derivatives_of_least_gradient_count():
    task = bnrank.tasks.low_rank_map(n=25, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=1)
    run = bnrank.train(bnrank.MLP([3, 5, 5, 3]), task, ridge=5e-3, steps=300, seed=1, progress=False)
    done = bnrank.finish(run.network(0), task, 5e-3, births=False, progress=False)
    at = stationarity(done.network, task, 5e-3, births=False)
    assert len(at.slopes) > 0
    assert at.residual <= 1e-8
    found = feature_convergence(done.network, task, 5e-3)
    assert found.errors.max() <= 1e-8
    assert found.residual == at.residual
    a, derivatives = task.x.double(), []
    for number, layer in enumerate(done.network.layers[:-1]):
        z = layer(a)
        derivative = (z > 0).double()
        here = at.layers == number + 1
        derivative[at.samples[here], at.neurons[here]] = torch.from_numpy(at.slopes[here])
        derivatives.append(derivative.detach())
        a = z * derivative
    oracle = by_autograd(done.network, task.x.double(), task.y.double(), 5e-3, derivatives=derivatives)
    for number, (left, right, outer) in enumerate(oracle):
        np.testing.assert_allclose(found.predicted[number], right[:, :-1], atol=1e-10)
        np.testing.assert_allclose(found.outer_products[number], outer, atol=1e-10)
        assert relative(left, right) <= 1e-8
    plain = by_autograd(done.network, task.x.double(), task.y.double(), 5e-3)
    assert max(relative(left, right) for left, right, _ in plain) > 1e-3  # with PyTorch's derivatives it fails


def test_roots_of_outer_products_are_the_features_of_balanced_linear_networks():
    left, _, right = torch.linalg.svd(normal(3, 3, seed=4))
    s = torch.tensor([2.0, 1.0, 0.5]).double()
    factors = [torch.diag(s ** (1 / 3)) @ right, torch.diag(s ** (1 / 3)), left @ torch.diag(s ** (1 / 3))]
    net = bnrank.networks.from_layers(factors, slope=1.0)
    found = feature_convergence(net, (normal(6, 3, seed=1), normal(6, 3, seed=2)), 0.1)
    assert found.root_correlations == pytest.approx([1, 1, 1], abs=1e-12)
    assert found.correlations[0] < 0.99


def test_layers_without_weights_have_no_correlation():
    zero = bnrank.networks.from_layers([torch.zeros(4, 3), torch.zeros(2, 4)])
    found = feature_convergence(zero, (normal(5, 3), normal(5, 2)), 0.1)
    assert found.errors.tolist() == [0, 0]
    assert np.isnan(found.correlations).all()
    assert "nan" in str(found).lower() or "–" in str(found)


def test_layers_that_are_zero_up_to_rounding_have_no_error():
    # A constant function: the minimum has only biases of the last layers, and rounding leaves W_1 of 1e-13.
    net = bnrank.networks.from_layers(
        [1e-13 * normal(4, 3, seed=1), 1e-13 * normal(2, 4, seed=2)],
        [torch.zeros(4), torch.full((2,), 1 / 1.01, dtype=torch.float64)],
    )
    found = feature_convergence(net, (normal(10, 3), torch.ones(10, 2, dtype=torch.float64)), 1e-2)
    assert 0 < np.linalg.norm(found.features[0]) < 1e-24
    assert found.errors.max() <= 1e-8


def test_it_prints_and_makes_a_table():
    found = feature_convergence(network([3, 4, 2]), (normal(5, 3), normal(5, 2)), 0.1)
    assert list(found.to_frame().columns) == ["layer", "error", "correlation", "root_correlation"]
    assert len(str(found).splitlines()) >= 4


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.0}, "ridge"),
        ({"kink_rtol": -1.0}, "kink_rtol"),
        ({"task": (torch.ones(4, 2), torch.ones(4, 3))}, "task: got 2 inputs"),
        ({"net": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU(), torch.nn.Linear(3, 3))}, "net"),
    ],
)
def test_bad_input_is_named(change, match):
    given = {"net": bnrank.MLP([3, 4, 3]), "task": (torch.ones(4, 3), torch.ones(4, 3)), "ridge": 0.1} | change
    with pytest.raises((ValueError, TypeError), match=match):
        feature_convergence(given.pop("net"), given.pop("task"), given.pop("ridge"), **given)
