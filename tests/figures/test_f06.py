"""F6: its claims on planted networks, what it reads from planted representations, and a tiny run."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from bnrank.figures.f06_falling_ball import computation as computing
from bnrank.figures.f06_falling_ball import figure as f06
from bnrank.figures.f06_falling_ball import readouts as reading
from bnrank.figures.f06_falling_ball.computation import Ball, Setup
from bnrank.figures.f06_falling_ball.readouts import Read, Readout
from bnrank.networks.reading import capture
from bnrank.tasks import falling_ball

DEPTH = 6
INSIDE = (3, 4, 5)


def spectra(values=None, bent=None):
    """Layers 3 to 5 keep 0 once and each of two axes twice; ``values`` go by layer, frequency and channel."""
    names, lengths = ["(0, 0)", "(1, 0)", "(0, 1)", "(1, 1)"], [0.0, 1.0, 1.0, math.sqrt(2)]
    planted = np.full((DEPTH, 4, 3), 0.3)
    planted[[layer - 1 for layer in INSIDE]] = [[1, 0.02, 0], [1.2, 0.9, 0], [1.1, 0.8, 0.01], [0.04, 0.01, np.nan]]
    for (layer, name, channel), value in (values or {}).items():
        rows = [i - 1 for i in INSIDE] if layer is None else [layer - 1]
        planted[rows, names.index(name), channel - 1] = value
    ratios = np.array([0.5, 0.4, 0.01, 0.02, 0.3, np.nan])
    for layer, value in (bent or {}).items():
        ratios[layer - 1] = value
    coords = {"layer": range(1, DEPTH + 1)}
    along = {"frequency": names, "modulus": ("frequency", lengths), "multiplicity": ("frequency", [1, 2, 2, 2])}
    dims = ("layer", "frequency", "channel")
    found = xr.DataArray(planted, dims=dims, coords={**coords, **along, "channel": [1, 2, 3]})
    nonlinearity = xr.DataArray(ratios, dims="layer", coords=coords)
    return xr.Dataset({"frequency_singular_values": found, "nonlinearity": nonlinearity}, attrs={"threshold": 0.1})


def readouts(position, velocity, layer=None, changed=None, other=1.0, axis=1):
    """The given R^2 in every layer along one axis, ``other`` along the other one."""

    def both(r2):
        pair = (Read(None, None, other), Read(None, None, r2))
        return pair if axis == 1 else pair[::-1]

    planted = [changed if i == layer else (position, velocity) for i in range(1, DEPTH + 1)]
    return [Readout(np.ones(4), 0, 0, both(p), both(v)) for p, v in planted]


def controls(*values, **options):
    return readouts(*values, other=-1.0, **options)


def ball(**changes):
    profile = spectra(**changes.pop("profile", {}))
    planted = {
        "title": "planted",
        "pairs": 2,
        "seed": 0,
        "loss": 0.5,
        "task": None,
        "network": None,
        "history": None,
        "explained": 0.99,
        "readouts": readouts(0.99, 0.98),
        "controls": controls(0.1, 0.0),
        "only": 0.98,
        "without": 0.0,
    }
    return Ball(profile=profile, **{**planted, **changes})


X, Y, XY = "(1, 0)", "(0, 1)", "(1, 1)"
ABOUT_IT = [2, 3, 4, 5, 6, 7, 8]  # claims that fail without layers that keep two pairs


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, []),
        ({"profile": {"values": {(None, "(0, 0)", 1): 0.0}}}, []),
        ({"profile": {"values": {(None, "(0, 0)", 1): 5.0}}}, [1]),
        ({"explained": 0.94}, [0, 3]),
        ({"explained": math.nan}, [0, 3]),
        ({"profile": {"values": {(5, X, 1): 2.1}}}, []),  # two layers are left
        ({"profile": {"values": {(5, X, 1): 2.1, (4, X, 1): 2.1}}}, [1, 2]),
        ({"profile": {"values": {(5, Y, 2): 0.0, (4, Y, 2): 0.0}}}, [2]),
        ({"profile": {"values": {(None, X, 2): 0.4}}}, [1, *ABOUT_IT]),
        ({"profile": {"values": {(None, XY, 1): 0.11}}}, [1, *ABOUT_IT]),
        ({"profile": {"values": {(None, XY, 1): 1.0}}}, [1, *ABOUT_IT]),
        ({"profile": {"values": {(None, Y, 3): 0.9}}}, ABOUT_IT),
        ({"profile": {"values": {(None, XY, 1): 0.05}}}, [3, 5]),
        ({"profile": {"values": {(None, X, 3): 0.05}}}, [3, 5]),
        ({"profile": {"values": {(3, XY, 1): 0.05}}}, []),  # the widest gap is in layer 4
        ({"profile": {"values": {(3, XY, 1): 0.05, (4, XY, 1): 0.05}}}, [3, 5]),  # layer 5 is not nearly linear
        ({"profile": {"bent": {3: 0.06, 4: 0.06}}}, ABOUT_IT[1:]),  # no layer is nearly linear
        ({"profile": {"bent": {3: math.nan, 4: math.nan}}}, ABOUT_IT[1:]),
        ({"profile": {"bent": {3: 0.9}}}, []),
        ({"readouts": readouts(0.94, 0.98)}, [3, 6]),
        ({"readouts": readouts(0.99, 0.94)}, [3, 7]),
        ({"readouts": readouts(0.94, 0.98, axis=0)}, [3, 6]),
        ({"readouts": readouts(math.nan, 0.98)}, [3, 6]),
        ({"readouts": readouts(0.99, math.nan)}, [3, 7]),
        ({"controls": controls(math.nan, 0.0)}, [3, 8]),
        ({"controls": controls(0.1, math.nan)}, [3, 8]),
        ({"readouts": readouts(0.99, 0.94, axis=0)}, [3, 7]),
        ({"readouts": readouts(0.99, 0.98, 4, (0.5, 0.5))}, []),
        ({"readouts": readouts(0.94, 0.94, 4, (0.99, 0.98))}, [3, 6, 7]),  # the gap decides, not the readout
        ({"readouts": readouts(0.94, 0.94, 4, (0.99, 0.98)), "profile": {"values": {(4, XY, 1): 0.03}}}, []),
        ({"controls": controls(0.1, 0.0, layer=3, changed=(0.6, 0.0))}, [3, 8]),
        ({"controls": controls(0.1, 0.0, layer=3, changed=(0.0, 0.6))}, [3, 8]),
        ({"controls": controls(0.1, 0.0, layer=3, changed=(0.6, 0.0), axis=0)}, [3, 8]),  # one axis is enough
        ({"controls": controls(0.1, 0.0, layer=3, changed=(0.0, 0.6), axis=0)}, [3, 8]),
        ({"controls": controls(0.1, 0.0, layer=4, changed=(0.9, 0.9))}, []),
        ({"only": 0.9}, [9]),
        ({"without": 0.6}, [10]),
        ({"only": math.nan, "without": math.nan}, [9, 10]),
        ({"pairs": 1}, [*ABOUT_IT, 11]),  # two pairs are not one
        ({"pairs": 1, "profile": {"values": {(None, X, 2): 0.05, (None, Y, 2): 0.05}}}, []),
        (
            {"pairs": 1, "profile": {"values": {(None, X, 2): 0.05, (None, Y, 2): 0.05, (3, "(0, 0)", 2): 0.11}}},
            [11],
        ),
    ],
)
def test_claims(changes, fails):
    result = f06.claims([ball(**changes)])
    assert [i for i, claim in enumerate(result) if not claim.passed] == fails


FAILURES = [
    {"explained": 0.94},
    {"readouts": readouts(0.94, 0.98)},
    {"readouts": readouts(0.99, 0.94)},
    {"controls": controls(0.1, 0.6)},
    {"profile": {"values": {(None, XY, 1): 0.05}}},
    {"profile": {"bent": {3: 0.06, 4: 0.06}}},
    {"profile": {"values": {(None, Y, 3): 0.9}}},
    {"profile": {"values": {(None, X, 2): 0.4}}},
]


@pytest.mark.parametrize("failure", FAILURES)
def test_four_of_five_networks_show_the_picture(failure):
    for wrong in (1, 2):
        balls = [ball(seed=i, **(failure if i < wrong else {})) for i in reversed(range(5))]
        share = f06.claims(balls)[3]
        assert share.passed == (wrong <= 1)
        assert share.measured.startswith(f"{5 - wrong} of 5")


LAYERS = {(2, X, 1): 1, (2, X, 2): 1, (2, X, 3): 0, (2, Y, 1): 1, (2, Y, 2): 1, (2, Y, 3): 0}
LAYERS |= {(2, XY, i): 0.0 for i in (1, 2, 3)}


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, [3, 4, 5]),
        (LAYERS, [2, 3, 4, 5]),
        ({(3, X, 2): 0.49}, [4, 5]),
        ({(4, Y, 1): 2.01}, [3]),
        ({(5, X, 3): 0.11}, [3, 4]),
        ({(5, XY, 2): 0.11}, [3, 4]),
        ({(5, X, 3): np.nan, (5, "(0, 0)", 1): 9.0}, [3, 4, 5]),
        ({(None, Y, 2): 0.09}, []),
    ],
)
def test_layers_with_two_pairs(values, layers):
    found = computing.bottleneck(spectra(values).frequency_singular_values, 2)
    assert computing.inside(found) == layers
    if layers:
        assert {each.frequency: each.channels for each in found.frequencies} == {"(0, 0)": 1, X: 2, Y: 2}
    else:
        assert "no layer" in found.reason


class Planted(nn.Module):
    """Two channels that hold given waves of frequency 1, from the two input frames; a middle layer does nothing."""

    def __init__(self, second):
        super().__init__()
        self.conv1 = nn.Conv1d(2, 2, 1, bias=False)
        self.activation1 = nn.Identity()
        self.conv2 = nn.Conv1d(2, 2, 1, bias=False)
        self.flatten = nn.Flatten()
        self.conv1.weight.data[:] = torch.tensor([[1.0, 0.0], second])[:, :, None]
        self.double()

    def forward(self, x):
        return self.flatten(self.conv2(self.activation1(self.conv1(x))))


class Unchanged(nn.Module):
    """A network whose one layer is its input."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Identity()


