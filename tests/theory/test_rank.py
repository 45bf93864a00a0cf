import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import LinearNetwork, from_layers, make
from bnrank.theory.factorization import Basis, cuts
from bnrank.theory.rank_bounds import rank
from helpers import network, normal
from oracles import float64, input_jacobian

SLOPES = [0.0, 0.3, -0.5, 1.0]
quick = settings(max_examples=10, deadline=None, derandomize=True)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def chained(*nets):
    """The composition as one network, the first applied first."""
    weights, biases = [], []
    for net in nets:
        ws, bs = [w.detach() for w in net.weights], [b.detach() for b in net.biases]
        if weights:
            biases[-1] = ws[0] @ biases[-1] + bs[0]
            weights[-1] = ws[0] @ weights[-1]
            ws, bs = ws[1:], bs[1:]
        weights += ws
        biases += bs
    return from_layers(weights, biases, nets[0].slope)


def summed(f, g):
    """f + g as one network of the same depth."""
    first = torch.cat([f.weights[0], g.weights[0]]), torch.cat([f.biases[0], g.biases[0]])
    middle = [
        (torch.block_diag(a, b), torch.cat([c, d]))
        for a, b, c, d in zip(f.weights[1:-1], g.weights[1:-1], f.biases[1:-1], g.biases[1:-1], strict=True)
    ]
    last = torch.cat([f.weights[-1], g.weights[-1]], 1), f.biases[-1] + g.biases[-1]
    weights, biases = zip(first, *middle, last, strict=True)
    return from_layers([w.detach() for w in weights], [b.detach() for b in biases], f.slope)


def cross():
    """T19: m (sign x0, sign x1), m = min(|x0|, |x1|), through |x|, then |x0 +- |x1||, |x1 +- |x0||."""
    e = torch.eye(2, dtype=torch.float64)
    first = torch.cat([e, -e])
    size, value = torch.cat([e, e], 1), torch.cat([e, -e], 1)
    rows = torch.stack([value[0] + size[1], value[0] - size[1], value[1] + size[0], value[1] - size[0]])
    last = torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1]], dtype=torch.float64) / 2
    return from_layers([first, torch.cat([rows, -rows]), torch.cat([last, last], 1)])


def invertible(size, slope, seed):
    """A bijection of R^size: square layers with singular values in [0.5, 1.5] and a slope that is not 0."""
    weights = []
    for i in range(3):
        u, _, v = torch.linalg.svd(normal(size, size, seed=100 * seed + i))
        weights.append(u @ torch.diag(torch.linspace(0.5, 1.5, size, dtype=torch.float64)) @ v)
    return from_layers(weights, [0.3 * normal(size, seed=100 * seed + 10 + i) for i in range(3)], slope)


def assert_consistent(found, net, x):
    """The factorization reproduces f to the error stated, h o g has rank ``lower`` at the witness, lower <= upper."""
    with torch.no_grad():
        f = float64(net)(x.double()).flatten(1)
        inner = float64(found.g)(x.double())
        approximation = float64(found.h)(inner).flatten(1)
    assert inner.shape == (len(x), max(found.upper, 1))
    error = float((f - approximation).abs().max())
    assert found.error == pytest.approx(error, rel=1e-6, abs=1e-13)
    assert found.relative_error == pytest.approx(error / float(f.abs().max()) if f.any() else 0.0, rel=1e-6, abs=1e-13)
    assert 0 <= found.lower <= found.upper <= found.everywhere
    jacobian = input_jacobian(nn.Sequential(found.g, found.h), found.witness[None])[0]
    values = torch.linalg.svdvals(jacobian)
    assert int((values > max(found.rtol, 1e-9) * values[0]).sum()) == found.lower
    assert torch.allclose(values[: len(found.singular_values)], found.singular_values, atol=1e-7 * float(values.max()))
    if found.index is not None:
        assert torch.equal(found.witness, x[found.index])


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_narrow_layer_is_found(slope, bias):
    x = normal(60, 5)
    net = network([5, 9, 2, 9, 4], slope, bias, seed=1)
    found = rank(net, x)
    assert (found.lower, found.upper, found.everywhere, found.exact, found.domain) == (2, 2, 2, True, "everywhere")
    assert found.relative_error < 1e-13
    assert_consistent(found, net, x)
    assert bool(found.h.bias) == bias


