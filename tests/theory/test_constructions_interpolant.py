"""Networks of bottleneck rank 1 through any points (T30, T12, T13)."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from bnrank import Jacobian
from bnrank.measures.balance import imbalance
from bnrank.theory.constructions import line_interpolant
from helpers import norm, normal
from theory.constructed import QUICK, close

pytestmark = pytest.mark.filterwarnings("ignore:.*kink")  # straight lines are joined at the points


def line(net, x, y):
    """t_1, the places delta_i and the values in their order, from the first layer of the network."""
    weight, bias = net.weights[0].detach()[0], net.biases[0].detach()[0]
    gain = float(weight.norm())
    t = x @ weight / gain
    order = t.argsort()
    assert float(bias) == pytest.approx(-gain * float(t.min()), rel=1e-12)
    return float(t.min()), t[order] - t.min(), y[order]


def bent_norm(r, scale, constant, delta, y):
    slopes = y.diff(dim=0) / delta.diff()[:, None]
    changes = torch.cat([slopes[:1], slopes.diff(dim=0)]).norm(dim=1)
    return 2 * scale * float((changes * (r**-2 + (delta[:-1] / constant) ** 2).sqrt()).sum()), y[0]


def total(logs, layers, way, p, data):
    """The norm for log r and log K (with a constant) or log epsilon (with a copy); the values span all dimensions.

    With a copy, the cheapest choice of the signs of its coordinates.
    """
    (r, other), (start, delta, y) = np.exp(logs), data
    layers -= p if way == "copy" else 0
    held = layers * (r**2 * (1 + start**2)) ** (1 / layers)
    if p == 0 or way == "constant":
        bent, constant = bent_norm(r, 1.0, other if p else 1.0, delta, y)
        last = 2 * float(constant.norm()) / other if p else float(constant @ constant)
        return held + bent + last + (p * other ** (2 / p) if p else 0.0)
    bent, constant = bent_norm(r, other, 1.0, delta, y)
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=y.shape[1])), dtype=torch.float64)
    corners = (y * signs[:, None]).amin(1).clamp(max=0)
    moved = other**2 * (constant * signs - corners).square().sum(1) + corners.square().sum(1)
    return held + bent + p * y.shape[1] * other ** (-2 / p) + float(moved.min())


@QUICK
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(3, 9), st.integers(0, 99))
def test_it_goes_through_the_points(n, d, m, depth, seed):
    x, y = normal(n, d, seed=seed), normal(n, m, seed=seed + 1)
    for slope in (0.0, 0.3, -0.5):
        net = line_interpolant(x, y, depth, seed, slope=slope)
        assert close(net(x), y, 1e-8)
        assert net.depth == depth
        assert net.slope == slope
        hidden, bend = net.widths[1:-1], max(n - 1, 1)
        assert hidden[0] == 1
        assert max(hidden) <= max(bend + 1, m, 2)
        assert bend <= max(hidden) or n < 3


def test_the_norm_is_least_over_the_ways_to_spread_the_scale():
    best = set()
    for seed, (m, depth) in enumerate([(2, 4), (2, 7), (1, 12), (1, 6)]):
        x, y = normal(8, 3, seed=seed), normal(8, m, seed=seed + 50)
        if seed == 3:  # the mean is positive, but the values reach farther down
            y[1:], y[:1] = y[1:].abs() + 1, -5.0
        net = line_interpolant(x, y, depth)
        data, options, found = line(net, x, y), {"xatol": 1e-5, "fatol": 1e-9}, {}
        for way in ("constant", "copy"):
            for p in range(depth - 2):
                args = (depth - 2, way, p, data)
                found[way, p] = minimize(total, [0.0, 0.0], args, method="Nelder-Mead", options=options).fun
        assert norm(net) == pytest.approx(min(found.values()), rel=2e-5)
        best.add(min(found, key=found.get)[0])
    assert best == {"constant", "copy"}


def test_the_excess_of_the_norm_over_the_depth_is_logarithmic_in_the_variation():
    """2 log P for one output, 7.5 log P for more, up to a constant; at depth 3 it is of the order of P."""
    for m, factor in ((1, 2), (2, 7.5), (5, 7.5)):
        for n in (20, 80, 320):
            x, y = normal(n, 2, seed=n), normal(n, m, seed=n + 1)
            shallow, deep = (norm(line_interpolant(x, y, depth)) - depth for depth in (3, 150))
            assert shallow > n**1.5
            assert deep < factor * math.log(shallow) + 12


def test_neurons_of_h_are_balanced():
    net = line_interpolant(normal(12, 3), normal(12, 2, seed=1), 8)
    bend = next(i for i, width in enumerate(net.widths) if width > 2)
    unbalanced = imbalance(net).per_neuron
    assert float(unbalanced[bend - 1].max()) < 1e-12 * norm(net)


def test_points_are_joined_by_straight_lines():
    x, y = normal(9, 1), normal(9, 2, seed=1)
    order = x[:, 0].argsort()
    x, y = x[order], y[order]
    for slope in (0.0, 0.3, -0.5):
        net = line_interpolant(x, y, 5, slope=slope)
        for share in (0.25, 0.5):
            assert close(net(x[:-1] + share * x.diff(dim=0)), y[:-1] + share * y.diff(dim=0))
    net = line_interpolant(x, y, 5)
    u = float(net.weights[0].detach().sign())
    start, end = (y[0], y[-1]) if u > 0 else (y[-1], y[0])
    before, beyond = net(torch.tensor([[-9.0 * u], [9.0 * u]], dtype=torch.float64))
    assert close(before, start)
    assert not close(beyond, end, 1e-2)


def test_a_thousand_points_in_twenty_dimensions():
    for seed in range(2):
        x, y = normal(1000, 20, seed=seed), normal(1000, 20, seed=seed + 9)
        net = line_interpolant(x, y, 15, seed)
        assert float((net(x) - y).abs().max().detach()) < 2e-9
        t = (x @ net.weights[0].detach()[0] / net.weights[0].detach().norm()).sort().values
        assert float(t.diff().min()) > 1e-7
        assert norm(line_interpolant(x, y, 40, seed)) < norm(net) + 25


def test_single_precision_serves_few_points():
    x, y = normal(1000, 20).float(), normal(1000, 3, seed=1).float()
    few = line_interpolant(x[:5], y[:5], 10)
    assert few.weights[0].dtype == torch.float32
    assert float((few(x[:5]) - y[:5]).abs().max().detach()) < 1e-4
    with pytest.raises(ValueError, match=r"misses y by .* pass float64 data"):
        line_interpolant(x, y, 10)


def test_the_steepest_place_is_as_steep_as_a_traveling_salesman_makes_it():
    """T13: some Jacobian is at least the shortest path through the y over the diameter of the x."""
    for seed in range(5):
        x, y = normal(7, 2, seed=seed), normal(7, 3, seed=seed + 20)
        tours = np.array(list(itertools.permutations(range(7))))
        shortest = float((y[tours][:, 1:] - y[tours][:, :-1]).norm(dim=2).sum(1).min())
        bound = shortest / float(torch.cdist(x, x).max())
        net = line_interpolant(x, y, 8)
        u = net.weights[0].detach()[0]
        along = x.mean(0) + torch.linspace(-4, 4, 4001, dtype=torch.float64)[:, None] * u / u.norm()
        steepest = float(Jacobian(net, along).singular_values[:, 0].max())
        assert steepest > bound
        assert norm(net) > 8 * bound ** (2 / 8)


def test_the_jacobian_has_rank_one_at_the_points():
    net = line_interpolant(normal(20, 4), normal(20, 3, seed=1), 6)
    assert Jacobian(net, normal(20, 4)).rank().rank == 1


def test_equal_samples_need_equal_values():
    x, y = normal(5, 2), normal(5, 2, seed=1)
    twice, values = torch.cat([x, x[1:3]]), torch.cat([y, y[1:3]])
    assert close(line_interpolant(twice, values, 4)(x), y)
    values[6] += 1
    with pytest.raises(ValueError, match="y: got different values for samples 2 and 6, whose x are equal"):
        line_interpolant(twice, values, 4)
    zeros = torch.tensor([[0.0], [-0.0]])
    with pytest.raises(ValueError, match="samples 0 and 1"):
        line_interpolant(zeros, torch.tensor([[1.0], [2.0]]), 4)


def test_constants_are_stretched_over_the_layers_that_pay():
    for x in (normal(1, 3), normal(6, 3)):
        for value, depth in ((3.0, 9), (30.0, 9), (30.0, 4), (0.2, 9)):
            y = torch.tensor([[value, -value]], dtype=torch.float64).repeat(len(x), 1)
            net = line_interpolant(x, y, depth)
            assert close(net(x), y)
            size = 2**0.5 * value
            assert norm(net) == pytest.approx(min(p * size ** (2 / p) for p in range(1, depth + 1)))


def test_values_far_from_zero_cost_little_more():
    for m in (1, 2):
        x, y = normal(12, 3), normal(12, m, seed=1)
        near, *far = (norm(line_interpolant(x, y + offset, 20)) for offset in (0.0, 100.0, -100.0))
        assert max(far) < near + 12
    assert norm(line_interpolant(normal(4, 2), 0 * normal(4, 2), 5)) == 0.0


def test_scales_far_from_one():
    for scale in (1e-6, 1e6):
        x, y = scale * normal(15, 3), normal(15, 2, seed=1) / scale
        net = line_interpolant(x, y, 6)
        assert float((net(x) - y).abs().max().detach()) < 1e-9 / scale


def test_seeds_choose_the_direction_and_leave_the_global_generator_alone():
    x, y = normal(15, 3), normal(15, 2, seed=1)
    with torch.random.fork_rng():
        state = torch.manual_seed(987).get_state()
        one, two, again = (line_interpolant(x, y, 5, seed) for seed in (0, 1, 0))
        assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.weights[0], again.weights[0])
    assert not torch.equal(one.weights[0], two.weights[0])


def test_arrays_and_mixed_precision():
    x, y = normal(8, 3).numpy().astype(np.float32), normal(8, 2, seed=1)
    net = line_interpolant(x, y, 4)
    assert net.weights[0].dtype == torch.float64
    assert close(net(torch.from_numpy(x).double()), y)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"depth": 2}, ValueError, "depth: got 2.*at least 3"),
        ({"slope": 1.0}, ValueError, "slope: got 1"),
        ({"y": torch.ones(3, 1)}, ValueError, "y: got 3 samples.*4"),
        ({"y": torch.ones(4)}, ValueError, r"y: got shape \(4,\)"),
        ({"x": torch.full((4, 2), math.nan)}, ValueError, "x: got NaN"),
        ({"x": 1e60 * normal(4, 2)}, ValueError, r"x: got entries up to .*e\+60, expected between 1e-30 and 1e\+30"),
        ({"y": 1e-60 * normal(4, 1)}, ValueError, "y: got entries up to"),
        ({"x": torch.tensor([[1e20, i] for i in range(4)])}, ValueError, "x: got different samples that fall on one"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    arguments = {"x": normal(4, 2), "y": normal(4, 1, seed=1), "depth": 5, **change}
    with pytest.raises(error, match=words):
        line_interpolant(**arguments)