def test_what_is_read_from_planted_layers():
    task = falling_ball(4, 10, 1, speed=2.0, seed=5, n_test=600)
    both, _ = reading.read_out(Planted([0.0, 1.0]), task, 1)
    assert both.time in (-1, 0)
    assert both.linear[:2].min() > 0.99
    assert both.linear[3] < 0.9
    assert min(both.known) > 0.97
    z = task.truth.latents_test[300:]
    step = 2 * math.pi / 10 * z[:, 2].numpy()
    shift = step - both.velocity[0].true
    np.testing.assert_allclose(shift, shift[0])
    assert np.ptp(both.velocity[0].true) == pytest.approx(2 * math.pi / 10 * 4, rel=0.02)
    one, _ = reading.read_out(Planted([0.0, 0.0]), task, 1)
    assert one.known[1] < 0.1  # one position says nothing of the velocity
    assert one.linear[0] > 0.99
    assert one.time == -1
    assert one.known[0] > 0.97
    twice, _ = reading.read_out(Planted([0.0, 1.0]), task, 2)
    assert min(twice.known) > 0.9


@pytest.mark.parametrize("frame", [0, 1, 2, 3])
def test_a_position_is_read_at_its_own_time(frame):
    """One wave of a fast ball: the position at this time is known, at all others and the velocity unknown."""
    task = falling_ball(4, 10, 1, speed=5.0, width=1.0, seed=5, n_test=600)
    pixels = 2 * math.pi / 10 * torch.arange(10, dtype=torch.float64)
    wave = torch.cos(pixels - reading.angles(task)[frame])
    (found,) = reading.read_out(Unchanged(), dataclasses.replace(task, x=wave[:4, None], x_test=wave[:, None]), 1)
    assert found.time == frame - 1
    assert found.known[0] > 0.95
    assert found.known[1] < 0.1


