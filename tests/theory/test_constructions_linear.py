"""Linear and diagonal networks of least norm (T32, T2, T8), and linear maps on completely positive domains (T7)."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bnrank.networks import LinearNetwork
from bnrank.networks.mlp import leaky_relu
from bnrank.theory import domains
from bnrank.theory.constructions import completely_positive, deepen, diagonal, linear
from helpers import norm, normal
from theory.constructed import QUICK, close


def planted(rank, m, d, seed=0):
    """A matrix of exactly this rank, with its non-zero singular values."""
    u, v = (torch.linalg.qr(normal(n, rank, seed=seed + n)).Q for n in (m, d))
    s = normal(rank, seed=seed).exp().sort(descending=True).values
    return (u * s) @ v.T, s


def ends(net):
    product = torch.eye(net.widths[0], dtype=torch.float64)
    for weight in net.weights:
        product = weight.detach().double() @ product
    return product


@QUICK
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 60), st.integers(0, 99))
def test_linear_networks_reach_the_least_norm(rank, m, d, depth, seed):
    rank = min(rank, m, d)
    a, s = planted(rank, m, d, seed)
    net = linear(a, depth)
    assert isinstance(net, LinearNetwork)
    assert close(ends(net), a, 1e-13)
    assert norm(net) == pytest.approx(depth * float((s ** (2 / depth)).sum()), rel=1e-12)
    assert net.widths[1:-1] == [rank] * (depth - 1)
    assert not net.biases


@QUICK
@given(st.integers(2, 12), st.integers(0, 99))
def test_representations_are_a_straight_line_in_log_space(depth, seed):
    a, _ = planted(2, 3, 4, seed)
    values, vectors = torch.linalg.eigh(a.T @ a)
    values = values.clamp(min=0) * (values > 1e-10 * values.max())
    product = torch.eye(4, dtype=torch.float64)
    for layer, weight in enumerate(linear(a, depth).weights, 1):
        product = weight.detach() @ product
        power = torch.where(values > 0, values ** (layer / depth), 0.0)
        assert close(product.T @ product, (vectors * power) @ vectors.T)


def test_linear_norm_expands_in_depth():
    """T3: L s^(2/L) = L rank + 2 log |A|_+ + (1/2L) ||log A^T A||^2 + O(1 / L^2)."""
    a, s = planted(3, 5, 4)
    r1, r2 = 2 * float(s.log().sum()), 0.5 * float((2 * s.log()).square().sum())
    rest = [depth**2 * (norm(linear(a, depth)) - 3 * depth - r1 - r2 / depth) for depth in (100, 1000)]
    third = float((2 * s.log()).pow(3).sum()) / 6
    assert rest == pytest.approx([third, third], rel=0.1)


def test_zero_and_scalar_matrices():
    net = linear(torch.zeros(3, 2), 5)
    assert net.widths == [2, 1, 1, 1, 1, 3]
    assert norm(net) == 0
    assert net.weights[0].dtype == torch.float32
    assert norm(linear(torch.tensor([[-32.0]]), 5)) == pytest.approx(5 * 4)
    assert float(ends(linear(torch.tensor([[-32.0]]), 5))) == pytest.approx(-32)


def test_rounding_counts_for_no_rank():
    a = planted(2, 30, 30)[0].float()
    assert linear(a, 40).widths[1] == 2
    assert linear(a, 40, rtol=0.0).widths[1] == 30
    assert norm(linear(a, 40, rtol=0.0)) > norm(linear(a, 40)) + 100


@QUICK
@given(st.lists(st.floats(-9, 9), min_size=1, max_size=6), st.integers(1, 30))
def test_diagonal_networks_reach_the_least_norm(values, depth):
    w, x = torch.tensor(values, dtype=torch.float64), normal(5, len(values))
    net = diagonal(w, depth)
    assert close(net(x)[:, 0], x @ w)
    assert norm(net) == pytest.approx(depth * float((w.abs() ** (2 / depth)).sum()), rel=1e-12)
    assert all(torch.equal(v, torch.diag(v.diag())) for v in net.weights[:-1])


def positive_norm(s, depth):
    """Sum over layers and singular values of v(l) / v(l - 1), v(l) = 1 + (l / L) (s^2 - 1)."""
    total = 0.0
    for value in s.tolist():
        v = [1 + layer / depth * (value**2 - 1) for layer in range(depth + 1)]
        total += sum(after / before for before, after in itertools.pairwise(v))
    return total


@QUICK
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.integers(0, 99))
def test_positive_matrices_on_the_orthant(m, d, depth, seed):
    """Of rank d = Im A^T: coordinates are isometries into the orthant on both sides."""
    m = max(m, d)
    a = normal(m, d, seed=seed).abs() + 0.1 * torch.eye(m, d)
    s = torch.linalg.svdvals(a)
    net, x = completely_positive(a, depth, torch.eye(d)), normal(30, d, seed=seed + 1).abs()
    assert close(net(x), x @ a.T)
    assert norm(net) == pytest.approx(positive_norm(s, depth), rel=1e-9)
    assert not net.biases


@QUICK
@given(st.integers(1, 4), st.integers(0, 2), st.integers(2, 9), st.integers(0, 99))
def test_narrow_cones(rank, more, depth, seed):
    """Samples near one direction, which are far from coordinate-wise positive, and any A of full or lower rank."""
    d = rank + more
    a, s = planted(rank, d + 1, d, seed)
    axis = normal(1, d + 1, seed=seed + 3) @ a  # in Im A^T
    noise = normal(25, d, seed=seed + 1)
    x = axis + 0.3 * float(s[-1] / s[0] * axis.norm()) * noise / noise.norm(dim=1, keepdim=True)
    net = completely_positive(a, depth, x)
    mixed = normal(40, 25, seed=seed + 2).abs() @ x
    assert close(net(mixed), mixed @ a.T, 1e-9)
    assert norm(net) == pytest.approx(positive_norm(s, depth), rel=1e-8)


def identity_on(x, depth):
    """The identity on a cone of full dimension, with the isometry that the search of T9 finds."""
    isometry = domains.completely_positive(x, atol=1e-13).isometry
    return completely_positive(torch.eye(x.shape[1], dtype=x.dtype), depth, x, inner=isometry, outer=isometry)


def test_narrow_cones_in_many_dimensions():
    """The simplex around the axis holds every cone within arcsin(1 / sqrt k) of it."""
    k, axis, noise = 12, normal(1, 12), normal(50, 12, seed=1)
    x = axis / axis.norm() + 0.25 * noise / noise.norm(dim=1, keepdim=True)
    net = completely_positive(torch.eye(k, dtype=torch.float64), 5, x)
    assert close(net(x), x, 1e-12)
    assert norm(net) == pytest.approx(5 * k, rel=1e-12)  # T9: the identity at k per layer


@pytest.mark.parametrize(("k", "n"), [(2, 2), (2, 4), (3, 3), (3, 4), (4, 4)])
def test_cones_of_up_to_four_rays(k, n):
    """Matrices with non-negative entries and eigenvalues are completely positive up to order 4, and are found to be."""
    found = 0
    for seed in [324, *range(150)]:  # 324: a narrow escape
        x = normal(n, k, seed=seed)
        if bool((x @ x.T >= 0).all()) and found < 8:
            net = identity_on(x, 2)
            mixed = normal(20, n, seed=seed + 1).abs() @ x
            assert close(net(mixed), mixed, 1e-12)
            assert norm(net) == pytest.approx(2 * k, rel=1e-12)
            found += 1
    assert found >= 3


@pytest.mark.parametrize(("k", "n", "power"), [(5, 12, 2), (7, 30, 1)])
def test_rotated_non_negative_samples(k, n, power):
    """Cones with many facets."""
    orthant = torch.rand(n, k, generator=torch.Generator().manual_seed(k + power), dtype=torch.float64) ** power
    x = orthant @ torch.linalg.qr(normal(k, k, seed=power)).Q
    net = identity_on(x, 2)
    assert close(net(x), x, 1e-9)
    assert norm(net) == pytest.approx(2 * k, rel=1e-9)


def test_a_wide_angle_seen_from_aside():
    """80 degrees, the samples' mean far from the middle: a facet is needed, 90 degrees from a side."""
    angles = torch.deg2rad(torch.tensor([-40.0, 40.0, 35.0, 30.0], dtype=torch.float64))
    x = torch.stack([angles.cos(), angles.sin()], 1)
    assert close(identity_on(x, 3)(x), x, 1e-12)


