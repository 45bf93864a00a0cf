"""Kernels of F14 along depth against loops, distances against textbook formulas and brute force, layouts."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from bnrank import MLP
from bnrank.figures.f14_geodesics.kernels import affine_invariant, angle, bures, distances, factors, layout
from bnrank.theory.constructions import linear
from helpers import normal


def orthogonal(n, seed=0):
    return torch.linalg.qr(normal(n, n, seed=seed))[0]


def triple(metric, seed):
    """Return factors of three kernels of five samples, of one range."""
    widths = (6, 5, 8) if metric is affine_invariant else (2, 3, 8)
    return [normal(5, n, seed=seed + i) for i, n in enumerate(widths)]


def test_kernels_are_inner_products_over_n():
    net, x = MLP([3, 5, 4, 2], slope=0.3, seed=1), normal(6, 3)
    found = [f @ f.T for f in factors(net, x)]
    at = list(x)
    for layer, kernel in enumerate(found):
        for i, j in itertools.product(range(6), repeat=2):
            assert float(kernel[i, j]) == pytest.approx(float((at[i] @ at[j]).detach()) / 6, abs=1e-12)
        if layer < 3:
            inside = at if layer == 0 else [nn.functional.leaky_relu(a, 0.3) for a in at]
            at = [net.weights[layer].double() @ a + net.biases[layer].double() for a in inside]
    assert len(found) == 4


def test_bures_is_the_formula_with_roots_and_the_best_of_all_rotations():
    f, g = normal(5, 4), normal(5, 6, seed=1)
    a, b = (f @ f.T).numpy(), (g @ g.T).numpy()
    root = scipy.linalg.sqrtm(a)
    squared = np.trace(a + b - 2 * scipy.linalg.sqrtm(root @ b @ root)).real
    assert bures(f, g) == pytest.approx(math.sqrt(squared), rel=1e-6)
    f, g = f[:, :2], g[:, :2]
    turns = np.linspace(0, 2 * np.pi, 20_001)
    tried = []
    for flip in (1, -1):
        q = np.array([[np.cos(turns), -flip * np.sin(turns)], [np.sin(turns), flip * np.cos(turns)]])
        turned = np.einsum("na,abt->nbt", f.numpy(), q)
        tried.append(np.sqrt(((turned - g.numpy()[..., None]) ** 2).sum((0, 1))).min())
    assert bures(f, g) == pytest.approx(min(tried), rel=1e-7)
    assert bures(f, g) <= min(tried)


@pytest.mark.filterwarnings("ignore:logm result may be inaccurate")
@pytest.mark.parametrize("wide", [False, True])
def test_affine_invariant_distances_are_those_of_matrix_logarithms(wide):
    """On the common range, which is everything or of dimension 4 among 30 samples."""
    f, g = normal(4, 4) + 2 * torch.eye(4), normal(4, 7, seed=1)
    a, b = (f @ f.T).numpy(), (g @ g.T).numpy()
    root = np.linalg.inv(scipy.linalg.sqrtm(a))
    basis = torch.linalg.qr(normal(30, 4, seed=2))[0] if wide else torch.eye(4, dtype=torch.float64)
    expected = np.linalg.norm(scipy.linalg.logm(root @ b @ root))
    assert affine_invariant(basis @ f, basis @ g) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("samples", [6, 40])
def test_angles_are_those_of_kernels(samples):
    f, g = normal(samples, 3) + 1, normal(samples, 5, seed=1)
    a, b = f @ f.T, g @ g.T
    assert angle(f, g) == pytest.approx(math.acos(float((a * b).sum() / a.norm() / b.norm())), rel=1e-10)


@pytest.mark.parametrize("metric", [bures, affine_invariant, angle])
def test_axioms_of_a_metric_and_what_changes_nothing(metric):
    for seed in range(20):
        a, b, c = triple(metric, 10 * seed)
        ab, bc, ac = metric(a, b), metric(b, c), metric(a, c)
        assert 0.1 < ab < math.inf
        assert metric(b, a) == pytest.approx(ab, rel=1e-9)
        assert ac <= ab + bc + 1e-9
        assert metric(a, a @ orthogonal(a.shape[1], seed)) < 1e-12
    a, b, _ = triple(metric, 0)
    d = metric(a, b)
    assert metric(3 * a, 3 * b) == pytest.approx(3 * d if metric is bures else d, rel=1e-9)
    assert (metric(3 * a, b) == pytest.approx(d, rel=1e-9)) == (metric is angle)
    m = normal(5, 5, seed=7)
    assert (metric(m @ a, m @ b) == pytest.approx(d, rel=1e-6)) == (metric is affine_invariant)


def test_small_distances_keep_their_digits():
    f, step = normal(40, 4), 1e-10
    turned = (f * (1 + step)) @ orthogonal(4)
    assert bures(f, turned) == pytest.approx(step * float(f.norm()), rel=1e-4)
    assert affine_invariant(f, turned) == pytest.approx(2 * step * 2, rel=1e-4)
    f, g = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([[1.0], [1e-10]]).double()
    assert angle(f, g) == pytest.approx(math.sqrt(2) * 1e-10, rel=1e-6)  # of v v^T, not of v


def test_kernels_of_different_ranges_are_infinitely_far_apart():
    f, g, basis = normal(6, 2), normal(6, 2, seed=1), orthogonal(7)
    assert affine_invariant(f, g) == affine_invariant(f, torch.cat([f, g], 1)) == math.inf
    assert affine_invariant(f, f @ normal(2, 5, seed=2)) < math.inf
    assert affine_invariant(f, torch.cat([f, 1e-9 * g], 1)) == pytest.approx(0, abs=1e-8)
    for tilt, same in ((1e-10, True), (9e-7, True), (2e-6, False)):
        tilted = basis[:, :3].clone()
        tilted[:, 0] = math.cos(tilt) * basis[:, 0] + math.sin(tilt) * basis[:, 3]
        assert (affine_invariant(basis[:, :3], tilted) == pytest.approx(0, abs=1e-9)) == same


def test_optimal_linear_networks_are_straight():
    """T8: affine-invariant distances go with the steps on any data."""
    a, x = normal(4, 4), normal(50, 4, seed=1)
    d = distances(factors(linear(a, 7), x), affine_invariant)
    steps = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    np.testing.assert_allclose(d, steps * 2 * float(torch.linalg.svdvals(a).log().norm()) / 7, atol=1e-12)


def test_layout_finds_points_in_the_plane_and_says_how_much_it_leaves_out():
    points = normal(9, 2).numpy()
    d = np.linalg.norm(points[:, None] - points, axis=2)
    made, share = layout(d)
    np.testing.assert_allclose(np.linalg.norm(made[:, None] - made, axis=2), d, atol=1e-12)
    np.testing.assert_allclose(made.mean(0), 0, atol=1e-12)
    assert share == pytest.approx(1, abs=1e-12)
    assert (made.max(0) >= -made.min(0)).all()
    simplex = np.ones((4, 4)) - np.eye(4)  # three equal eigenvalues
    assert layout(simplex)[1] == pytest.approx(2 / 3)
    star = np.array([[0, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2], [1, 2, 2, 0.0]])  # eigenvalues 2, 2, 0, -1/4
    assert layout(star)[1] == pytest.approx(4 / 4.25)
