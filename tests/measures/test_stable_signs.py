"""Signs that change along planted paths, and T43: a direction that converges to one without zeros has stable signs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank.measures import stable_signs as signs

TIMES = [0.0, 1.0, 10.0, 100.0]


def path(*columns):
    """Return named tensors per time, one entry of "w" per column."""
    return [{"w": torch.tensor(row, dtype=torch.float64)} for row in zip(*columns, strict=True)]


def by_entry(networks, times, t):
    """Oracle: count the entries that take another sign at t or later, one by one."""
    moved = 0
    count = networks[0]["w"].numel()
    for entry in range(count):
        previous, any_change = None, False
        for network, when in zip(networks, times, strict=True):
            now = math.copysign(1, network["w"][entry]) if network["w"][entry] != 0 else 0
            any_change |= previous is not None and now != previous and when >= t
            previous = now
        moved += any_change
    return moved / count


def test_signs_that_differ_are_counted_per_parameter():
    before, after = nn.Linear(2, 3), nn.Linear(2, 3)
    with torch.no_grad():
        before.weight.fill_(1.0), after.weight.fill_(2.0), before.bias.fill_(1.0), after.bias.fill_(1.0)
        after.weight[0] = -1.0
        after.bias[2] = 0.0
    assert signs.changed(before, after) == pytest.approx({"weight": 1 / 3, "bias": 1 / 3})
    assert signs.changed(before, before) == {"weight": 0.0, "bias": 0.0}
    assert signs.changed({"w": torch.tensor([0.0, -0.0])}, {"w": torch.tensor([-0.0, 0.0])}) == {"w": 0.0}
    assert signs.changed({"w": torch.zeros(0), "v": torch.ones(1)}, {"v": -torch.ones(1), "w": torch.zeros(0)}) == {
        "w": 0.0,
        "v": 1.0,
    }


def test_networks_are_left_as_they_are():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    held = [p.detach().clone() for p in net.parameters()]
    signs.changed(net, net), signs.stable_since([net, net], [0, 1]), signs.directional_convergence([net, net], [0, 1])
    assert net.training
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(held, net.parameters(), strict=True))


def test_times_from_which_signs_are_stable():
    constant, once, back = [1.0, 2.0, 3.0, 4.0], [-1.0, -1.0, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0]
    assert signs.stable_since(path(constant), TIMES) == {"w": 0.0}
    assert signs.stable_since(path(constant, once), TIMES) == {"w": 10.0}
    assert signs.stable_since(path(back), TIMES) == {"w": 10.0}
    assert signs.stable_since(path([1.0, 1.0, 1.0, -1.0]), TIMES) == {"w": 100.0}


@pytest.mark.parametrize("size", [1e-320, 1e-170, 1e200])
def test_signs_do_not_depend_on_the_size_of_the_weights(size):
    networks = path([size, -size, -size], [-size, -size, size])
    assert signs.changed_since(networks, [0, 1, 2], 1.5) == {"w": 0.5}
    assert signs.stable_since(networks, [0, 1, 2]) == {"w": 2.0}


def test_the_last_times_may_be_infinite():
    networks = path([1, -1, -2, -3])
    assert signs.stable_since(networks, [-math.inf, 1, math.inf, math.inf]) == {"w": 1.0}


def test_fractions_changed_since():
    networks = path([1.0, 2.0, 3.0, 4.0], [-1.0, -1.0, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0])
    found = [signs.changed_since(networks, TIMES, t)["w"] for t in (-5.0, 0.0, 0.5, 1.0, 1.1, 10.0, 10.5, 100.0)]
    assert found == [0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.25, 0.25]
    assert signs.changed_since(networks[:1], TIMES[:1], 0.0) == {"w": 0.0}


entries = st.lists(
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), min_size=5, max_size=5), min_size=1, max_size=6
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(columns=entries, t=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.5, 4.0]))
def test_fractions_are_those_of_a_count_entry_by_entry(columns, t):
    networks, times = path(*columns), [0.0, 1.0, 2.0, 3.0, 4.0]
    assert signs.changed_since(networks, times, t)["w"] == pytest.approx(by_entry(networks, times, t))
    since = signs.stable_since(networks, times)["w"]
    assert by_entry(networks, times, np.nextafter(since, np.inf)) == 0
    assert since == 0 or by_entry(networks, times, since) > 0
    if since > 0:
        assert signs.changed_since(networks, times, since)["w"] > 0


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    speed=st.floats(0.2, 1.5),
    size=st.floats(1e-3, 3.0),
    growth=st.floats(-2.0, 5.0),
)
def test_a_direction_that_converges_to_one_without_zeros_has_stable_signs(seed, count, speed, size, growth):
    """T43: from ``since`` on no sign changes, whatever the norm does."""
    g = np.random.default_rng(seed)
    limit = g.choice([-1, 1], count) * g.uniform(0.05, 1, count)
    times = np.arange(8.0)
    rows = [
        np.exp(growth * t) * (limit + size * np.exp(-speed * t) * g.normal(size=count)) if t < 7 else limit
        for t in times
    ]
    networks = [{"w": torch.from_numpy(row)} for row in rows]
    found = signs.directional_convergence(networks, times)
    units = [row / np.linalg.norm(row) for row in rows]
    np.testing.assert_allclose(found.distances, [np.linalg.norm(u - units[-1]) for u in units], atol=1e-15)
    assert found.smallest == pytest.approx(np.abs(units[-1]).min())
    inside = found.distances < found.smallest
    assert inside[-1]
    first = int(np.flatnonzero(~inside)[-1]) + 1 if not inside.all() else 0
    assert found.since == times[first]
    assert found.reached == (first < 7)
    assert signs.stable_since(networks, times)["w"] <= found.since
    assert signs.changed_since(networks, times, np.nextafter(found.since, 9))["w"] == 0 if found.since < 7 else True


def test_the_ball_of_a_planted_path():
    networks = path([3.0, 3.0, 30.0], [-4.0, 3.9, 40.0])
    found = signs.directional_convergence(networks, [0, 1, 2])
    assert found.smallest_of == {"w": pytest.approx(0.6)}
    assert found.distances[0] == pytest.approx(1.6)
    assert found.margins[0] == pytest.approx(0.375)
    assert found.margins[-1] == np.inf
    assert (found.since, found.reached) == (1.0, True)


def test_a_limit_with_a_zero_entry_says_nothing():
    """The direction converges, and the second entry changes its sign all along."""
    networks = path([1.0] * 4, [0.1, -0.01, 0.001, 0.0])
    found = signs.directional_convergence(networks, TIMES)
    assert found.smallest == 0
    assert found.since == math.inf
    assert not found.reached
    assert found.margins.tolist() == [0, 0, 0, 0]
    assert signs.stable_since(networks, TIMES) == {"w": 100.0}


def test_a_path_that_does_not_converge_is_in_the_ball_with_its_last_network_only():
    found = signs.directional_convergence(path([1.0, 0.1, 1.0], [0.1, 1.0, -0.1]), [0, 1, 2])
    assert (found.since, found.reached) == (2.0, False)


def test_bad_input():
    one, two = {"w": torch.ones(2)}, {"w": torch.ones(3)}
    for call in (lambda: signs.changed(one, two), lambda: signs.stable_since([one, two], [0, 1])):
        with pytest.raises(ValueError, match=r"differ from those of .*\(3,\)"):
            call()
    with pytest.raises(ValueError, match="after: its parameters differ from those of before"):
        signs.changed(one, {"v": torch.ones(2)})
    with pytest.raises(TypeError, match=r"before: got 3 \(int\), expected a torch.nn.Module or named tensors"):
        signs.changed(3, one)
    with pytest.raises(TypeError, match="after: got"):
        signs.changed(one, {"w": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"networks\[1\]: got NaN or infinite entries in w"):
        signs.stable_since([one, {"w": torch.tensor([1.0, math.nan])}], [0, 1])
    with pytest.raises(ValueError, match="networks: got none"):
        signs.stable_since([], [])
    with pytest.raises(ValueError, match="before: got no parameters"):
        signs.changed(nn.ReLU(), nn.ReLU())
    with pytest.raises(ValueError, match=r"times: got .*, expected one per network, \(2,\)"):
        signs.stable_since([one, one], [0, 1, 2])
    with pytest.raises(ValueError, match="times: got NaN or a decrease"):
        signs.changed_since([one, one], [1, 0], 0)
    with pytest.raises(ValueError, match="t: got 2, expected at most the last time, 1"):
        signs.changed_since([one, one], [0, 1], 2)
    with pytest.raises(ValueError, match=r"networks\[1\]: all its parameters are zero"):
        signs.directional_convergence([one, {"w": torch.zeros(2)}], [0, 1])