def test_hidden_representations_have_the_kernels_and_are_not_negative():
    a, _ = planted(3, 3, 3, seed=4)
    x = normal(3, seed=5) + 0.2 * normal(20, 3, seed=6)
    inner, outer = (domains.completely_positive(points, atol=1e-13).isometry for points in (x, x @ a.T))
    net = completely_positive(a, 8, x, inner=inner, outer=outer)
    hidden = x
    for layer, weight in enumerate(net.weights[:-1], 1):
        z = hidden @ weight.detach().T
        assert float(z.min()) > -1e-12
        kernel = (1 - layer / 8) * x @ x.T + layer / 8 * x @ a.T @ a @ x.T
        assert close(z @ z.T, kernel, 1e-10)
        hidden = leaky_relu(z, 0.0)


def test_the_norm_tends_to_the_corrections():
    """K L + 2 log |A|_+ + (1/2L) sum (s - 1/s)^2 + O(1 / L^2): R1 is reached, R2 is not."""
    a = torch.tensor([[2.0, 0.3], [0.4, 0.7]], dtype=torch.float64)
    s = torch.linalg.svdvals(a)
    r1, second = 2 * float(s.log().sum()), 0.5 * float(((s - 1 / s) ** 2).sum())
    rest = {depth: norm(completely_positive(a, depth, torch.eye(2))) - 2 * depth - r1 for depth in (50, 500)}
    assert rest[500] * 500 == pytest.approx(second, rel=0.01)
    assert abs(rest[500] * 500 - second) < abs(rest[50] * 50 - second)
    assert second > 0.5 * float((2 * s.log()).square().sum()) + 0.1


