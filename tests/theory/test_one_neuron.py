"""The speed of one neuron: closed forms, fine grids, brackets, and chains that have that speed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank._core.validation import RangeError
from bnrank.measures import one_neuron
from bnrank.measures.one_neuron import branch_and_bound, fastest, norm_bound
from bnrank.networks import from_layers
from bnrank.theory.escape.one_neuron import one_neuron_speed, rank_one_speed


def circle(points=8):
    angle = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    return torch.stack([angle.sin(), angle.cos()], 1), torch.tensor([[1.0], [-1.0]]).repeat(points // 2, 1)


def speed_at(x, g, v, slope=0.0):
    """||G^T sigma(X v)||, sample by sample."""
    total = np.zeros(g.shape[1])
    for row, weights in zip(x, g, strict=True):
        z = float(row @ v)
        total = total + weights * (z if z >= 0 else slope * z)
    return float(np.linalg.norm(total))


def over_angles(x, g, slope, count=20_001):
    angle = np.linspace(0, 2 * math.pi, count)
    z = x @ np.stack([np.cos(angle), np.sin(angle)])
    return float(np.linalg.norm(g.T @ np.where(z >= 0, z, slope * z), axis=0).max())


def test_t40():
    x, g = circle()
    best = rank_one_speed(x, g)
    assert best.exact
    assert best.lower == best.upper == float(best)
    assert float(best) == pytest.approx(math.sqrt(2) - 1, abs=1e-12)
    assert (x @ best.direction).abs().min() < 1e-12  # at a kink
    angle = np.linspace(0, 2 * math.pi, 999)
    curve = one_neuron_speed(x, g, torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], 1)))
    xi = angle % (math.pi / 4)
    np.testing.assert_allclose(curve, math.sqrt(4 - 2 * math.sqrt(2)) * np.abs(np.sin(math.pi / 8 - xi)), atol=1e-14)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    k=st.integers(1, 4),
    slope=st.sampled_from([0.0, 0.3, -0.4, 1.0]),
    repeated=st.booleans(),
)
def test_two_dimensions_against_a_grid(seed, n, k, slope, repeated):
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(n, 2)), rng.normal(size=(n, k))
    if repeated:  # kinks in the same place
        x, g = np.concatenate([x, -x, 2 * x]), rng.normal(size=(3 * n, k))
    best = rank_one_speed(x, g, slope=slope)
    grid = over_angles(x, g, slope)
    assert best.exact
    assert grid * (1 - 1e-12) <= best.lower <= grid + 2e-4 * np.linalg.norm(x) * np.linalg.norm(g)
    assert best.lower == pytest.approx(speed_at(x, g, best.direction.numpy(), slope), rel=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_one_dimension(slope):
    x, g = np.array([[2.0], [1.0], [-3.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    expected = max(speed_at(x, g, np.array([v]), slope) for v in (1.0, -1.0))
    embedded = x @ np.array([[0.6, 0.0, 0.8]])
    best = rank_one_speed(embedded, g, slope=slope)
    assert best.exact
    assert best.lower == pytest.approx(expected, rel=1e-14)
    assert best.direction.abs().numpy() == pytest.approx([0.6, 0.0, 0.8])


def test_planes_in_many_dimensions_are_exact():
    rng = np.random.default_rng(1)
    flat, g = rng.normal(size=(40, 2)), rng.normal(size=(40, 3))
    q = np.linalg.qr(rng.normal(size=(9, 2)))[0]
    a, b = rank_one_speed(flat, g), rank_one_speed(flat @ q.T, g)
    assert a.exact
    assert b.exact
    assert b.lower == pytest.approx(a.lower, rel=1e-12)
    np.testing.assert_allclose(q @ a.direction.numpy(), b.direction.numpy(), atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 3, 1), (50, 6, 4), (7, 20, 5)])
def test_slope_one_is_an_operator_norm(shape):
    n, d, k = shape
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(n, d)), rng.normal(size=(n, k))
    best = rank_one_speed(x, g, slope=1)
    assert best.exact
    assert best.lower == pytest.approx(np.linalg.norm(g.T @ x, 2), rel=1e-12)
    # without the closed form, the same search finds it
    v = one_neuron.ascend(one_neuron.Neuron(x, g, 1.0), 16, 60, np.random.default_rng(0))
    assert speed_at(x, g, v, 1.0) == pytest.approx(best.lower, rel=1e-9)


@pytest.mark.parametrize(
    ("case", "closed"),
    [
        ((3, 10, 1, 0.0), 2e-6),
        ((3, 60, 3, 0.0), 2e-6),
        ((3, 30, 2, 0.4), 2e-6),
        ((4, 12, 1, 0.0), 1e-4),  # the best direction is at two kinks; cones go by first order there
        ((4, 40, 1, -0.3), 2e-6),
    ],
)
def test_brackets_close_in_few_dimensions(case, closed):
    d, n, k, slope = case
    rng = np.random.default_rng(d * n)
    x, g = rng.normal(size=(n, d)), rng.normal(size=(n, k))
    best = rank_one_speed(x, g, slope=slope, max_cones=100_000)
    assert not best.exact
    assert best.method == "cones"
    assert best.lower <= best.upper <= best.lower * (1 + closed)
    v = rng.normal(size=(20_000, d))
    assert one_neuron_speed(x, g, v, slope=slope).max() <= best.upper
    assert best.lower == pytest.approx(speed_at(x, g, best.direction.numpy(), slope), rel=1e-12)


def test_branch_and_bound_alone_finds_the_circle():
    """From a bad start, on T40's plane, where the answer is known."""
    x, g = (t.numpy() for t in circle())
    start = np.array([math.sin(0.3), math.cos(0.3)])
    neuron = one_neuron.Neuron(x, g, 0.0)
    upper, best = branch_and_bound(neuron, start, rtol=1e-7)
    assert neuron.size(best) <= math.sqrt(2) - 1 + 1e-12
    assert math.sqrt(2) - 1 <= upper * (1 + 1e-12)
    assert upper <= neuron.size(best) * (1 + 2e-7)
    stopped, _ = branch_and_bound(neuron, start, rtol=1e-7, max_cones=8)
    assert stopped > upper