@pytest.mark.parametrize("slope", SLOPES)
def test_a_weight_of_low_rank_bounds_everywhere(slope):
    net = network([6, 8, 8, 6], slope, seed=2)
    with torch.no_grad():
        net.weights[1].copy_(normal(8, 3, seed=1) @ normal(3, 8, seed=2))
    x = normal(60, 6)
    found = rank(net, x, domain="everywhere")
    assert (found.upper, found.everywhere, found.domain) == (3, 3, "everywhere")
    assert (found.layer, found.place) == (2, "preactivation")
    assert_consistent(found, net, x)
    far = 100 * normal(50, 6, seed=9)
    assert torch.allclose(found.h(found.g(far)), net(far), atol=1e-9)


def test_the_cross_has_jacobian_rank_1_and_bracket_1_2():
    x = normal(300, 2)
    net = cross()
    assert torch.allclose(net(x), x.abs().min(1).values[:, None] * x.sign())
    found = rank(net, x, box=[(-2, 2), (-2, 2)])
    assert (found.lower, found.upper, found.exact, found.complete) == (1, 2, False, True)
    assert_consistent(found, net, x)


@quick
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 6), st.booleans(), st.integers(0, 10**6))
def test_affine_maps_are_exact(d_in, d_out, k, bias, seed):
    k = min(k, d_in, d_out)
    matrix = normal(d_out, k, seed=seed) @ normal(k, d_in, seed=seed + 1)
    net = from_layers([matrix], [normal(d_out, seed=seed + 2)] if bias else [])
    x = normal(20, d_in, seed=seed + 3)
    found = rank(net, x)
    assert (found.lower, found.upper) == (k, k)
    assert_consistent(found, net, x)


@quick
@given(
    st.lists(st.integers(1, 5), min_size=3, max_size=5),
    st.lists(st.integers(1, 5), min_size=3, max_size=5),
    st.sampled_from(SLOPES),
    st.integers(0, 10**6),
)
def test_composition_is_bounded_by_the_least_rank(widths_g, widths_f, slope, seed):
    widths_f[0] = widths_g[-1]
    g, f = network(widths_g, slope, seed=seed), network(widths_f, slope, seed=seed + 1)
    both = chained(g, f)
    x = normal(40, widths_g[0], seed=seed)
    middle = g(x).detach()
    assert torch.allclose(both(x), f(middle))
    for domain in ("data", "everywhere"):
        one, two, three = (rank(n, z, domain=domain) for n, z in ((g, x), (f, middle), (both, x)))
        assert three.upper <= min(one.upper, two.upper)
    # at the samples: Jacobians of the parts at the points that the whole passes through
    assert three.lower <= min(one.jacobian_rank, two.jacobian_rank)


@quick
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.sampled_from(SLOPES), st.integers(0, 10**6))
def test_a_sum_is_bounded_by_the_sum_of_ranks(k, m, d, slope, seed):
    f, g = network([d, 6, k, 6, 4], slope, seed=seed), network([d, 5, m, 5, 4], slope, seed=seed + 1)
    x = normal(40, d, seed=seed)
    total = summed(f, g)
    assert torch.allclose(total(x), f(x) + g(x))
    one, two, both = (rank(n, x, domain="everywhere") for n in (f, g, total))
    assert both.upper <= one.upper + two.upper
    assert both.lower <= one.lower + two.lower
    assert rank(total, x).upper <= rank(f, x).upper + rank(g, x).upper


