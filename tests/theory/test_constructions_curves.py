"""Claim 2 of LeJegelka2022: convergence in direction without stable activations, computed."""

import math

import numpy as np
import pytest
import torch

from bnrank.theory.constructions import wavering
from bnrank.theory.invariants import find

X = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
TIMES = np.array([(k + 0.5) * math.pi for k in range(200)])  # in the middle of the times on and off


def test_the_direction_converges_and_an_activation_does_not():
    path = [wavering(t) for t in TIMES]
    limit = torch.tensor([1.0, 1.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64) / 3
    rows = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in path]
    distances = np.array([float((row / row.norm() - limit).norm()) for row in rows])
    assert (np.diff(distances) < 0).all()
    assert distances * TIMES == pytest.approx(
        math.sqrt(8 / 81), rel=0.2
    )  # |(I - limit limit^T) e_1| / 3 = (8 / 81)^(1/2)
    assert all(torch.equal(row.sign(), limit.sign()) for row in rows)
    [pair] = find(path[0], X).having("pair")
    active = [bool(pair.slopes(net, X)[0, 0] > 0) for net in path]
    assert active == [k % 2 == 0 for k in range(200)]
    assert all(bool(pair.slopes(net, X)[0, 1] > 0) for net in path)


def test_the_pair_is_conserved_only_while_it_is_on():
    """Half of the time, the rate of in - out is that of T47, and not 0."""
    y = torch.zeros(1, 1, dtype=torch.float64)
    for k in (0, 1, 50, 51):
        net = wavering(TIMES[k])
        [pair] = find(net, X).having("pair")
        rate, size = pair.rate(net, X, y), float(pair.scale(dict(net.named_parameters())).max())
        on = k % 2 == 0
        assert bool(pair.pairs(net, X)[0, 1]) is on
        assert bool(abs(float(rate[0, 1])) < 1e-12 * size * TIMES[k] ** 2) is on


def test_time_is_positive_and_small_enough_for_its_sine():
    with pytest.raises(ValueError, match="t: got 0"):
        wavering(0)
    with pytest.raises(ValueError, match=r"t: got 1e\+13, expected at most 1e12"):
        wavering(1e13)
