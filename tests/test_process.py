"""Random generators, filters of warnings and settings of matplotlib are not changed, not even for a while."""

import sys
import warnings

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from bnrank.discovery.attention import FactoredAttention
from bnrank.discovery.estimators import linear_maps
from bnrank.discovery.films import components, networks
from bnrank.discovery.gated import FactoredRecurrent
from bnrank.networks.files import load_module
from bnrank.reporting.blocks import drawn
from helpers import normal


def chart():
    figure = Figure()
    figure.subplots().scatter([0, 1, 2], [0, 1, 0], c=[0, 1, 2])
    return drawn(figure, "chart")


CLASSES = np.arange(60) % 3
FILMS = [normal(20, 4, 4, 1, seed=i).numpy().astype(np.float32) for i in range(2)]
CALLS = {
    "attention": lambda: FactoredAttention.like(nn.MultiheadAttention(8, 2)),
    "recurrent": lambda: FactoredRecurrent.like(nn.LSTM(5, 4, 2)),
    "network of films": lambda: networks.network(networks.Shape((1, 8, 8), 64, 64, 8, 2, "conv"), 3),
    "components of films": lambda: components.components_of(FILMS, 0),
    "classes": lambda: linear_maps.linear_map(normal(60, 3).numpy(), CLASSES, 1e-9, 3),
    "picture": chart,
    "module": lambda: load_module("torch.nn:Identity"),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_changed_for_a_while(name, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a setting of the process")

    CALLS[name]()  # what is imported or cached at first use
    places = [(torch.random, "fork_rng"), (torch, "manual_seed"), (torch, "set_rng_state"), (mpl, "rc_context")]
    places += [(warnings, "simplefilter"), (warnings, "filterwarnings"), (warnings.catch_warnings, "__enter__")]
    before = list(warnings.filters), dict(mpl.rcParams), list(sys.path)
    with monkeypatch.context() as patched:
        for holder, attribute in places:
            patched.setattr(holder, attribute, refuse)
        CALLS[name]()
    assert (list(warnings.filters), dict(mpl.rcParams), list(sys.path)) == before


def test_equal_figures_give_equal_files_with_names_of_their_own():
    one, two = chart(), chart()
    assert one == two
    assert b'id="part0"' in one


def test_networks_of_films_have_the_initial_weights_of_pytorch():
    made = networks.network(networks.Shape((2, 9, 9), 162, 162, 8, 2, "conv"), 5)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    first = nn.Conv2d(2, networks.FILTERS[0], 1, 1)
    torch.set_rng_state(state)
    assert torch.equal(made[0][0].weight, first.weight)
    assert torch.equal(made[0][0].bias, first.bias)