@quick
@given(st.integers(1, 4), st.sampled_from([0.3, -0.5]), st.integers(0, 10**6))
def test_bijections_change_neither_bound(k, slope, seed):
    f = network([5, 7, k, 7, 4], slope, seed=seed)
    before, after = invertible(5, slope, seed + 1), invertible(4, slope, seed + 2)
    x = normal(40, 5, seed=seed)
    inner = rank(f, before(x).detach(), domain="everywhere")
    outer = rank(chained(before, f, after), x, domain="everywhere")
    assert (outer.lower, outer.upper) == (inner.lower, inner.upper)


def test_data_in_a_subspace_bound_the_rank_on_the_data_only():
    net = network([6, 20, 20, 6], seed=3)
    x = normal(80, 2, seed=1) @ normal(2, 6, seed=2) + normal(6, seed=3)
    found = rank(net, x)
    assert (found.upper, found.domain, found.place) == (2, "on the data", "input")
    assert found.lower == 2
    assert found.everywhere == found.jacobian_rank == 6
    assert_consistent(found, net, x)
    elsewhere = normal(9, 6, seed=7)
    assert not torch.allclose(found.h(found.g(elsewhere)), net(elsewhere), atol=0.1)
    assert rank(net, x, domain="everywhere").upper == 6


def test_without_biases_the_span_is_linear():
    x = torch.cat([torch.ones(30, 1, dtype=torch.float64), normal(30, 1)], 1) @ normal(2, 5, seed=2)  # an affine line
    net = LinearNetwork([5, 5, 5], seed=0, dtype=torch.float64)
    assert rank(net, x).upper == 2
    assert not rank(net, x).g.bias
    assert rank(network([5, 5, 5], 1.0), x).upper == 1


def nearly_low_rank(seed=4, noise=1e-3):
    """A network whose middle weight is rank 2 and noise."""
    net = network([6, 12, 12, 12, 6], 0.3, seed=seed)
    with torch.no_grad():
        low = normal(12, 2, seed=seed + 1) @ normal(2, 12, seed=seed + 2)
        net.weights[1].copy_(low / 3 + noise * normal(12, 12, seed=seed + 3))
    return net


def test_the_tolerance_decides_and_the_error_keeps_to_it():
    net, x = nearly_low_rank(), normal(100, 6)
    tight, loose = rank(net, x), rank(net, x, output_rtol=0.05)
    assert (tight.lower, tight.upper) == (6, 6)
    assert (loose.lower, loose.upper, loose.domain, loose.jacobian_rank) == (2, 2, "on the data", 6)
    assert 1e-9 < loose.relative_error <= 0.05
    assert_consistent(loose, net, x)
    uppers = [rank(net, x, output_rtol=t).upper for t in (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 2.0)]
    assert uppers == sorted(uppers, reverse=True)
    assert uppers[0] == 6
    assert uppers[-1] == 0


@pytest.mark.parametrize("tolerance", [1e-9, 1e-2, 0.1, 0.6])
@pytest.mark.parametrize("seed", [4, 14, 24])
def test_it_is_the_least_of_all_cuts_and_dimensions(seed, tolerance):
    net, x = nearly_low_rank(seed), normal(100, 6)
    f = net(x).detach()
    allowed = tolerance * float(f.abs().max())

    def error(cut, k):
        mean = cut.values.mean(0)
        directions = torch.linalg.svd(cut.values - mean, full_matrices=False)[2][:k]
        return float((cut.rest(mean + (cut.values - mean) @ directions.T @ directions) - f).abs().max())

    passing = [(k, cut) for cut in cuts(net, x) for k in range(cut.values.shape[1] + 1) if error(cut, k) <= allowed]
    found = rank(net, x, output_rtol=tolerance)
    assert found.upper == min(k for k, _ in passing)
    if found.domain == "on the data":
        least = min((error(cut, k), cut.layer, cut.place) for k, cut in passing if k == found.upper)
        assert (found.layer, found.place) == least[1:]


