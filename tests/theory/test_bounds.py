import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import LinearNetwork, from_layers, make
from bnrank.theory.cost.bounds import LowerBound, lower_bound, r1_lower_bound, two_point
from bnrank.theory.cost.closed_forms import linear, linear_corrections
from helpers import norm, normal
from oracles import circular_convolution_matrix, input_jacobian

quick = settings(max_examples=15, deadline=None, derandomize=True)
slopes = st.sampled_from([0.0, 0.3, -0.5])


def network(widths, slope=0.0, bias=True, seed=0):
    """A random network with random biases."""
    net = make(widths, slope, bias, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, b in enumerate(net.biases):
            b.copy_(normal(len(b), seed=seed + i))
    return net


def cost_at(net, x, depth):
    """L sum_k s_k(Jf(x_i))^{2/L}, sample by sample."""
    values = torch.linalg.svdvals(input_jacobian(net, x))
    return depth * torch.where(values > 1e-10 * values[:, :1], values, 0.0).pow(2 / depth).sum(1)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


# The Jacobian bound ----------------------------------------------------------------------------------------------


@quick
@given(st.integers(0, 10**6), slopes, st.booleans(), st.sampled_from([[2, 4, 3], [3, 5, 5, 1], [1, 4, 4, 4, 2]]))
def test_at_the_data_it_is_the_largest_cost_and_below_the_norm(seed, slope, bias, widths):
    net, x = network(widths, slope, bias, seed), normal(9, widths[0], seed=seed)
    bound = lower_bound(net, x, domain="data")
    assert bound == pytest.approx(float(cost_at(net, x, net.depth).max()), rel=1e-9)
    assert bound <= norm(net)
    i = int(cost_at(net, x, net.depth).argmax())
    assert torch.allclose(cost_at(net, bound.point[None], net.depth), cost_at(net, x[i : i + 1], net.depth))
    assert (bound.depth, bound.domain, bound.exact, bound.evaluated) == (net.depth, "data", False, 9)


@quick
@given(st.integers(0, 10**6), slopes)
def test_it_grows_with_the_domain_and_stays_below_the_norm(seed, slope):
    net, x = network([2, 5, 4, 2], slope, seed=seed), normal(6, 2, seed=seed)
    box = torch.stack([x.amin(0), x.amax(0)], 1)
    bounds = [
        lower_bound(net, x, domain="data"),
        lower_bound(net, x),
        lower_bound(net, x, domain=box * 2 - box.mean(1, keepdim=True)),
    ]
    assert [b.exact for b in bounds] == [False, True, True]
    assert bounds[0] <= bounds[1] * (1 + 1e-9)
    assert bounds[1] <= bounds[2] * (1 + 1e-9)
    assert bounds[2] <= norm(net)
    assert torch.equal(bounds[1].domain, box)
    assert bool((bounds[1].point >= box[:, 0]).all() and (bounds[1].point <= box[:, 1]).all())
    assert float(cost_at(net, bounds[1].point[None], 3)) == pytest.approx(bounds[1], rel=1e-9)


@quick
@given(st.integers(0, 10**6), slopes)
def test_the_exact_maximum_is_that_of_a_fine_grid(seed, slope):
    line, plane = network([1, 5, 4, 2], slope, seed=seed), network([2, 3, 3, 2], slope, seed=seed)
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]
    assert lower_bound(line, grid) == pytest.approx(float(cost_of_grid(line, grid).max()), rel=1e-9)
    bound = lower_bound(plane, matrix([-1, -1], [1, 1]))
    assert bound.exact
    assert bound == pytest.approx(float(cost_of_grid(plane, torch.cartesian_prod(*[grid[::25, 0]] * 2)).max()), rel=0.2)
    assert bound >= float(cost_of_grid(plane, torch.cartesian_prod(*[grid[::25, 0]] * 2)).max()) * (1 - 1e-9)


def cost_of_grid(net, grid):
    values = bnrank.Jacobian(net, grid, kink_rtol=None).singular_values
    return net.depth * torch.where(values > 1e-10 * values[:, :1], values, 0.0).pow(2 / net.depth).sum(1)


