"""A function whose near-optimal representations diverge (T31)."""

import math

import pytest
import torch

from bnrank import Jacobian
from bnrank.theory.constructions import diverging_geodesic
from helpers import norm, normal
from theory.constructed import close


def exact(x, a):
    z = x[:, 2] + a * torch.relu(x[:, 0] - x[:, 1])
    return torch.stack([x[:, 0], x[:, 1], z], 1)


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 10, 51, 200])
@pytest.mark.parametrize("a", [0.0, 1.0, 3.0])
def test_the_function_at_every_depth(depth, a):
    x = normal(50, 3).abs()
    net = diverging_geodesic(depth, 0.6, a)
    assert net.depth == depth
    assert close(net(x), exact(x, a), 1e-12)
    assert max(net.widths) == 4
    assert not net.biases


@pytest.mark.parametrize("gamma", [0.55, 0.75, 0.95])
@pytest.mark.parametrize("a", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("depth", [4, 50, 1000])
def test_its_norm(depth, gamma, a):
    eps = depth**-gamma
    u = (depth - 2) * eps
    before = (depth - 2) / 2 * (2 * math.exp(2 * eps) + math.exp(-4 * eps))
    after = (depth - 2) / 2 * (2 * math.exp(-2 * eps) + math.exp(4 * eps))
    expected = before + after + 6 + a * (2 * math.exp(-u) + math.exp(-2 * u))
    assert norm(diverging_geodesic(depth, gamma, a)) == pytest.approx(expected, rel=1e-12)


def test_the_norm_tends_to_three_per_layer():
    """||theta||^2 - 3L = 12 L^(1 - 2 gamma) (1 + o(1)) vanishes, so R0 <= 3 and R1 <= 0; |Jf|_+ = 1 has them equal."""
    for gamma in (0.6, 0.7, 0.8):
        depths = [100, 400, 1600]
        rest = [norm(diverging_geodesic(depth, gamma)) - 3 * depth for depth in depths]
        assert rest[0] > rest[1] > rest[2] > 0
        last = 2 * math.exp(-(1600 ** (1 - gamma)))  # vanishes faster than any power
        assert rest[2] == pytest.approx(12 * 1600 ** (1 - 2 * gamma) + last, rel=0.01)
    jacobians = next(Jacobian(diverging_geodesic(100), normal(20, 3).abs()).chunks())
    assert close(torch.linalg.det(jacobians), torch.ones(20), 1e-12)


def test_odd_depths_lie_between():
    for depth in (101, 1001):
        low, middle, high = (norm(diverging_geodesic(d)) for d in (depth - 1, depth, depth + 1))
        assert low < middle < high
        assert middle - 3 * depth < 1.1 * (low - 3 * (depth - 1))


def test_hidden_representations_diverge():
    x, largest = torch.tensor([[1.0, 0.5, 0.25]], dtype=torch.float64), []
    for depth in (100, 800, 3000):
        net, a, values = diverging_geodesic(depth), x, []
        for weight in net.weights[:-1]:
            a = torch.relu(a @ weight.detach().T)
            values.append(float(a.abs().max()))
        largest.append(max(values))
        u = (depth - 2) * depth**-0.75
        assert max(values) == pytest.approx(math.exp(u / 2), rel=1e-9)
        assert values.index(max(values)) + 1 in range(depth // 2 - 1, depth // 2 + 2)
    assert 12 < 3 * largest[0] < largest[1] < largest[2] / 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((1,), ValueError, "depth: got 1.*at least 2"),
        ((10, 0.5), ValueError, r"gamma: got 0.5, expected a number in the open interval \(1/2, 1\)"),
        ((10, 1), ValueError, "gamma: got 1"),
        ((10, 0.7, -1.0), ValueError, "a: got -1"),
        ((10, "0.7"), TypeError, "gamma: got '0.7'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        diverging_geodesic(*arguments)