@pytest.mark.parametrize("place", range(8))
def test_every_cut_splits_the_network(place):
    """With the whole space h o g is f; with a subspace it is f of the nearest points of that."""
    net, x = network([4, 6, 7, 5, 3], 0.3, seed=5), normal(20, 4)
    places = cuts(net, x)
    assert len(places) == 8
    cut = places[place]
    h, g = cut.split(Basis(None, torch.zeros_like(cut.values[0])))
    assert torch.allclose(h(g(x)), net(x), atol=1e-12)
    assert torch.allclose(cut.rest(cut.values), net(x), atol=1e-12)
    basis = Basis(torch.linalg.qr(normal(cut.values.shape[1], 2))[0], normal(cut.values.shape[1], seed=1))
    h, g = cut.split(basis)
    assert torch.allclose(h(g(x)), cut.rest(basis.project(cut.values)), atol=1e-12)
    assert g.widths[-1] == h.widths[0] == 2


def test_the_box_finds_what_the_samples_miss():
    net = from_layers([torch.eye(2), torch.eye(2)])  # relu(x)
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.1], [2.0, -0.5]], dtype=torch.float64)
    assert rank(net, x, domain="everywhere").lower == 1
    found = rank(net, x, domain="everywhere", box=(-2.0, 2.0))
    assert (found.lower, found.upper, found.index, found.complete) == (2, 2, None, True)
    assert_consistent(found, net, x)
    assert not rank(net, x, domain="everywhere", box=(-2.0, 2.0), max_regions=2).complete


def test_samples_on_kinks_do_not_count():
    weights = [torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, -1.0]])]  # relu(x) - relu(-x) = x
    net = from_layers(weights)
    found = rank(net, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    assert (found.lower, found.index) == (1, 1)
    only = rank(net, torch.zeros(3, 1, dtype=torch.float64), domain="everywhere")
    assert (only.lower, only.upper, only.index) == (1, 1, None)


@pytest.mark.parametrize("slope", SLOPES)
def test_functions_that_are_constant_have_rank_0(slope):
    x = normal(20, 3)
    dead = network([3, 4, 4, 2], slope, seed=1)
    with torch.no_grad():
        dead.weights[1].zero_()
    found = rank(dead, x)
    assert (found.lower, found.upper, found.everywhere, found.g(x).unique().tolist()) == (0, 0, 0, [0.0])
    assert_consistent(found, dead, x)
    nothing = make([3, 4, 2], slope, False, init=0.0, dtype=torch.float64)
    found = rank(nothing, x, output_rtol=0.0)
    assert (found.lower, found.upper, found.error, found.relative_error) == (0, 0, 0.0, 0.0)


def test_relu_neurons_that_are_dead_on_the_data():
    net = network([3, 4, 2], seed=1)
    with torch.no_grad():
        net.biases[0].fill_(-100.0)
    found = rank(net, normal(20, 3))
    assert (found.lower, found.upper, found.everywhere, found.domain) == (0, 0, 2, "on the data")
    assert_consistent(found, net, normal(20, 3))


def test_one_sample_and_one_output():
    net = network([3, 5, 1], seed=1)
    assert rank(net, normal(30, 3)).upper == 1
    one = rank(net, normal(1, 3))
    assert (one.lower, one.upper, one.domain) == (0, 0, "on the data")  # one point spans nothing
    assert (rank(net, normal(1, 3), domain="everywhere").lower) == 1


def test_float32_comes_back_as_float32_and_nothing_is_changed():
    net = bnrank.MLP([5, 9, 3, 9, 5], seed=0)
    before, state = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    x = torch.randn(50, 5, generator=generator(0))
    found = rank(net.train(), x)
    assert all(p.dtype == torch.float32 for n in (found.h, found.g) for p in n.parameters())
    assert (found.lower, found.upper, found.domain) == (3, 3, "everywhere")
    assert found.output_rtol == pytest.approx(1.2e-5, rel=0.01)
    assert_consistent(found, net, x)
    assert torch.allclose(found.h(found.g(x)), net(x), atol=1e-5)
    assert net.training
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
        nn.LeakyReLU(0.1),
        nn.Unflatten(1, (3, 1)),
        nn.Flatten(),
        nn.Linear(3, 10),
    )