def test_the_search_finds_what_enumeration_finds_and_never_more():
    short = 0
    for seed in range(12):
        net, x = network([2, 6, 6, 2], seed=seed), normal(10, 2, seed=seed)
        exact = lower_bound(net, x)
        found = lower_bound(net, x, max_regions=0, seed=seed)
        assert exact.exact
        assert not found.exact
        assert lower_bound(net, x, domain="data") * (1 - 1e-12) <= found <= exact * (1 + 1e-9)
        assert float(cost_at(net, found.point[None], 3)) == pytest.approx(found, rel=1e-9)
        short += found < exact * (1 - 1e-9)
    assert short <= 2


def test_both_halves_of_the_search_find_something():
    net = network([12, 30, 30, 12])
    x = normal(20, 12)
    at_data, started, walked = (
        lower_bound(net, x, **kw)
        for kw in (
            {"domain": "data"},
            {"rounds": 0},
            {"starts": 1},
        )
    )
    both = lower_bound(net, x)
    assert at_data < min(started, walked)
    assert max(started, walked) <= both * 1.05
    assert started.evaluated >= 512 + 20
    far = from_layers([matrix([1], [10], [10]), matrix([1, 10, -10])], [vector(0, -50, -60), vector(0)])
    assert lower_bound(far, matrix([1], [9]), max_regions=0, rounds=0) == pytest.approx(202)
    assert lower_bound(nn.Sequential(far, nn.Identity(), nn.Flatten()), matrix([1], [9]), 2, rounds=0) == pytest.approx(
        202
    )


def test_a_steep_region_without_data_counts():
    # slope 1 up to 5, 101 from 5 to 6, 1 beyond: no sample between
    net = from_layers([matrix([1], [10], [10]), matrix([1, 10, -10])], [vector(0, -50, -60), vector(0)])
    x = matrix([1], [2], [8], [9])
    at_data, in_box, searched = (lower_bound(net, x, **kw) for kw in ({"domain": "data"}, {}, {"max_regions": 0}))
    assert at_data == pytest.approx(2)
    assert in_box == pytest.approx(202) == pytest.approx(searched)
    assert 5 < in_box.point < 6
    assert lower_bound(net, x, domain=[[0.0, 4.0]]) == pytest.approx(2)


@pytest.mark.parametrize("depth", [1, 2, 5, 30])
def test_optimal_linear_networks_reach_it(depth):
    u, s, vt = torch.linalg.svd(normal(3, 4), full_matrices=False)
    between = [torch.linalg.qr(normal(5, 3, seed=i))[0] for i in range(depth - 1)]
    bases = [vt.T, *between, u]
    weights = [new @ torch.diag(s ** (1 / depth)) @ old.T for old, new in itertools.pairwise(bases)]
    net = from_layers(weights, slope=1.0)
    bound = lower_bound(net, normal(4, 4))
    assert bound == pytest.approx(norm(net), rel=1e-12) == pytest.approx(linear(normal(3, 4), depth))
    assert bound <= norm(net)
    assert bound.exact


def test_depth_may_be_another_one():
    net, x = network([3, 4, 2]), normal(5, 3)
    for depth in (1, 2, 7):
        expected = float(cost_at(net, x, depth).max())
        assert lower_bound(net, x, depth, domain="data") == pytest.approx(expected, rel=1e-9)


def test_other_modules_need_a_depth_and_are_bounded_as_functions():
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = normal(6, 3).float()
    with pytest.raises(TypeError, match=r"Tanh.*give the depth L"):
        lower_bound(smooth, x)
    at_data = lower_bound(smooth, x, 2, domain="data")
    assert at_data == pytest.approx(float(cost_at(smooth, x, 2).max()), rel=1e-9)
    assert at_data <= lower_bound(smooth, x, 2) <= norm(smooth)


def test_of_a_convolution_the_dense_matrix_counts():
    conv = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular", bias=False).double()
    x = normal(3, 1, 4, 4)
    with torch.no_grad():
        conv.weight.copy_(normal(2, 1, 3, 3))
    dense = circular_convolution_matrix(conv.weight.detach(), (4, 4))
    bound = lower_bound(conv, x, 1)
    assert bound == pytest.approx(linear(dense, 1)) == pytest.approx(16 * norm(conv))  # 16 output positions
    assert bound > norm(conv)
    assert bound.point.shape == (1, 4, 4)


