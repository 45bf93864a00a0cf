"""Errata of the representation cost: the printed form fails, the corrected one holds (E27, E28)."""

import math

import numpy as np
import pytest
import torch

from bnrank.networks.mlp import from_layers
from bnrank.theory.constructions import add
from bnrank.theory.cost import expand, linear_tradeoff, solve
from helpers import norm


def test_e27_a_sum_of_constants_costs_more_than_its_terms():
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for depth in (2, 4):
        one, two = (solve(x, torch.full_like(x, c), depth, 3, starts=6, steps=120, polish=40).norm for c in (1.0, 2.0))
        assert one == pytest.approx(1.0, rel=1e-5)
        assert two == pytest.approx(3.0, rel=1e-5)
    assert pytest.approx(3.0) == expand([2, 3, 4], [3.0, 3.0, 3.0]).R1  # R0 = 0, R1 = 3 > 1 + 1
    # no network of any depth has less: at x = 0, |f| <= t + w u costs t^2 + w^2 + the cost of u with one layer less
    grid = np.linspace(0, 2, 401)
    least = grid**2
    for _ in range(8):
        scaled = np.array([0.0, *(np.min((s / grid[1:]) ** 2 + least[1:]) for s in grid[1:])])
        least = np.array([np.min((v - grid[: i + 1]) ** 2 + scaled[: i + 1]) for i, v in enumerate(grid)])
    assert least[-1] == pytest.approx(3.0, abs=1e-6)
    assert least[200] == pytest.approx(1.0, abs=1e-6)
    f = from_layers([torch.zeros(1, 1)], [torch.ones(1)])
    assert norm(add(f, f)) == 4.0  # 1 + 1 + 2 b_f b_g


def test_e27_a_composition_through_negative_values_costs_more_at_finite_depth():
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    one, two = (solve(x, x, depth, 3, starts=4, steps=80, polish=30).norm for depth in (1, 2))
    assert one == pytest.approx(1.0)
    assert two == pytest.approx(2 * math.sqrt(2), rel=1e-5)  # not 1 + 1
    # no two layers have less: every neuron of unit norm has r(1) - r(-1) <= sqrt 2, so sum_j 2 |v_j| >= 2 sqrt 2
    angles = torch.linspace(0, 2 * math.pi, 10001, dtype=torch.float64)
    w, b = angles.cos(), angles.sin()
    assert float((torch.relu(w + b) - torch.relu(b - w)).max()) == pytest.approx(math.sqrt(2))


def test_e28_a_regularity_that_falls_without_bound_has_no_global_minimum():
    x = 2**0.5 * torch.eye(2, dtype=torch.float64)  # X^T X / N = I
    target, ridge = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)), 0.02
    losses = []
    for s in (1e-2, 1e-20, 1e-200):  # maps of rank 2
        a = torch.diag(torch.tensor([2.0, s], dtype=torch.float64))
        losses.append(float(((a - target) ** 2).sum()) + 2 * ridge * math.log(2 * s))
    assert losses[0] > losses[1] > losses[2]
    found = linear_tradeoff(x, x @ target, ridge)
    local = found.costs[2] + ridge * found.corrections[2]
    assert losses[2] < local - 10
    values = torch.linalg.svdvals(found.maps[2])
    for i, s in enumerate(values.tolist()):  # a local minimum: (s - m)^2 + 2 lambda log s
        m = float(target[i, i])
        near = [(v - m) ** 2 + 2 * ridge * math.log(v) for v in (s * 0.99, s, s * 1.01)]
        assert near[1] == min(near)
