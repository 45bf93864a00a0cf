"""Collapse of orbits: planted representations, plain sums, and rotations that keep what they should."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.measures import orbits


def rotation(axis, generator):
    """Return a Haar-distributed rotation or reflection that leaves the axis as it is: the slow and obvious way."""
    d = len(axis)
    basis = torch.linalg.qr(torch.cat([axis[:, None], torch.eye(d, dtype=torch.float64)], 1))[0]
    q, r = torch.linalg.qr(torch.randn(d - 1, d - 1, dtype=torch.float64, generator=generator))
    inner = torch.eye(d, dtype=torch.float64)
    inner[1:, 1:] = q * torch.diagonal(r).sign()
    return basis @ inner @ basis.T


@settings(max_examples=20, deadline=None, derandomize=True)
@given(d=st.integers(2, 9), seed=st.integers(0, 10**9), length=st.floats(0.1, 10))
def test_rotations_keep_the_axis_and_the_norm(d, seed, length):
    generator = torch.Generator().manual_seed(seed)
    v, axis = torch.randn(5, d, dtype=torch.float64, generator=generator), torch.randn(d, dtype=torch.float64)
    points = orbits.rotations(v, length * axis, 7, seed)
    assert points.shape == (5, 7, d)
    assert (points @ axis) == pytest.approx((v @ axis)[:, None].expand(5, 7), abs=1e-12)
    assert points.norm(dim=2) == pytest.approx(v.norm(dim=1)[:, None].expand(5, 7), abs=1e-12)


def test_rotations_are_distributed_as_those_of_the_orthogonal_group():
    generator = torch.Generator().manual_seed(0)
    axis = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    v = torch.tensor([[0.3, -1.2, 0.7]], dtype=torch.float64)
    drawn = orbits.rotations(v, axis, 20_000, 1)[0]
    slow = torch.stack([rotation(axis, generator) @ v[0] for _ in range(5000)])
    torch.testing.assert_close(rotation(axis, generator) @ axis, axis)
    assert drawn.mean(0) == pytest.approx(slow.mean(0), abs=0.05)
    assert torch.cov(drawn.T) == pytest.approx(torch.cov(slow.T), abs=0.05)


def test_rotations_are_reproducible_and_leave_the_global_generator_alone():
    v, axis = torch.ones(2, 3), torch.tensor([1.0, 0.0, 0.0])
    before = torch.get_rng_state()
    first = orbits.rotations(v, axis, 4, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, orbits.rotations(v.numpy(), axis.numpy(), 4, 3))
    assert first.dtype == torch.float32
    assert not torch.equal(first, orbits.rotations(v, axis, 4, 4))


def plain(values):
    """Sum in loops: strata, orbits, points."""
    within = total = 0.0
    for stratum in values:
        mean = stratum.reshape(-1, stratum.shape[-1]).mean(0)
        for orbit in stratum:
            for point in orbit:
                within += float(((point - orbit.mean(0)) ** 2).sum())
                total += float(((point - mean) ** 2).sum())
    return within / total


@settings(max_examples=20, deadline=None, derandomize=True)
@given(shape=st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(2, 5), st.integers(1, 3)), seed=st.integers(0))
def test_collapse_is_the_plain_sum(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape)
    assert orbits.collapse(values) == pytest.approx(plain(values), rel=1e-10)
    assert orbits.collapse(values[0]) == pytest.approx(plain(values[:1]), rel=1e-10)
    assert 0 <= orbits.collapse(values) <= 1 + 1e-12
    assert orbits.collapse(3 * values + 2) == pytest.approx(orbits.collapse(values), rel=1e-9)


def test_planted_representations():
    generator = torch.Generator().manual_seed(0)
    axis = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    v = torch.randn(300, 4, dtype=torch.float64, generator=generator)
    points = orbits.rotations(v, axis, 20)
    across = points[..., 1:].norm(dim=-1, keepdim=True)
    assert orbits.collapse(torch.cat([points[..., :1], across], -1)) < 1e-20
    assert orbits.collapse(points[..., 1:]) == pytest.approx(0.95, abs=0.03)  # (n - 1) / n of all of it
    assert orbits.collapse(points) == pytest.approx(0.75 * 0.95, abs=0.05)
    # a projection onto the axis, with a little of the rest: small only because the axis dominates
    stretched = points * torch.tensor([100.0, 1, 1, 1])
    planes = v[:10].repeat_interleave(6, 0)
    planes[:, 1:] *= torch.rand(60, 1, dtype=torch.float64, generator=generator)
    strata = orbits.rotations(planes, axis, 20).unflatten(0, (10, 6)) * torch.tensor([100.0, 1, 1, 1])
    assert orbits.collapse(stretched) < 1e-3
    assert orbits.collapse(strata) > 0.9
    assert orbits.collapse(strata.flatten(0, 1)) < 1e-3


def test_by_layer_on_a_network_that_learns_the_orbits():
    """|p| of two dimensions is (1/m) sum of relu(q^T p) over unit vectors q, up to a factor, for many of them."""
    angles = torch.arange(400, dtype=torch.float64) * 2 * torch.pi / 400
    first = torch.stack([torch.zeros_like(angles), angles.cos(), angles.sin()], 1)
    keep = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]], dtype=torch.float64)
    w1 = torch.cat([first, keep])
    w2 = torch.zeros(2, 402, dtype=torch.float64)
    w2[0, :400], w2[1, 400], w2[1, 401] = torch.pi / 400, 1, -1
    net = bnrank.networks.mlp.from_layers([w1, w2])
    points = orbits.rotations(torch.randn(50, 3, generator=torch.Generator().manual_seed(2)), torch.eye(3)[0], 16)
    found = orbits.collapse_by_layer(net, points)
    assert found.shape == (3,)
    assert found[0] == pytest.approx(orbits.collapse(points))
    hidden = torch.relu(points.double() @ w1.T)
    assert found[1] == pytest.approx(orbits.collapse(hidden), rel=1e-9)
    assert found[2] < 1e-8 < 0.3 < found[1]
    np.testing.assert_allclose(orbits.collapse_by_layer(net, points, chunk_size=7), found)
    strata = points.unflatten(0, (5, 10))
    np.testing.assert_allclose(orbits.collapse_by_layer(net, strata)[0], orbits.collapse(strata))


def test_by_layer_takes_any_module_and_leaves_it():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(), nn.Linear(4, 2))
    points = orbits.rotations(torch.randn(5, 3), torch.eye(3)[0], 4)
    assert orbits.collapse_by_layer(net, points).shape == (3,)
    assert net.training
    assert all(p.grad is None for p in net.parameters())


def test_the_first_entry_is_of_the_inputs_whatever_the_first_layer_reads():
    net = nn.Sequential(nn.ReLU(), nn.Linear(3, 2)).double()
    points = orbits.rotations(torch.randn(6, 3, dtype=torch.float64), torch.eye(3)[0], 5)
    found = orbits.collapse_by_layer(net, points, chunk_size=10)
    assert found[0] == pytest.approx(orbits.collapse(points), rel=1e-12)
    assert found[0] != pytest.approx(orbits.collapse(points.relu()), rel=1e-3)
    assert found[1] == pytest.approx(orbits.collapse(net(points).detach()), rel=1e-9)


@pytest.mark.parametrize("value", [0.1, 7.1])
@pytest.mark.parametrize("points", [3, 5, 7])
def test_a_constant_representation_has_no_share(value, points):
    """Its mean is not the constant itself, after rounding."""
    assert np.isnan(orbits.collapse(torch.full((3, points, 2), value, dtype=torch.float64)))
    assert np.isnan(orbits.collapse(torch.full((3, points, 2), value)))


@pytest.mark.parametrize("length", [1e-320, 1e-200, 1e200, 1.7e308])
def test_an_axis_of_any_length(length):
    v = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    axis = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(orbits.rotations(v, length * axis, 6), orbits.rotations(v, axis, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: orbits.rotations(torch.ones(2, 1), torch.ones(1)), ValueError, r"v: got shape \(2, 1\)"),
        (lambda: orbits.rotations(torch.ones(2, 3), torch.zeros(3)), ValueError, "axis: .*not 0"),
        (lambda: orbits.rotations(torch.ones(2, 3), torch.ones(2)), ValueError, r"axis: .*expected \(3,\)"),
        (lambda: orbits.rotations(torch.ones(2, 3), "xyz"), TypeError, "axis: got 'xyz'"),
        (lambda: orbits.rotations(torch.ones(2, 3), np.array(["a"] * 3)), TypeError, "axis: got ndarray"),
        (lambda: orbits.rotations(torch.ones(2, 3), 1j * torch.ones(3)), TypeError, "axis: .*of real numbers"),
        (lambda: orbits.rotations(torch.ones(2, 3), torch.full((3,), torch.inf)), ValueError, "axis: .*finite"),
        (lambda: orbits.rotations(torch.ones(2, 3), torch.ones(3), 0), ValueError, "count: got 0"),
        (lambda: orbits.collapse(torch.ones(2, 3)), ValueError, "values: .*expected"),
        (lambda: orbits.collapse(torch.ones(1, 3, 2)), ValueError, "two orbits and two points"),
        (lambda: orbits.collapse(torch.ones(3, 1, 2)), ValueError, "two orbits and two points"),
        (lambda: orbits.collapse(torch.full((3, 2, 2), torch.nan)), ValueError, "values: got NaN"),
        (lambda: orbits.collapse([[1.0]]), TypeError, "values: "),
        (lambda: orbits.collapse_by_layer(nn.ReLU(), torch.ones(2, 2, 3)), ValueError, "found no linear"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
