"""Files of weights as people share them: checkpoints, shards, exported graphs, and files that are none."""

import functools

import pytest
import torch
from torch import nn

import helpers
from bnrank.measures import profile
from helpers import listed, values_of

normal = functools.partial(helpers.normal, dtype=torch.float32)


@pytest.mark.parametrize("name", ["opt", "optG", "generator_adam"])
def test_the_state_of_an_optimizer_is_known_by_its_keys(name, tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    torch.save({"net": net.state_dict(), name: optimizer.state_dict()}, tmp_path / "c.pt")
    ds = profile(tmp_path / "c.pt")
    assert list(values_of(ds)) == ["net.0.weight", "net.1.weight"]
    assert listed(ds)[name] == "state of the training, 12 tensors, not of the network"
    layers = {"state": {"weight": torch.eye(3)}, "param": torch.eye(2)}  # other things of this name
    assert list(values_of(profile(layers))) == ["state.weight", "param"]


def test_scales_and_shifts_of_many_dimensions_are_no_kernels():
    net = nn.Sequential(nn.LayerNorm([4, 8, 8]), nn.Conv2d(4, 4, 3), nn.LayerNorm([6, 6]))
    state = {**net.state_dict(), "attention.bias": torch.ones(1, 2, 5, 5), "positions.bias": normal(7, 3)}
    ds = profile(state)
    assert list(values_of(ds)) == ["1.weight", "positions.bias"]
    for layer in "02":
        for key, what in (("weight", "scale"), ("bias", "shift")):
            assert listed(ds)[f"{layer}.{key}"] == f"{what} of a normalization, applied entry by entry"
    assert listed(ds)["attention.bias"] == "bias"
    assert values_of(profile(net)).keys() == {"1.weight"}