def test_it_is_above_the_jacobian_bound_and_below_the_two_sided_network():
    a, _ = planted(2, 3, 2, seed=7)
    x = torch.tensor([1.0, 0.3]).double() + 0.05 * normal(9, 2)
    net = completely_positive(a, 30, x)
    assert norm(linear(a, 30)) < norm(net) < norm(deepen(torch.nn.Linear(2, 3, bias=False).double(), 30))


def test_given_isometries_are_checked_and_used():
    a, x = torch.tensor([[2.0, 1.0], [0.0, 1.0]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    split = torch.cat([torch.eye(2), torch.eye(2)]).double() / math.sqrt(2)  # O^T O = I with four rows
    net = completely_positive(a, 6, x, inner=split, outer=split)
    assert net.widths == [2, *[8] * 5, 2]
    assert close(net(3 * x), 3 * a.T)
    assert norm(net) == pytest.approx(positive_norm(torch.linalg.svdvals(a), 6))
    with pytest.raises(ValueError, match=r"inner: got O with O\^T O off the projection by 1"):
        completely_positive(a, 6, x, inner=split * math.sqrt(2))
    with pytest.raises(ValueError, match=r"outer: got O with an entry -.* of O A x"):
        completely_positive(a, 6, x, outer=-split)
    with pytest.raises(ValueError, match=r"inner: got shape \(2, 3\), expected \(m, 2\)"):
        completely_positive(a, 6, x, inner=torch.ones(2, 3))


def test_zero_map():
    net = completely_positive(torch.zeros(2, 3), 4, torch.eye(3))
    assert norm(net) == 0
    assert net.depth == 4
    origin = completely_positive(torch.eye(2), 4, torch.zeros(1, 2))
    assert norm(origin) == pytest.approx(8)


def test_cones_without_a_known_isometry_are_refused_with_advice():
    a = torch.eye(2, dtype=torch.float64)
    for x in ([[1.0, 0.0], [-1.0, 0.5]], [[1.0, 0.0], [-1.0, 0.0]]):
        with pytest.raises(ValueError, match=r"x: no isometry of P x .* pass inner .*cost\.completely_positive"):
            completely_positive(a, 4, torch.tensor(x))
    rotate = torch.tensor([[1.0, 1.0], [-4.0, 4.0]], dtype=torch.float64)  # opens the quadrant beyond a right angle
    with pytest.raises(ValueError, match=r"x: no isometry of A x .* pass inner and outer"):
        completely_positive(rotate, 4, torch.eye(2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linear(torch.ones(3), 2), ValueError, r"a: got shape \(3,\), expected \(d_out, d_in\)"),
        (lambda: linear(torch.ones(3, 3, dtype=torch.int), 2), TypeError, "a: got Tensor.*int32"),
        (lambda: linear([[1.0]], 2), TypeError, "a: got"),
        (lambda: linear(np.array([[np.inf]]), 2), ValueError, "a: got NaN or infinite"),
        (lambda: linear(torch.ones(3, 0), 2), ValueError, "a: got shape"),
        (lambda: linear(torch.ones(3, 3), 0), ValueError, "depth: got 0"),
        (lambda: linear(torch.ones(3, 3), 3, rtol=-1), ValueError, "rtol: got -1"),
        (lambda: diagonal(torch.ones(3, 1), 2), ValueError, r"w: got shape \(3, 1\)"),
        (lambda: completely_positive(torch.ones(2, 3), 2, torch.eye(2)), ValueError, r"x: got shape \(2, 2\)"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
