"""Errata of the constructions: the printed form fails, the corrected one holds (E1, E9, E10, E11)."""

import math

import pytest
import torch

from bnrank import Jacobian
from bnrank.networks import MLP
from bnrank.networks.mlp import leaky_relu
from bnrank.theory.constructions import completely_positive, cross, diverging_geodesic, with_slope
from helpers import norm


def uniform(n, seed=0):
    """n points in the square [-1, 1]^2."""
    return 2 * torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def test_e1_max_by_a_leaky_relu_takes_a_plus():
    z, s = torch.linspace(-2, 2, 41, dtype=torch.float64), 0.3
    minus = (leaky_relu(z, s) - s * leaky_relu(-z, s)) / (1 - s**2)
    plus = (leaky_relu(z, s) + s * leaky_relu(-z, s)) / (1 - s**2)
    assert float((minus - torch.relu(z)).abs().max()) == pytest.approx(2 * s * 2 / (1 - s**2))  # 1.32 at z = -2
    assert torch.allclose(plus, torch.relu(z), rtol=0, atol=1e-15)
    net, x = MLP([2, 9, 9, 2], dtype=torch.float64), uniform(50)
    assert torch.allclose(with_slope(net, s)(x), net(x), rtol=0, atol=1e-13)


def printed_cross(x):
    """(x0, sign(x1) |x0|) where |x0| >= |x1|, (sign(x0) |x1|, x1) elsewhere."""
    a, b = x[:, 0], x[:, 1]
    first, second = torch.stack([a, b.sign() * a.abs()], 1), torch.stack([a.sign() * b.abs(), b], 1)
    return torch.where((a.abs() >= b.abs())[:, None], first, second)


def test_e9_the_printed_example_jumps_across_the_axes():
    above, below = torch.tensor([[1.0, 1e-9], [1.0, -1e-9]], dtype=torch.float64)
    assert printed_cross(torch.tensor([[1.0, 0.1], [1.0, -0.1]])).tolist() == [[1.0, 1.0], [1.0, -1.0]]
    assert float((printed_cross(above[None]) - printed_cross(below[None])).norm()) == 2
    net = cross().requires_grad_(False)
    assert float((net(above[None]) - net(below[None])).norm()) < 1e-8
    # no steeper than sqrt(2) between any points
    x, y = uniform(2000), uniform(2000, seed=1)
    assert bool(((net(x) - net(y)).norm(dim=1) <= math.sqrt(2) * (x - y).norm(dim=1) * (1 + 1e-12)).all())
    # and the argument goes through: the identity on |x0| = |x1|, rank one in every region
    t = torch.linspace(-1, 1, 21, dtype=torch.float64)
    diagonals = torch.cat([torch.stack([t, t], 1), torch.stack([t, -t], 1)])
    assert torch.equal(net(diagonals), diagonals)
    assert float(Jacobian(net, x).singular_values[:, 1].max()) == 0


def test_e10_the_norm_of_the_diverging_geodesic_grows_with_the_number_of_layers():
    for depth in (10, 100, 1000):
        eps = depth**-0.75
        u = (depth - 2) * eps
        exponentials = 2 * math.expm1(2 * eps) + math.expm1(-4 * eps) + 2 * math.expm1(-2 * eps) + math.expm1(4 * eps)
        ends = 2 * math.exp(-u) + math.exp(-2 * u)
        found = norm(diverging_geodesic(depth)) - 3 * depth
        assert found == pytest.approx((depth - 2) / 2 * exponentials + ends, rel=1e-9)
        printed = exponentials + ends
        assert abs(found / printed - 1) > 0.5
    assert found == pytest.approx(12 * depth * eps**2, rel=0.03)  # 0.386 where the print has 0.008
    assert printed < 0.01


def test_e11_the_kernels_run_from_the_projection_to_the_map():
    """A >= 0 of singular values 2.086 and 0.614, on the quadrant: isometries are identities."""
    a, eye = torch.tensor([[2.0, 0.345], [0.345, 0.6995]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    r1 = 2 * float(torch.linalg.slogdet(a).logabsdet)
    assert r1 == pytest.approx(0.494, abs=1e-3)

    def weights(depth, reverse, last):
        factors = [eye]
        for layer in range(1, depth):
            p = layer / depth
            p = 1 - p if reverse else p
            factors.append(torch.cat([math.sqrt(1 - p) * eye, math.sqrt(p) * a]))
        factors.append(last)
        return [b @ torch.linalg.pinv(c) for b, c in zip(factors[1:], factors[:-1], strict=True)]

    def excess(layers):
        return sum(float((w**2).sum()) for w in layers) - 2 * len(layers)

    forward = [excess(weights(depth, False, a)) - r1 for depth in (100, 400)]
    assert forward[1] == pytest.approx(forward[0] / 4, rel=0.02)  # O(1/L)
    backward = [excess(weights(depth, True, a)) for depth in (100, 400)]
    limit = backward[1] + (backward[1] - backward[0]) / 3
    assert limit == pytest.approx(4.96, abs=0.01)
    assert limit == pytest.approx(2 * float((a**2).sum()) - 4 - r1, abs=0.01)
    # with the printed B_L = I the network is no longer A
    assert torch.allclose(torch.linalg.multi_dot(weights(20, False, eye)[::-1]), eye, atol=1e-12)
    assert excess(weights(100, False, a)) == pytest.approx(norm(completely_positive(a, 100, eye)) - 200, rel=1e-9)
