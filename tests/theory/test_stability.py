"""Which minima gradient descent can stay at, and how narrow rank-one fits are (T26)."""

import itertools
import math
import operator
from fractions import Fraction

import pytest
import torch

import bnrank
from bnrank.measures import ntk
from bnrank.networks.mlp import from_layers
from bnrank.theory.constructions import line_interpolant
from bnrank.theory.stability import growth_bound, largest_trace, output_error, sharpness_bound
from bnrank.theory.tours import diameter, shortest_path_bounds
from helpers import normal
from oracles import float64, parameter_jacobian

DOUBLE = torch.float64


def loss_of(net, x, y, ridge=0.0):
    parameters = dict(net.named_parameters())

    def loss(flat):
        parts, start = {}, 0
        for name, p in parameters.items():
            parts[name] = flat[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
        out = torch.func.functional_call(net, parts, (x,))
        return ((out - y) ** 2).sum(1).mean() + ridge * (flat**2).sum()

    return loss, torch.cat([p.detach().flatten() for p in parameters.values()])


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_curvature_is_the_top_of_the_hessian_at_a_fit(ridge):
    net = float64(bnrank.MLP([3, 6, 4, 2], slope=0.3, seed=0))
    x = normal(7, 3)
    y = net(x).detach()
    loss, theta = loss_of(net, x, y, ridge)
    hessian = torch.autograd.functional.hessian(loss, theta)
    found = sharpness_bound(net, x, ridge=ridge)
    assert found.curvature == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-8)
    rows = parameter_jacobian(net, x).flatten(0, 1)
    assert found.curvature == pytest.approx(2 / 7 * float(torch.linalg.matrix_norm(rows, 2)) ** 2 + 2 * ridge)
    assert found.largest_step == pytest.approx(2 / found.curvature)
    assert (found.step, found.stable) == (None, None)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bias", [True, False])
def test_gradient_descent_converges_below_the_largest_step_and_leaves_above(seed, bias):
    """T26: around a fit, 1.8 / curvature converges and 2.2 / curvature diverges."""
    net = float64(bnrank.MLP([2, 6, 3, 1], slope=0.3, bias=bias, seed=seed))
    x = normal(5, 2, seed=seed)
    loss, theta = loss_of(net, x, net(x).detach())
    curvature = sharpness_bound(net, x).curvature
    start = 1e-6 * normal(len(theta), seed=seed + 5)

    def descend(step, steps):
        found, values = theta + start, []
        for _ in range(steps):
            point = found.requires_grad_(True)
            value = loss(point)
            (gradient,) = torch.autograd.grad(value, point)
            found = (point - step * gradient).detach()
            values.append(float(value.detach()))
        return values

    for factor, stays in ((1.8, True), (2.2, False)):
        found = sharpness_bound(net, x, factor / curvature)
        assert found.stable is stays
        assert found.limit == pytest.approx(2 * curvature / factor)
        values = descend(factor / curvature, 60)
        assert (values[-1] < values[0]) is stays
    assert descend(2.2 / curvature, 60)[-1] > 1e3 * descend(2.2 / curvature, 1)[0]


def test_a_flat_loss_allows_every_step():
    found = sharpness_bound(from_layers([torch.zeros(2, 2), torch.zeros(1, 2)]), torch.ones(3, 2), 5.0)
    assert (found.curvature, found.largest_step, found.stable) == (0.0, math.inf, True)


def test_bad_steps_are_named():
    net, x = bnrank.MLP([2, 1]), torch.ones(1, 2)
    with pytest.raises(ValueError, match="step: got 0"):
        sharpness_bound(net, x, 0.0)
    with pytest.raises(ValueError, match="ridge: got -1"):
        sharpness_bound(net, x, ridge=-1)


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
def test_largest_trace_equals_a_fine_sampling(slope):
    net = bnrank.networks.mlp.make([3, 8, 8, 2], slope=slope, seed=0, dtype=DOUBLE)
    with torch.no_grad():
        for b in net.biases:
            b.copy_(normal(len(b)))
    start, end = normal(2, 3, seed=3) * 4
    t = torch.linspace(0, 1, 20001, dtype=DOUBLE)[:, None]
    traces = ntk.trace(net, start + t * (end - start))
    found = largest_trace(net, start, end)
    assert float(traces.max()) <= found * (1 + 1e-12)
    assert float(traces.max()) == pytest.approx(found, rel=3e-3)


def narrow_networks():
    for seed in range(12):
        slope = (0.0, 0.4, -0.5, 1.0)[seed % 4]
        widths = [3, 1, 1, 1, 2] if seed % 2 else [2, 5, 1, 1, 6, 3]
        net = bnrank.networks.mlp.make(widths, slope=slope, bias=seed % 3 > 0, seed=seed, dtype=DOUBLE)
        with torch.no_grad():
            for i, b in enumerate(net.biases):
                b.copy_(0.3 * normal(len(b), seed=seed + i))
        yield net, 3 * normal(9, widths[0], seed=seed)


@pytest.mark.parametrize("number", range(12))
def test_the_growth_bound_holds_on_narrow_networks(number):
    net, x = list(narrow_networks())[number]
    found = growth_bound(net, x)
    assert found.bound <= found.measured
    norm = sum(float((p.detach() ** 2).sum()) for p in net.parameters())
    assert found.excess == pytest.approx(norm - net.depth)
    tour, width = shortest_path_bounds(net(x).detach()).lower, diameter(x)
    inverse = sum(float(torch.linalg.matrix_norm(net.weights[i - 1].detach(), 2)) ** -2 for i in found.layers)
    expected = math.exp(-found.excess) * tour**4 * inverse / (64 * width**2)
    assert found.bound == pytest.approx(expected, rel=1e-9)
    assert found.measured == pytest.approx(largest_trace(net, found.start, found.end))


