"""Deeper networks that leave the origin as fast (T33, T39)."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from bnrank.networks import from_layers
from bnrank.tasks import circle
from bnrank.theory.escape import deepen
from helpers import norm, normal
from theory.constructed import QUICK, close, network


def speed(net, x, g):
    """-L0 on the sphere ||theta||^2 = L."""
    with torch.no_grad():
        return -float((g * net.double()(x)).sum()) * (net.depth / norm(net)) ** (net.depth / 2)


def rank_two():
    """T40: speed 1/2 at depth 3, with G_j = (-1)^j."""
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    return from_layers([first, torch.tensor([[1.0, -1.0, 1.0, -1.0]]) / 2, torch.tensor([[-1.0]])])


def points():
    task = circle(dtype=torch.float64)
    return task.x, -task.y


@pytest.mark.parametrize("depth", [3, 4, 10, 100])
def test_the_speed_of_an_escape_direction_stays(depth):
    x, g = points()
    net = rank_two()
    assert speed(net, x, g) == pytest.approx(0.5, abs=1e-15)
    deeper = deepen(net, depth, x, g)
    assert speed(deeper, x, g) == pytest.approx(0.5, abs=1e-12)
    assert -float((g * deeper(x)).detach().sum()) == pytest.approx(0.5, abs=1e-12)  # it is on its sphere
    assert norm(deeper) == pytest.approx(depth, rel=1e-14)
    assert deeper.widths == [2, 4, *[1] * (depth - 2), 1]


@QUICK
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 999))
def test_an_escape_direction_that_is_not_rank_one(width, d_out, extra, seed):
    """A neuron repeated with unequal shares: all contributions agree when normalized, and the speed stays."""
    x, g = normal(10, 3, seed=seed).abs(), normal(10, d_out, seed=seed + 1)
    v = normal(3, seed=seed + 2).abs()
    v = v / v.norm()
    out = -(g.T @ torch.relu(x @ v))
    out = out / out.norm()
    share = normal(width, seed=seed + 3).abs().sqrt()
    share = share / share.norm()
    net = from_layers([share[:, None] * v, out[:, None] * share])
    deeper = deepen(net, 2 + extra, x, g)
    assert speed(deeper, x, g) == pytest.approx(speed(net, x, g), rel=1e-12)


@QUICK
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 4),
    st.floats(0.1, 10),
    st.integers(0, 999),
)
def test_the_speed_never_falls(hidden, d_out, extra, scale, seed):
    x, g = normal(12, 3, seed=seed), normal(12, d_out, seed=seed + 1)
    net = network([3, *hidden, d_out], bias=False, seed=seed)
    net = from_layers([scale * w.detach() for w in net.weights])
    before = speed(net, x, g)
    assume(before > 1e-9)
    deeper = deepen(net, net.depth + extra, x, g)
    assert speed(deeper, x, g) >= before * (1 - 1e-12)
    assert norm(deeper) == pytest.approx(deeper.depth, rel=1e-13)
    assert deeper.widths == [3, *hidden[:-1], *[1] * (extra + 1), d_out]


def test_the_pair_kept_is_the_best_normalized_one():
    """A large pair contributes most, a small one most for its size; the small one gives the faster network (E18)."""
    x, g = torch.eye(2, dtype=torch.float64), torch.tensor([[-1.0], [-3.0]], dtype=torch.float64)
    net = from_layers([torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])])  # contributions -9, -3
    deeper = deepen(net, 4, x, g)
    assert close(deeper.weights[0][0] / deeper.weights[0].norm(), [0.0, 1.0])
    assert speed(deeper, x, g) == pytest.approx(3.0, rel=1e-12)


def test_dead_neurons_are_passed_over():
    x, g = torch.eye(2, dtype=torch.float64), -torch.ones(2, 1, dtype=torch.float64)
    net = from_layers([torch.tensor([[0.0, 0.0], [0.8, 0.6]]), torch.tensor([[0.0, 1.0]])])
    deeper = deepen(net, 5, x, g)
    assert speed(deeper, x, g) == pytest.approx(speed(net, x, g), rel=1e-12)


def test_inserted_layers_pass_everything():
    """T39: W_{L-1} and all after it are rank one, and sigma(Z) = Z in the inserted layers."""
    x, g = points()
    deeper = deepen(rank_two(), 7, x, g)
    a = x
    for layer, weight in enumerate(deeper.weights, 1):
        z = a @ weight.detach().T
        if layer >= 2:
            assert torch.linalg.matrix_rank(weight.detach()) == 1
        if 3 <= layer <= 6:
            assert torch.equal(torch.relu(z), z)
            assert close(weight.detach().abs().sum(), deeper.weights[2].detach().sum())
        a = torch.relu(z)


def test_single_precision_and_modules():
    x, g = (v.float() for v in points())
    module = nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        module[2].weight.copy_(-(g * torch.relu(module[0](x))).sum(0, keepdim=True))
    deeper = deepen(module, 5, x, g)
    assert deeper.weights[0].dtype == torch.float64
    assert speed(deeper, x.double(), g.double()) > 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"depth": 2}, ValueError, "depth: got 2.*at least 3"),
        ({"net": network([2, 3, 1])}, ValueError, "net: got biases: True"),
        ({"net": network([2, 3, 1], 0.3, False)}, ValueError, "net: got.*slope 0.3"),
        ({"net": network([2, 1], 0.0, False)}, ValueError, "net: got.*depth 1"),
        ({"net": nn.Conv2d(1, 1, 1)}, TypeError, "net: got Conv2d"),
        ({"g": -points()[1]}, ValueError, "net: got L0 = 0.5 on x and g, expected it below 0"),
        ({"g": points()[1][:3]}, ValueError, "g: got 3 samples.*8"),
        ({"g": torch.ones(8, 2)}, ValueError, r"g: got shape \(8, 2\)"),
        ({"x": torch.ones(8, 3)}, ValueError, r"x: got shape \(8, 3\)"),
        ({"net": from_layers([torch.zeros(2, 2), torch.zeros(1, 2)])}, ValueError, "net: got L0 = 0 "),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    x, g = points()
    with pytest.raises(error, match=words):
        deepen(**{"net": rank_two(), "depth": 5, "x": x, "g": g, **change})