def test_position_and_velocity_have_times_of_their_own():
    task = falling_ball(4, 10, 1, speed=5.0, width=1.0, seed=5, n_test=600)
    pixels = 2 * math.pi / 10 * torch.arange(10, dtype=torch.float64)
    waves = torch.stack([torch.cos(pixels - place) for place in reading.angles(task)], 1)
    weak = torch.tensor([0.1, 0.1, 0.0, 1.0], dtype=torch.float64)[:, None]  # q_2 is clear, q_-1 and q_0 are not lost
    planted = weak * waves
    (found,) = reading.read_out(Unchanged(), dataclasses.replace(task, x=planted[:4], x_test=planted), 1)
    assert (found.time, found.start) == (2, -1)
    true = reading.angles(task)[1] - reading.angles(task)[0]
    shift = np.exp(1j * (true[300:, 0].numpy() - found.velocity[0].true))
    np.testing.assert_allclose(shift, shift[0])


@pytest.mark.parametrize("velocity", ["phases", "amplitude", "means"])
def test_noise_says_nothing_on_held_out_samples(velocity):
    """With 200 channels of noise, maps fitted on 300 samples would explain most of these, and nothing of the others."""
    task = falling_ball(4, 10, 1, speed=2.0, seed=5, n_test=600)
    noise = torch.randn(600, 200, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,) = reading.read_out(Unchanged(), dataclasses.replace(task, x=noise[:4], x_test=noise), 1, velocity)
    assert max(found.known) < 0.2
    assert found.linear.max() < 0.1
    assert found.most == max(found.known)