def test_points_at_kinks_are_left_out():
    # f(x) = (relu(x + 1) - 1) - relu(x) + relu(-x) is 0 on (-1, 1); at 0 autograd takes its derivative to be 1
    net = from_layers([matrix([1], [1], [-1]), matrix([1, -1, 1])], [vector(1, 0, 0), vector(-1)])
    at_zero = matrix([0])
    assert cost_at(net, at_zero, 2) == 2
    bound = lower_bound(net, at_zero, domain="data")
    assert bound == 0
    assert bound.point.abs() < 1e-5
    assert bound.point != 0
    assert lower_bound(net, matrix([0], [0.5], [-0.5])) == 0


def test_rounding_noise_is_no_singular_value():
    # two neurons cancel but for rounding: f is 0, and noise^{2/L} would be far from it
    w = matrix([0.1], [0.1])
    last = [matrix([1, -1]) * 0.3, matrix([1 / 3])]
    net = from_layers([w, matrix([1.1, 0], [0, 1.1 + 2**-52]), *last], slope=1.0)
    jacobian = abs(float(input_jacobian(net, matrix([1]))))
    assert 0 < jacobian < 1e-16
    assert cost_at(net, matrix([1]), 40) > 5
    assert lower_bound(net, matrix([1], [2]), 40) == 0
    thin = from_layers([normal(10, 2) @ normal(2, 10, seed=1), normal(10, 10, seed=2)])
    x = normal(5, 10, seed=3)
    assert lower_bound(thin, x, 50, domain="data").singular_values.count_nonzero() <= 2


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
def test_degenerate_networks_and_data(slope):
    constant = network([2, 3, 2], slope)
    with torch.no_grad():
        constant.weights[0].zero_()
    assert lower_bound(constant, normal(4, 2)) == 0
    dead = network([2, 3, 2], slope)
    with torch.no_grad():
        dead.biases[0].fill_(-100.0)
    expected = 2 * abs(slope) * float(torch.linalg.svdvals(dead.weights[1].detach() @ dead.weights[0].detach()).sum())
    assert lower_bound(dead, normal(4, 2)) == pytest.approx(expected)
    net = network([3, 4, 4, 1], slope)
    one = normal(1, 3)
    assert lower_bound(net, one) == pytest.approx(float(cost_at(net, one, 3)), rel=1e-6)
    assert lower_bound(net, one.repeat(3, 1), domain="data") == pytest.approx(float(cost_at(net, one, 3)))
    assert lower_bound(net, one, rtol=0.0) == pytest.approx(float(cost_at(net, one, 3)))
    single = network([3, 2], slope, bias=False)
    assert lower_bound(single, one) == pytest.approx(norm(single))


def test_precisions_forms_and_what_is_left_alone():
    single = bnrank.MLP([2, 5, 5, 2], seed=3)
    x = normal(7, 2).float()
    before, state = copy.deepcopy(single.state_dict()), torch.get_rng_state()
    bound = lower_bound(single, x)
    assert bound == lower_bound(copy.deepcopy(single).double(), x.numpy().astype(np.float64))
    layers = [m for layer in single.layers for m in (layer, nn.ReLU())][:-1]
    assert bound == lower_bound(nn.Sequential(*layers), x)
    assert bound.point.dtype == bound.singular_values.dtype == torch.float64
    assert all(torch.equal(v, before[k]) for k, v in single.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert lower_bound(single, x, max_regions=0, seed=1) == lower_bound(single, x, max_regions=0, seed=1)


def test_the_number_carries_its_evidence():
    bound = lower_bound(network([2, 4, 2]), normal(5, 2))
    assert isinstance(bound, float)
    assert isinstance(bound, LowerBound)
    assert bound + 1 > bound
    with pytest.raises(AttributeError, match="cannot be changed"):
        bound.point = None
    for other in (copy.deepcopy(bound), pickle.loads(pickle.dumps(bound))):
        assert other == bound
        assert torch.equal(other.point, bound.point)
        assert other.exact is True


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"domain": "circle"}, ValueError, "domain: got 'circle'"),
        ({"domain": [[0.0, 1.0]]}, ValueError, r"domain: got shape \(1, 2\), expected \(2, 2\)"),
        ({"domain": [[1.0, 0.0], [0.0, 1.0]]}, ValueError, "domain: expected finite lower ends"),
        ({"domain": [[0.0, math.inf], [0.0, 1.0]]}, ValueError, "domain: expected finite"),
        ({"domain": object()}, TypeError, "domain: got"),
        ({"depth": 0}, ValueError, "depth"),
        ({"rtol": 1.0}, ValueError, "rtol"),
        ({"starts": 0}, ValueError, "starts"),
        ({"rounds": -1}, ValueError, "rounds"),
        ({"max_regions": -1}, ValueError, "max_regions"),
        ({"seed": -1}, ValueError, "seed"),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, match):
    with pytest.raises(error, match=match):
        lower_bound(network([2, 3, 2]), normal(3, 2), **kwargs)


