import pytest
import torch

from bnrank.networks.mlp import from_layers
from bnrank.theory.cost import solve_depths
from helpers import norm, normal


def test_norms_grow_by_at_most_the_narrowest_dimension_per_layer():
    x = torch.linspace(0.1, 1, 5, dtype=torch.float64)[:, None]
    y = torch.cat([x, torch.relu(x - 0.5)], 1)
    found = solve_depths(x, y, [2, 4, 7], width=4, starts=2, steps=60, polish=10)
    assert all(solution.interpolates for solution in found)
    assert [solution.network.depth for solution in found] == [2, 4, 7]
    for (a, one), (b, two) in zip(((2, found[0]), (4, found[1])), ((4, found[1]), (7, found[2])), strict=True):
        assert b - 1e-6 <= two.norm <= one.norm + (b - a) + 1e-6  # the input has dimension 1 and is not negative
    back = solve_depths(x, y, [7, 2, 4], width=4, starts=2, steps=60, polish=10)
    assert [solution.norm for solution in back] == [found[2].norm, found[0].norm, found[1].norm]


def test_a_given_network_is_a_start():
    a = normal(2, 2).abs()
    x = normal(6, 2, seed=1).abs()
    given = from_layers([torch.eye(2, dtype=torch.float64), a])
    y = given(x).detach()
    (two, three) = solve_depths(x, y, [2, 3], width=1, starts=0, initial=given, polish=5)
    assert two.interpolates
    assert two.norm <= norm(given) + 1e-9
    assert three.norm <= two.norm + 2 + 1e-9
    assert two.network.bias
    (plain,) = solve_depths(x, y, [2], width=1, starts=0, initial=given, polish=5, bias=False)
    assert not plain.network.bias


def test_bad_input_is_named():
    x = normal(3, 1)
    with pytest.raises(ValueError, match="starts: got 0"):
        solve_depths(x, x, [2], 2, starts=0)
    with pytest.raises(TypeError, match="depths"):
        solve_depths(x, x, 3, 2)
    with pytest.raises(ValueError, match="depth: got 2"):
        solve_depths(x, x, [2], 2, starts=0, initial=from_layers([torch.eye(1).double()] * 3))