def test_what_is_too_weak_does_not_count():
    task = falling_ball(4, 10, 1, speed=5.0, seed=5, n_test=600)
    weak, _ = reading.read_out(Planted([0.0, 1e-3]), task, 1)
    assert weak.linear[0] > 0.99
    assert weak.linear[1] < 0.1
    assert weak.known[1] < 0.5


def test_frequencies_are_taken_away_where_they_should():
    task = falling_ball(4, 6, 2, seed=1, n_test=5)
    net = computing.CircularConvolutional((2, 6, 6), [3, 3, 2], kernel=6, seed=0, dtype=torch.float64)
    x = task.x_test.double()
    everything = [w for w in np.ndindex(6, 6)]
    torch.testing.assert_close(computing.kept_only(net, x, everything, [1, 2]), net(x).detach())
    torch.testing.assert_close(computing.kept_only(net, x, [], []), net(x).detach())
    (flow,) = capture(net, x)
    hidden = flow.preactivations[1]
    u = torch.arange(6, dtype=torch.float64)
    wave = torch.exp(2j * math.pi * (u[:, None] + 2 * u) / 6)  # w = (1, 2) along rows and columns
    coefficient = (hidden * wave.conj()).sum((2, 3)) / 36
    part = 2 * (coefficient[..., None, None] * wave).real
    mean = hidden.mean((2, 3), keepdim=True).expand_as(hidden)
    expected = net.conv3((part + mean).relu()).flatten(1).detach()
    torch.testing.assert_close(computing.kept_only(net, x, [(0, 0), (1, 2)], [2]), expected)