def test_bad_networks_and_samples_are_refused():
    net = network([2, 3, 2])
    with pytest.raises(ValueError, match="expected \\(N, 2\\)"):
        lower_bound(net, normal(3, 4))
    for form in (net, nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))):
        for domain in ("box", "data"):
            with pytest.raises(ValueError, match=r"x: got shape \(3, 4\)"):
                lower_bound(form, normal(3, 4), domain=domain)
    with pytest.raises(ValueError, match="x: got NaN"):
        lower_bound(net, matrix([float("nan"), 0]))
    with pytest.raises(TypeError, match="floating point"):
        lower_bound(nn.Embedding(3, 2), torch.tensor([0, 1]), 2)
    with torch.no_grad():
        net.weights[0][0, 0] = math.nan
    for function in (lower_bound, r1_lower_bound, two_point):
        with pytest.raises(ValueError, match=r"NaN or infinite entries in layers\.0\.weight"):
            function(net, normal(3, 2))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        lower_bound(3, normal(3, 2))


# R1 --------------------------------------------------------------------------------------------------------------


def test_r1_of_linear_maps_is_reached_and_verified():
    net = LinearNetwork([4, 3, 5], seed=0, dtype=torch.float64)
    product = net.weights[1].detach() @ net.weights[0].detach()
    bound = r1_lower_bound(net, normal(3, 4))
    assert bound == pytest.approx(linear_corrections(product).R1)
    assert (bound.rank, bound.assumes, bound.exact) == (3, "", True)


@quick
@given(st.integers(0, 10**6), slopes)
def test_r1_is_the_largest_pseudo_determinant_of_the_largest_rank(seed, slope):
    net, x = network([2, 4, 4, 2], slope, seed=seed), normal(8, 2, seed=seed)
    values = torch.linalg.svdvals(input_jacobian(net, x))
    ranks = (values > 1e-6 * values[:, :1]).sum(1)
    k = int(ranks.max())
    bound = r1_lower_bound(net, x, domain="data")
    assert bound.rank == k
    assert bound == pytest.approx(2 * float(values[ranks == k, :k].log().sum(1).max()), abs=1e-9)
    wider = r1_lower_bound(net, x)
    assert (wider.rank, float(wider)) >= (k, bound - 1e-9)
    # k L + R1 <= ||theta||^2 at every depth, so at this one
    assert wider.rank * net.depth + wider <= norm(net)


def test_r1_says_what_it_assumes():
    net = from_layers([matrix([1, 0], [0, 1]), matrix([1, 0], [0, 1])])
    positive, negative = matrix([1, 1], [2, 3]), matrix([1, -1], [2, -3])
    assert r1_lower_bound(net, positive).assumes == ""
    half = r1_lower_bound(net, negative)
    assert (half.rank, half.assumes) == (1, "R0(f) = 1; found 1 <= R0(f) <= 2")
    assert half == pytest.approx(0, abs=1e-12)
    assert r1_lower_bound(net, negative, rank=1).assumes == "R0(f) = 1, as given"
    with pytest.raises(ValueError, match="rank: got 1, but the largest rank of the Jacobian found is 2"):
        r1_lower_bound(net, positive, rank=1)
    with pytest.raises(ValueError, match=r"rank: got 2, .* needs a point of rank R0"):
        r1_lower_bound(net, negative, rank=2)
    smooth = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    assert r1_lower_bound(smooth, normal(4, 3)).rank == 2


def test_r1_of_a_constant_is_zero():
    net = network([2, 3, 2])
    with torch.no_grad():
        net.weights[1].zero_()
    bound = r1_lower_bound(net, normal(4, 2))
    assert (float(bound), bound.rank, bound.assumes) == (0.0, 0, "")


# Two points ------------------------------------------------------------------------------------------------------