def test_convolutional_networks_are_cut_between_their_parts():
    net, x = conv_net(), torch.randn(60, 2, 4, 4, generator=generator(0))
    found = rank(net, x)
    assert (found.lower, found.upper, found.domain, found.place) == (3, 3, "everywhere", "activation")
    assert_consistent(found, net, x)
    assert torch.allclose(found.h(found.g(x)), net(x), atol=1e-5)
    for cut in cuts(net, x.double()):
        basis = Basis(torch.linalg.qr(normal(cut.values.shape[1], 3))[0], normal(cut.values.shape[1], seed=1))
        h, g = cut.split(basis)
        with torch.no_grad():
            assert torch.allclose(h(g(x.double())), cut.rest(basis.project(cut.values)), atol=1e-12)
            assert torch.allclose(cut.rest(cut.values), float64(net)(x.double()), atol=1e-12)
    flat = torch.randn(60, 2, generator=generator(1)) @ torch.randn(2, 32, generator=generator(2))
    found = rank(net, flat.reshape(60, 2, 4, 4))
    assert (found.lower, found.upper, found.domain) == (2, 2, "on the data")
    assert_consistent(found, net, flat.reshape(60, 2, 4, 4))


def test_modules_that_work_in_place_or_hold_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Tanh(), nn.Linear(6, 5)).double()
    for cut in cuts(net, normal(30, 4)):
        expected = net[: cut.layer](normal(30, 4)).clone()
        assert torch.allclose(cut.rest(cut.values), net(normal(30, 4)))
        assert torch.equal(cut.values, expected)
    x = normal(30, 4)
    found = rank(net, x)
    assert (found.lower, found.upper, found.place) == (4, 4, "input")
    assert_consistent(found, net, x)
    for nothing in (nn.Sequential(), nn.ReLU()):
        found = rank(nothing, x.abs())
        assert (found.lower, found.upper, found.error) == (4, 4, 0.0)


def test_any_other_module_is_cut_at_input_and_output():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network([4, 6, 4], seed=1)

        def forward(self, x):
            return x + torch.tanh(self.inner(x)) @ torch.ones(4, 4, dtype=x.dtype)

    net, x = Odd(), normal(50, 4)
    found = rank(net, x)
    assert (found.lower, found.upper, found.domain) == (4, 4, "everywhere")
    assert_consistent(found, net, x)
    line = torch.linspace(1, 2, 30, dtype=torch.float64)[:, None] * normal(1, 4)
    found = rank(net, line)
    assert (found.lower, found.upper, found.place) == (1, 1, "input")
    assert_consistent(found, net, line)


def test_a_trained_network_has_the_rank_of_its_task():
    task = bnrank.tasks.low_rank_map(n=150, d_in=8, d_out=8, latent=4, rank=2, width=20, seed=0)
    net = bnrank.MLP([8, *[30] * 7, 8], seed=0)
    run = bnrank.train(net, task, ridge=3e-3, steps=800, progress=False, seed=0)
    found = rank(run.network(0), task.x, output_rtol=0.05)
    assert (found.lower, found.upper) == (2, 2)
    assert found.relative_error <= 0.05
    assert_consistent(found, run.network(0), task.x)


def test_errors_name_the_argument():
    net, x = network([2, 3, 2]), normal(5, 2)
    with pytest.raises(ValueError, match=r"domain: got 'date'.*did you mean 'data'"):
        rank(net, x, domain="date")
    with pytest.raises(ValueError, match="output_rtol: got -1"):
        rank(net, x, output_rtol=-1.0)
    with pytest.raises(ValueError, match="rtol: got 1"):
        rank(net, x, 1.0)
    with pytest.raises(TypeError, match=r"x: got dtype torch.int64"):
        rank(nn.Embedding(3, 2), torch.tensor([[1], [2]]))
    with torch.no_grad():
        net.weights[0][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or infinite entries in layers.0.weight"):
        rank(net, x)