@pytest.mark.parametrize("slope", [0.0, 0.4, -0.5])
@pytest.mark.parametrize("k", [1, 3])
def test_cones_bound_the_speed_however_early_they_stop(slope, k):
    """A few samples of which few are active everywhere in a cone, so that what is bounded matters most."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x, g = rng.normal(size=(4, 2)), rng.normal(size=(4, k))
        known = rank_one_speed(x, g, slope=slope).lower
        start = rng.normal(size=2)
        start /= np.linalg.norm(start)
        for budget in (4, 6, 10, 40):
            neuron = one_neuron.Neuron(x, g, slope)
            upper, best = branch_and_bound(neuron, start, max_cones=budget)
            assert neuron.size(best) <= known * (1 + 1e-12)
            assert known <= upper * (1 + 1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), slope=st.sampled_from([0.0, 0.3, -0.4, 1.0]), k=st.integers(1, 3))
def test_norm_bounds_hold(seed, slope, k):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 8))
    n = int(rng.integers(1, 25))
    x, g = rng.normal(size=(n, d)) + rng.normal(), rng.normal(size=(n, k)) + rng.normal()
    bound = norm_bound(one_neuron.Neuron(x, g, slope))
    v = rng.normal(size=(2000, d))
    assert one_neuron_speed(x, g, v, slope=slope).max() <= bound
    p, q = (1 + slope) / 2, (1 - slope) / 2
    apart = p * np.linalg.norm(g.T @ x, 2) + q * np.linalg.norm(g, 2) * np.linalg.norm(x, 2)
    assert bound <= apart * (1 + 1e-9)
    if slope == 1:
        assert bound == pytest.approx(np.linalg.norm(g.T @ x, 2), rel=1e-9)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_the_chain_has_that_speed(depth):
    rng = np.random.default_rng(3)
    x, g = torch.from_numpy(rng.normal(size=(20, 6))), torch.from_numpy(rng.normal(size=(20, 3)))
    best = rank_one_speed(x, g)
    assert float(best.direction.norm()) == pytest.approx(1, abs=1e-12)
    assert float(best.output.norm()) == pytest.approx(1, abs=1e-12)
    ones = [torch.ones(1, 1, dtype=torch.float64)] * (depth - 2)
    chain = from_layers([best.direction[None], *ones, best.output[:, None]], slope=0.0)
    assert sum(float(w.detach().square().sum()) for w in chain.weights) == pytest.approx(depth)
    assert -float((g * chain(x).detach()).sum()) == pytest.approx(best.lower, rel=1e-12)


def test_high_dimensions_beat_descent_from_many_starts():
    rng = np.random.default_rng(4)
    x, g = rng.normal(size=(60, 12)), rng.normal(size=(60, 2))
    best = rank_one_speed(x, g)
    assert best.method == "norms"
    v = torch.from_numpy(rng.normal(size=(12, 200))).requires_grad_()
    adam = torch.optim.Adam([v], lr=0.05)
    for _ in range(150):
        value = (torch.from_numpy(g).T @ torch.relu(torch.from_numpy(x) @ (v / v.norm(dim=0)))).norm(dim=0)
        adam.zero_grad()
        (-value.sum()).backward()
        adam.step()
    assert float(value.detach().max()) <= best.lower * (1 + 1e-9)
    assert best.lower < best.upper


def test_positive_data_are_linear():
    """X > 0, G < 0: all neurons are active at the optimum, the top singular pair of G^T X."""
    rng = np.random.default_rng(0)
    x, g = rng.uniform(0.1, 1, (30, 6)), -rng.uniform(0.1, 1, (30, 2))
    assert float(rank_one_speed(x, g)) == pytest.approx(np.linalg.norm(g.T @ x, 2), rel=1e-10)


def test_compression_is_covered_by_the_bracket():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 6)) + 1e-3 * rng.normal(size=(50, 6))
    g = rng.normal(size=(50, 1)) @ rng.normal(size=(1, 8)) + 1e-3 * rng.normal(size=(50, 8))
    full = fastest(x, g, 0.0)
    fast = fastest(x, g, 0.0, rank_rtol=0.05)
    assert fast.method == "closed form"
    assert not fast.exact
    assert fast.lower == pytest.approx(full.lower, rel=1e-2)
    assert full.lower <= fast.upper
    assert fast.upper < 1.2 * fast.lower


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
def test_signed_maxima(d, slope):
    """Of one sign only: G^T sigma(X v) itself, not its size."""
    rng = np.random.default_rng(d)
    x, g = rng.normal(size=(20, d)), rng.normal(size=(20, 1)) - 0.5
    plus, minus, both = fastest(x, g, slope, signed=True), fastest(x, -g, slope, signed=True), fastest(x, g, slope)
    assert both.lower == pytest.approx(max(plus.lower, minus.lower), rel=1e-9)
    if slope == 0:
        assert abs(plus.lower - minus.lower) > 1e-3
    z = x @ rng.normal(size=(d, 20_000))
    z /= np.linalg.norm(np.linalg.lstsq(x, z, rcond=None)[0], axis=0)
    values = (g.T @ np.where(z >= 0, z, slope * z))[0]
    for found, seen in ((plus, values.max()), (minus, -values.min())):
        assert found.lower <= found.upper
        assert seen <= found.lower * (1 + 1e-12)
        assert found.upper <= found.lower * (1 + 1e-3)


@pytest.mark.parametrize("k", range(6))
def test_signed_cones_bound_the_maximum_however_early_they_stop(k):
    rng = np.random.default_rng(k)
    x, g = rng.normal(size=(4, 2)), rng.normal(size=(4, 1))
    known = fastest(x, g, 0.0, signed=True).lower
    for budget in (4, 6, 10, 40):
        neuron = one_neuron.Neuron(x, g, 0.0, signed=True)
        upper, _ = branch_and_bound(neuron, np.array([1.0, 0.0]), max_cones=budget)
        assert known <= max(upper, 0.0) * (1 + 1e-12)


def test_no_neuron_moves_the_loss():
    """The same sample twice with opposite gradients: sigma(X v) is orthogonal to G for every v."""
    x, g = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[1.0], [-1.0]])
    best = rank_one_speed(x, g)
    assert float(best) == best.upper == 0
    assert "orthogonal to G" in best.note
    assert not best.output.any()
    x3, g3 = np.repeat(np.eye(3), 2, axis=0), np.tile(g, (3, 1))
    best = rank_one_speed(x3, g3)
    assert float(best) == 0
    assert best.note
    assert not rank_one_speed(*circle()).note


@pytest.mark.parametrize("d", [2, 3, 7])
@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_speeds_in_extreme_units(d, unit):
    rng = np.random.default_rng(d)
    x, g = rng.normal(size=(12, d)), rng.normal(size=(12, 2))
    one = rank_one_speed(x, g)
    for other in (rank_one_speed(x * unit, g), rank_one_speed(x, g * unit)):
        assert other.lower == pytest.approx(one.lower * unit, rel=1e-6)
        assert other.upper == pytest.approx(one.upper * unit, rel=1e-3)
        assert other.exact == one.exact
        assert one_neuron_speed(x * unit, g, other.direction[None] * 1e-200)[0] == pytest.approx(other.lower, rel=1e-9)
    with pytest.raises(RangeError, match="x, g: got largest entries of product"):
        rank_one_speed(x * unit, g * unit)


def test_a_power_of_two_changes_no_digit():
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    one, other = rank_one_speed(x, g), rank_one_speed(x * 2.0**300, g)
    assert (one.lower, one.upper) == (other.lower / 2.0**300, other.upper / 2.0**300)
    assert torch.equal(one.direction, other.direction)


def test_cones_stop_where_a_matrix_of_corners_is_singular(monkeypatch):
    """What was bounded until then stands."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(12, 3)), rng.normal(size=(12, 1))
    solve, calls = np.linalg.solve, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise np.linalg.LinAlgError("Singular matrix")
        return solve(*arguments)

    best = rank_one_speed(x, g)
    monkeypatch.setattr(np.linalg, "solve", failing)
    early = rank_one_speed(x, g)
    assert len(calls) == 3
    assert best.lower <= early.upper * (1 + 1e-12)
    assert early.upper > best.upper


def test_bad_input():
    x, g = circle()
    with pytest.raises(ValueError, match=r"g: got zeros only.*flat at the origin to first order"):
        rank_one_speed(x, 0 * g)
    with pytest.raises(ValueError, match="x: got zeros only"):
        rank_one_speed(0 * x, g)
    with pytest.raises(ValueError, match="g: got 7 samples, expected as many as x has, 8"):
        rank_one_speed(x, g[:7])
    with pytest.raises(ValueError, match="slope: got 2"):
        rank_one_speed(x, g, slope=2)
    with pytest.raises(ValueError, match="starts: got 0"):
        rank_one_speed(x, g, starts=0)
    with pytest.raises(ValueError, match="x: got NaN"):
        rank_one_speed(x * math.nan, g)
    with pytest.raises(ValueError, match=r"directions: got shape \(1, 3\)"):
        one_neuron_speed(x, g, torch.ones(1, 3))
    with pytest.raises(ValueError, match="directions: got zeros in row 1"):
        one_neuron_speed(x, g, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    rank_one_speed(torch.eye(3), torch.ones(3, 1))
    assert np.array_equal(state[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(state[1], torch.get_rng_state())
