"""What a certificate says, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Bound, Timing, certificate
from helpers import normal

QUICK = {"timing": Timing(repeats=1, batch_size=8)}


def diagonal(*entries):
    layer = nn.Linear(len(entries), len(entries)).double()
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor(entries)))
    return layer


@pytest.fixture(scope="module")
def bent():
    """Linear near 0, where x is: what is left out is missing far away only."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    with torch.no_grad():
        net[0].weight.copy_(normal(6, 4))
        net[2].weight.copy_(normal(4, 6, seed=1))
        net[0].bias.zero_()
    return net


def test_a_tolerance_that_is_not_met_on_held_out_samples_is_not_met(bent):
    found = compress(bent, normal(60, 4) / 100, tol=0.01, held_out=10 * normal(30, 4, seed=2), **QUICK).certificate
    assert found.on_x.centered <= 0.01 < found.held_out.centered
    assert not found.met
    assert "spread: NOT met" in str(found)


@pytest.mark.parametrize(
    ("on_x", "held_out", "met"), [(0.1, 0.1, True), (0.1, 0.11, False), (0.11, 0.1, False), (0.0, float("inf"), False)]
)
def test_both_changes_must_be_within_the_tolerance(bent, on_x, held_out, met):
    found = compress(bent, normal(60, 4) / 100, tol=0.1, **QUICK).certificate
    changes = {"on_x": replace(found.on_x, centered=on_x), "held_out": replace(found.held_out, centered=held_out)}
    for outputs in ([changes, {}], [{}, changes]):
        assert replace(found, outputs=[replace(found.outputs[0], **each) for each in outputs]).met == met


def test_the_bound_is_relative_to_the_root_mean_square_of_the_outputs():
    """Outputs of norm 6 at all samples: 2 times samples of norm 3."""
    x = 3 * torch.nn.functional.normalize(normal(50, 3))
    net = diagonal(2.0, -2.0, 2.0)
    with torch.no_grad():
        net.bias.zero_()
    bound = compress(net, x, tol=1e-6, **QUICK).certificate.bound
    assert bound.size == pytest.approx(6.0)
    assert (bound.lipschitz_before, bound.lipschitz_after) == pytest.approx((2.0, 2.0))
    assert bound.within(0.0) == pytest.approx(0.0, abs=1e-12)
    assert bound.within(3.0) == pytest.approx(2.0)
    assert bound.per_distance == pytest.approx(2 / 3)


def test_the_bound_starts_from_the_largest_change_at_a_sample():
    """Norms 5, 0, 0, 0: root mean square 2.5. Changes of norm 0, 1, 0, 0."""
    before, after = torch.zeros(4, 2).double(), torch.zeros(4, 2).double()
    before[0] = after[0] = torch.tensor([3.0, 4.0])
    after[1, 1] = 1.0
    parts = (diagonal(0.5, 1.0),), (diagonal(1.5, 0.5),)
    bound = certificate._bound(parts, torch.zeros(1, 2).double(), (before, after))
    assert bound == Bound(1.0, 1.5, 1.0, 2.5)
    assert (bound.within(0.0), bound.within(2.0), bound.per_distance) == (0.4, 2.4, 1.0)


@pytest.mark.parametrize(("least", "rank"), [(1e-3, 3), (1e-5, 3), (1e-7, 2), (0.0, 2)])
def test_singular_values_of_a_jacobian_count_from_a_millionth_of_the_largest(least, rank):
    found = compress(nn.Sequential(diagonal(5.0, 1.0, 5 * least)), normal(40, 3), tol=1e-9, **QUICK).certificate
    assert found.jacobian_rank_before == rank


def test_a_network_that_gives_zero_on_the_samples_has_a_bound_in_absolute_numbers():
    """All neurons are dead on the samples, but not everywhere: the outputs are 0 as far as is known."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(0.25 * torch.eye(4, 3))
        net[0].bias.fill_(-100.0)
        net[2].weight.copy_(2 * torch.eye(2, 4))
    certificate = compress(net, normal(30, 3), tol=0.01, **QUICK).certificate
    bound = certificate.bound
    assert (bound.size, bound.at_samples, bound.within(0.0)) == (0.0, 0.0, 0.0)
    assert bound.within(1.0) == bound.per_distance == float("inf")
    assert bound.lipschitz_before == pytest.approx(0.5)
    assert "0 + 0.5 r, absolute, as the outputs are 0 on the samples" in str(replace(bound, lipschitz_after=0.0))
    assert "absolute" in str(certificate)
    assert "nan" not in str(certificate)


def test_a_network_that_is_zero_everywhere_has_a_bound_of_zero():
    bound = Bound(0.0, 0.0, 0.0, 0.0)
    assert (bound.within(0.0), bound.within(9.0), bound.per_distance) == (0.0, 0.0, 0.0)
    assert "0 + 0 r, absolute" in str(bound)


@pytest.mark.parametrize(("away", "rounding", "centered"), [(1e-13, 0.0, 0.0), (1e-8, 4e-6, 0.0), (1e-5, 4e-6, None)])
def test_from_a_constant_only_round_off_is_no_change(away, rounding, centered):
    before = 3.0 + 1e-15 * normal(20, 2)
    found = certificate.change(before, before * (1 + away), rounding)
    assert found.centered == (float("inf") if centered is None else centered)
    assert found.relative == pytest.approx(away, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1e-15, 3e-13])
def test_outputs_that_vary_by_rounding_only_are_those_of_a_constant(spread, dtype):
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype), normal(60, 4).to(dtype)
    with torch.no_grad():
        net[0].weight.copy_(normal(8, 4))
        net[2].weight.copy_(spread * normal(3, 8, seed=1))
        net[2].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    found = compress(net, x, tol=0.01, **QUICK)
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before / 2
    assert "inf" not in str(found)
    assert "NOT met" not in str(found)
