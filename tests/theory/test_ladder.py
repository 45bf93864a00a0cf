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


def test_slopes_other_than_0_and_1_take_two_neurons_per_dimension():
    x, slope, k = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None], 0.3, 1
    one = torch.ones(1, 1, dtype=torch.float64)
    given = from_layers([one, one], slope=slope)
    y, depths = given(x).detach(), [3, 4, 7, 12]
    options = {"width": 2, "slope": slope, "bias": False, "starts": 0, "polish": 0, "initial": given}
    growths = []
    for depth in depths:
        two, deep = solve_depths(x, y, [2, depth], **options)
        assert two.interpolates
        assert deep.interpolates
        growths.append(deep.norm - two.norm)
    once = 2 * k * ((1 + slope**2) / (1 - slope**2) ** 2 - 1) + 1
    assert all(growth <= 2 * k * (depth - 2) + once + 1e-6 for depth, growth in zip(depths, growths, strict=True))
    assert all(growth > k * (depth - 2) + 0.9 for depth, growth in zip(depths, growths, strict=True))
    assert growths[1] > 2 * k * 2 + 0.1  # splitting and joining are not free


def test_given_networks_enter_at_their_depth():
    x, one = torch.linspace(0.1, 1, 5, dtype=torch.float64)[:, None], torch.ones(1, 1, dtype=torch.float64)
    detour = from_layers([one, one], [one[0], -one[0]])  # x + 1 - 1
    plain = from_layers([one] * 4)
    options = {"width": 1, "starts": 0, "polish": 0}
    alone = [solution.norm for solution in solve_depths(x, x, [2, 4, 6], **options, initial=detour)]
    assert all(norm > depth + 1 for norm, depth in zip(alone, [2, 4, 6], strict=True))
    for initial in ([plain, detour], (detour, plain)):
        found = [solution.norm for solution in solve_depths(x, x, [2, 4, 6], **options, initial=initial)]
        assert found == pytest.approx([alone[0], 4, 6])
    with pytest.raises(ValueError, match="initial: got depth 4, expected a depth of at most 3"):
        solve_depths(x, x, [2, 3], 1, starts=0, initial=[detour, plain])
    with pytest.raises(ValueError, match="initial: got depth 4, expected depth 2 or less, or starts"):
        solve_depths(x, x, [2, 5], 1, starts=0, initial=plain)
    with pytest.raises(ValueError, match=r"initial: got a network with slope 0, expected slope 0\.3"):
        solve_depths(x, x, [4], 1, slope=0.3, initial=plain)
    with pytest.raises(ValueError, match="initial: got a network with biases, expected none with bias=False"):
        solve_depths(x, x, [4], 1, bias=False, initial=detour)


def test_bad_input_is_named():
    x = normal(3, 1)
    with pytest.raises(ValueError, match="starts: got 0"):
        solve_depths(x, x, [2], 2, starts=0)
    with pytest.raises(TypeError, match="depths"):
        solve_depths(x, x, 3, 2)
    with pytest.raises(ValueError, match="initial: got depth 3"):
        solve_depths(x, x, [2], 2, starts=0, initial=from_layers([torch.eye(1).double()] * 3))
    with pytest.raises(TypeError, match="initial"):
        solve_depths(x, x, [2], 2, initial=3)
