"""Dimensions of centered activations and dead units, layer by layer, against the measures of whole arrays."""

import functools
import math

import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank.measures import layerwise, usage
from bnrank.measures.layerwise import LayerUse
from bnrank.networks import read

normal = functools.partial(helpers.normal, dtype=torch.float32)


def use(net, x, **options):
    return list(layerwise.layer_use(net, x, read(net, x), **options).values())


@pytest.mark.parametrize("samples", [7, 90])
@pytest.mark.parametrize("chunk", [4, 4096])
def test_blocks_give_what_the_whole_array_gives(samples, chunk):
    net = bnrank.MLP([6, 40, 5], seed=0)
    x = 1000 + normal(samples, 6)  # far from 0: not centered, one dimension would hold all
    with torch.no_grad():
        net.layers[0].weight[3] = 0.0
        net.layers[0].bias[3] = -1.0
    a = torch.relu(net.double().layers[0](x.double())).detach()
    found = use(net.float(), x, chunk_size=chunk)
    assert found[0].units == 40
    assert found[0].dimensions == usage.centered_dimension(a)
    assert found[0].dead == int(usage.dead_units(a).sum()) >= 1
    assert found[1].dimensions == usage.centered_dimension(net.double()(x.double()).detach())


def test_channels_are_units_and_positions_are_samples(monkeypatch):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 2))
    x = normal(9, 2, 6, 6) + 5
    found = use(net, x)
    assert [layer.units for layer in found] == [3, 16, 2]
    a = net[:2](x).double().movedim(1, -1).flatten(0, 2).detach()
    assert found[0].dimensions == usage.centered_dimension(a)
    monkeypatch.setattr(layerwise, "POSITIONS", 2)
    few = net[:2](x).double().flatten(2)[:, :, [0, 15]].movedim(1, -1).flatten(0, 1).detach()
    assert use(net, x)[0].dimensions == usage.centered_dimension(few)
    sequence = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    assert [layer.units for layer in use(sequence, normal(8, 7, 4))] == [5, 3]


def test_equal_samples_one_sample_and_too_many_units_have_no_false_dimension(monkeypatch):
    net = bnrank.MLP([4, 9, 3], seed=0)
    assert use(net, normal(1, 4).repeat(20, 1))[0].dimensions == (0, 0)
    assert use(net, normal(1, 4).repeat(5, 1), chunk_size=2)[0].dimensions == (0, 0)
    (single, _) = use(net, normal(1, 4))
    assert math.isnan(single.dimensions[0])
    assert single.note == "dimension: one sample has no variance"
    monkeypatch.setattr(layerwise, "MAX_ENTRIES", 20)
    large, small = use(net, normal(30, 4))
    assert "9 units need more than 20 numbers" in large.note
    assert isinstance(small, LayerUse)
    assert small.note == ""


def test_activations_whose_squares_overflow_have_no_dimension():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = 1e200 * torch.randn(20, 3, dtype=torch.float64)
    assert all(math.isnan(found.dimensions[0]) and "not finite" in found.note for found in use(net, x))