def test_the_growth_bound_is_within_its_constant_on_a_chain():
    """f(x) = x on [0, 8] by L weights 1: Tr Theta = L x^2, the bound L TSP^4 / (64 diam^2) = L."""
    for depth in (2, 5, 30):
        found = growth_bound(from_layers([torch.ones(1, 1)] * depth), torch.linspace(0, 8, 5)[:, None])
        assert found.bound == pytest.approx(depth)
        assert found.measured == pytest.approx(64 * depth)
        assert found.layers == tuple(range(1, depth + 1))


def test_growth_on_interpolants_with_more_and_more_points():
    """Rank-one fits of the identity of the square: the bound is proportional to e^{-c1} TSP^4; Tr Theta stays above."""
    measured, tours = [], []
    for n in (4, 8, 16, 32):
        x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
        net = line_interpolant(x, x, 40)
        found = growth_bound(net, x)
        assert len(found.layers) >= 20  # the projection and the layers that hold
        assert found.bound <= found.measured
        measured.append(found.measured)
        tours.append(found.path.lower)
    assert all(b > a for a, b in itertools.pairwise(measured))
    assert math.log(measured[-1] / measured[0]) > 4 * math.log(tours[-1] / tours[0])  # faster than TSP^4


def test_weights_of_nearly_rank_one_are_taken_for_it():
    net = from_layers([torch.tensor([[1.0, 0.0], [0.0, 1e-8]]), torch.ones(2, 2)])
    x = normal(6, 2)
    found = growth_bound(net, x)
    assert found.layers == (1, 2)
    assert torch.linalg.matrix_rank(found.network.weights[0].detach()) == 1
    assert found.bound <= found.measured
    with pytest.raises(ValueError, match="net: got no weight of rank one"):
        growth_bound(bnrank.MLP([3, 4, 2]), normal(4, 3))


def test_constant_functions_bound_nothing():
    net = from_layers([torch.ones(1, 2), torch.zeros(2, 1)], [torch.zeros(1), torch.ones(2)])
    found = growth_bound(net, normal(5, 2))
    assert found.bound == 0
    assert found.measured > 0
    zero = growth_bound(from_layers([torch.zeros(2, 2), torch.ones(2, 2)]), normal(5, 2))
    assert (zero.bound, zero.layers) == (0.0, (1, 2))
    one = growth_bound(bnrank.MLP([2, 1, 2]), torch.ones(1, 2))
    assert one.bound == 0
    assert one.measured == pytest.approx(float(ntk.trace(bnrank.MLP([2, 1, 2]), torch.ones(1, 2))))


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
def test_outputs_are_off_by_less_than_their_error(slope):
    """Against rational numbers, on networks whose terms cancel."""
    for seed in range(4):
        net = bnrank.networks.mlp.make([3, 6, 5, 2], slope=slope, seed=seed, dtype=DOUBLE)
        with torch.no_grad():
            for i, b in enumerate(net.biases):
                b.copy_(1e4 * normal(len(b), seed=i))
        x = normal(3, 3, seed=seed)
        worst = 0.0
        for row, out in zip(x.tolist(), net(x).tolist(), strict=True):
            a = [Fraction(v) for v in row]
            for layer, (w, b) in enumerate(zip(net.weights, net.biases, strict=True), start=1):
                terms = [[Fraction(v) for v in r] for r in w.tolist()]
                a = [sum(map(operator.mul, r, a), Fraction(c)) for r, c in zip(terms, b.tolist(), strict=True)]
                if layer < net.depth:
                    a = [v if v > 0 else Fraction(slope) * v for v in a]
            worst = max(worst, math.dist([float(p - Fraction(q)) for p, q in zip(a, out, strict=True)], [0.0, 0.0]))
        bound = output_error(net, x)
        assert 0 < worst <= bound
        assert bound < 1e-8


def test_growth_beyond_the_range_of_floats():
    tiny = growth_bound(from_layers([torch.full((1, 1), 1e-200, dtype=DOUBLE)] * 2), normal(4, 1))
    assert tiny.bound == 0
    line = torch.linspace(1, 2, 4, dtype=DOUBLE)[:, None]
    scaled = growth_bound(from_layers([torch.ones(1, 1)] * 3), 1e140 * line)
    assert scaled.bound == pytest.approx(1e280 * growth_bound(from_layers([torch.ones(1, 1)] * 3), line).bound)
    with pytest.raises(OverflowError):
        growth_bound(from_layers([torch.ones(1, 1)] * 3), 1e200 * line)
    with pytest.raises(OverflowError, match="outputs are beyond"):
        growth_bound(from_layers([torch.full((1, 1), 1e200, dtype=DOUBLE)] * 3), normal(4, 1).abs())


def test_growth_bounds_of_extreme_weights():
    small = growth_bound(from_layers([torch.full((1, 1), 1e-50, dtype=DOUBLE)] * 2), torch.ones(4, 1).cumsum(0))
    assert small.bound == pytest.approx(math.e**2 * (3e-100) ** 4 * 2e100 / (64 * 9))