def test_where_the_velocity_is():
    task = falling_ball(4, 10, 1, speed=2.0, width=1.0, seed=5, n_test=600)
    pixels = 2 * math.pi / 10 * torch.arange(10, dtype=torch.float64)
    wave = torch.cos(pixels - reading.angles(task)[2])
    velocity = task.truth.latents_test[:, 2:3]
    one = torch.ones_like(wave)

    def read(first, second):
        planted = dataclasses.replace(task, x_test=torch.stack([first, second], 1))
        ways = ("phases", "amplitude", "means")
        found = [reading.read_out(Unchanged(), planted, 1, way)[0] for way in ways]
        assert [layer.time for layer in found[1:]] == [1, 1]
        assert all(layer.known[0] > 0.96 for layer in found[1:])
        return [layer.known[1] > 0.95 for layer in found], [layer.known[1] < 0.5 for layer in found]

    assert read(wave, one) == ([False] * 3, [True] * 3)
    assert read(wave, one * (3 + velocity)) == ([False, False, True], [True, True, False])
    assert read(wave * (3 + velocity), one) == ([False, True, False], [True, False, True])
    assert read(100 + wave * (3 + velocity), one) == ([False, True, False], [True, False, True])  # offsets add no noise
    assert read(wave, 1e-3 * wave * (3 + velocity))[0][1] is False  # far weaker components do not count
    assert read(wave * (3 + velocity.square()), one) == ([False] * 3, [True] * 3)  # the square has no sign


@pytest.mark.parametrize("shape", [(2, 6), (2, 4, 4), (1, 5)])
@pytest.mark.parametrize("depth", [3, 4, 7])
@pytest.mark.parametrize("after", [1, 2])
def test_deepened_networks_are_the_same_function(shape, depth, after):
    net = computing.CircularConvolutional(shape, [4, 4, 2], kernel=shape[-1], seed=3, dtype=torch.float64)
    net.conv1.bias.data.normal_()
    deep = computing.deepened(net, depth, after)
    assert len(deep.settings["channels"]) == depth
    x = torch.randn(7, *shape, dtype=torch.float64)
    torch.testing.assert_close(deep(x), net(x))
    assert torch.equal(deep.conv1.weight, net.conv1.weight)
    assert torch.equal(getattr(deep, f"conv{depth}").weight, net.conv3.weight)


TINY = {
    "gravity": 0.5,
    "width": 1.0,
    "frames": 2,
    "samples": 6,
    "tests": 40,
    "channels": 3,
    "members": 2,
    "seed": 0,
    "depths": (3, 4),
    "speeds": (1.0, 2.0),
    "ridge": (1e-3, 1e-2),
    "steps": (4, 3),
    "lr": (1e-3, 0.0),
    "after": 2,
}


@pytest.mark.parametrize(("pairs", "way", "control"), [(2, "phases", "phases"), (1, "amplitude", "means")])
def test_where_a_network_is_read(tmp_path, pairs, way, control):
    first, _ = computing.follow(1, Setup(size=6, pairs=pairs, **TINY), tmp_path, False)
    for found, frequency, velocity in ((first.readouts, 1, way), (first.controls, 2, control)):
        expected = reading.read_out(first.network, first.task, frequency, velocity)
        known = [layer.known for layer in found]
        np.testing.assert_allclose(known, [layer.known for layer in expected], rtol=1e-9, atol=1e-9)


def test_a_tiny_run(tmp_path):
    quick, paper = (f06.FIGURE.settings[scale] for scale in ("quick", "paper"))
    for part, size in (("ring", 6), ("interval", 6), ("torus", 4)):
        assert set(vars(getattr(quick, part))) == {*TINY, "size", "pairs"}
        assert size < getattr(quick, part).size
    assert quick == paper
    settings = {"ring": Setup(size=6, **TINY), "interval": Setup(size=6, pairs=1, **{**TINY, "speeds": (1.0, 1.5)})}
    outcome = f06.FIGURE.run("quick", tmp_path, progress=False, torus=Setup(size=4, **TINY), **settings)
    assert outcome.error == ""
    assert len(outcome.claims) == 34
    assert len({claim.name for claim in outcome.claims}) == 34
    assert set(outcome.pictures) == {"spectra", "readout", "prediction"}
    assert [len(section.rows) for section in outcome.sections] == [4, 2] * 3
    assert outcome.sections[0].profile.sizes["layer"] == 4
    assert dataclasses.is_dataclass(outcome.claims[0])
