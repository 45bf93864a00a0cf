"""The widths of layers before and after a compression, in the result and as bars."""

import dataclasses

import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Timing
from bnrank.discovery.compression.wholes import layer_widths
from bnrank.reporting.charts import discovery
from helpers import normal


class Mixed(nn.Module):
    """A convolution, attention, a recurrent module, and a layer of rank 2."""

    def __init__(self):
        super().__init__()
        self.read, self.look = nn.Conv1d(3, 6, 1), nn.MultiheadAttention(6, 2, batch_first=True)
        self.run, self.head = nn.GRU(6, 5, batch_first=True), nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))
        with torch.no_grad():
            self.run.weight_ih_l0.copy_(torch.randn(15, 1) @ torch.randn(1, 6))

    def forward(self, x):
        z = self.read(x).transpose(1, 2)
        return self.head(self.run(self.look(z, z, z)[0])[0][:, -1])


WIDTHS = [("read", 6), ("look.q", 6), ("look.k", 6), ("look.v", 6), ("look.out", 6)]
WIDTHS += [("run.input.0", 15), ("run.hidden.0", 15), ("head.0", 9), ("head.2", 2)]


def found():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return compress(Mixed().eval(), normal(120, 3, 4), tol=0.02, timing=Timing(repeats=2, batch_size=8))


def test_the_result_has_the_widths_before_and_after_and_the_page_a_chart():
    small = found()
    assert list(small.widths_before) == WIDTHS
    after = dict(small.widths)
    assert (after["run.input.0.0"], after["run.input.0.1"]) == (1, 15)
    linear = [part for part in small.network.modules() if isinstance(part, nn.Linear | nn.Conv1d)]
    if not any(isinstance(part, nn.MultiheadAttention | nn.GRU) for part in small.network.modules()):
        assert [units for _, units in small.widths] == [len(part.weight) for part in linear]
    charts = {chart.title: chart for group in discovery.view(small).groups for chart in group.charts}
    before, now = charts["Layer widths before and after"].figure.data
    assert list(before.y) == [units for _, units in WIDTHS]
    assert list(now.y) == [units for _, units in small.widths]
    assert max(before.x) < min(now.x)
    assert list(now.hovertext) == [name for name, _ in small.widths]


def test_there_are_no_bars_without_widths_or_change():
    small = found()
    for other in (dataclasses.replace(small, widths_before=()), dataclasses.replace(small, steps=())):
        titles = [chart.title for group in discovery.view(other).groups for chart in group.charts]
        assert "Layer widths before and after" not in titles


def test_a_module_that_is_one_layer_has_one_width():
    assert layer_widths(nn.Linear(3, 4)) == (("", 4),)
    assert layer_widths(nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 5, 2))) == (
        ("0", 4),
        ("1.input.0", 20),
        ("1.input.1", 20),
        ("1.hidden.0", 20),
        ("1.hidden.1", 20),
    )