def slow_two_point(net, x, y):
    """The bound for one pair, every Jacobian by differentiating the part of the network."""
    weights = [w.detach().double() for w in net.weights]
    biases = [b.detach().double() for b in net.biases] or [torch.zeros(len(w)).double() for w in weights]
    depth = len(weights)

    def part(first, last):  # from a_{first} to a~_{last}, layers first + 1 .. last
        def run(a):
            for i in range(first, last):
                a = weights[i] @ a + biases[i]
                a = torch.relu(a) if i < last - 1 else a
            return a

        return run

    constant, jacobians = 1.0, []
    for point in (x, y):
        a = point
        for layer in range(1, depth):
            if layer <= depth - 2:
                full = torch.autograd.functional.jacobian(part(0, layer), point)
                constant = max(constant, float(torch.linalg.matrix_norm(full, 2)))
            a = torch.relu(weights[layer - 1] @ a + biases[layer - 1])
            if layer >= 2:
                rest = torch.autograd.functional.jacobian(part(layer, depth), a)
                constant = max(constant, float(torch.linalg.matrix_norm(rest, 2)))
        jacobians.append(torch.autograd.functional.jacobian(part(0, depth), point))
    values = [torch.linalg.svdvals(j) for j in jacobians]
    costs = [depth * float((v[v > 1e-10 * v[0]] ** (2 / depth)).sum()) for v in values]
    nuclear = float(torch.linalg.matrix_norm(jacobians[0] - jacobians[1], "nuc"))
    return 0.5 * sum(costs) + nuclear / constant**2, constant, nuclear


@quick
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([[2, 4, 2], [3, 4, 4, 3], [2, 3, 4, 3, 3, 2]]))
def test_two_point_bound_is_that_of_the_best_pair(seed, bias, widths):
    net, x = network(widths, 0.0, bias, seed), normal(5, widths[0], seed=seed)
    bound = two_point(net, x)
    pairs = {(i, j): slow_two_point(net, x[i], x[j]) for i, j in itertools.combinations(range(5), 2)}
    assert bound == pytest.approx(max(value for value, _, _ in pairs.values()), rel=1e-7)
    value, constant, nuclear = pairs[bound.pair]
    assert (bound, bound.constant, bound.difference) == pytest.approx((value, constant, nuclear), rel=1e-7)
    assert bound <= norm(net)
    assert (bound.pairs, bound.depth) == (10, net.depth)
    assert torch.equal(bound.points[0], x[bound.pair[0]])


def test_two_point_bound_is_tight_for_relu_and_more_than_one_point_gives():
    net, x = from_layers([matrix([1]), matrix([1])]), matrix([-2], [-1], [1])
    bound = two_point(net, x)
    assert (float(bound), bound.difference, bound.constant) == (2.0, 1.0, 1.0)
    v = from_layers([matrix([1], [-1]), matrix([1, 1])])  # |x|: one point gives 2, two give 4 = ||theta||^2
    assert lower_bound(v, x) == pytest.approx(2)
    assert two_point(v, x) == pytest.approx(4) == norm(v)


def test_two_point_pairs_with_other_samples_and_few_of_many():
    net, x = network([2, 6, 6, 2]), normal(40, 2)
    y = normal(30, 2, seed=1)
    bound = two_point(net, x, y, max_pairs=10**4)
    i, j = bound.pair
    assert bound.pairs == 1200
    assert bound == pytest.approx(slow_two_point(net, x[i], y[j])[0])
    assert two_point(net, torch.cat([x, y]), max_pairs=10**4) >= bound
    few = two_point(net, x, max_pairs=100, seed=1)
    assert few.pairs <= 100
    assert few <= two_point(net, x)
    assert few.pair == two_point(net, x, max_pairs=100, seed=1).pair
    assert two_point(net, x, y, max_pairs=50).pairs <= 50
    alone = two_point(net, x[:1])
    assert (alone.pair, alone.difference) == ((0, 0), 0.0)
    assert alone == pytest.approx(float(cost_at(net, x[:1], 3)))


def test_two_point_refuses_what_it_does_not_hold_for():
    for net in (network([2, 3, 2], -0.5), LinearNetwork([2, 3, 2])):
        with pytest.raises(ValueError, match="net: got an activation of slope"):
            two_point(net, normal(3, 2))
    with pytest.raises(TypeError, match="Conv2d"):
        two_point(nn.Conv2d(1, 1, 3), normal(2, 1, 4, 4))
    with pytest.raises(ValueError, match="y: got shape"):
        two_point(network([2, 3, 2]), normal(3, 2), normal(3, 5))
    with pytest.raises(ValueError, match="max_pairs"):
        two_point(network([2, 3, 2]), normal(3, 2), max_pairs=0)
