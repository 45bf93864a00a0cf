"""Values passed on layer by layer are those that are captured of whole blocks."""

import pickle

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks import capture, read
from bnrank.networks.functional import Functional, example
from bnrank.networks.reading import capturing
from helpers import normal


class Kept(capturing.Taker):
    """Copies of everything."""

    def __init__(self):
        self.before, self.after = {}, {}

    def preactivations(self, layer, values):
        self.before.setdefault(layer, []).append(values.clone())

    def activations(self, layer, values):
        self.after.setdefault(layer, []).append(values.clone())
        assert len(self.after[layer]) == len(self.before[layer])


class Branches(nn.Module):
    """Two layers read one tensor, activations work in place, and a sum joins them."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        z = self.first(x).relu_()
        z = self.norm(self.left(z)).add_(self.right(z)).relu_()
        return self.head(z.mean((2, 3))).mul_(2)


class Order(nn.Module):
    """Layers whose order depends on the data: 'b' runs first on more than 3 samples, and its input is overwritten."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        if len(x) <= 3:
            return self.b(self.a(x))
        z = x.clone()
        y = self.b(z)
        z.zero_()
        return self.a(y)


NETWORKS = {
    "mlp": (lambda: bnrank.MLP([3, 8, 5, 2], seed=0), normal(11, 3)),
    "branches": (Branches, normal(11, 2, 5, 5)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), normal(11, 6, 3)),
    "time first": (lambda: nn.GRU(3, 4), normal(6, 11, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), normal(11, 5, 6)),
    "order": (Order, normal(11, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_streams_give_what_is_captured_whatever_the_blocks(name):
    torch.manual_seed(0)
    net, x = NETWORKS[name][0](), NETWORKS[name][1]
    reading, samples = read(net, x), example(net, x, inputs=True)
    (whole,) = capture(net, x, reading) if name != "order" else [None]
    for size in (4, 4096):
        taker = Kept()
        assert capturing.stream(Functional(net), samples, reading, [taker], chunk_size=size) == 11
        if name == "order":
            (whole,) = capture(net, x, reading) if size > 11 else [None]
        for i in range(len(reading.layers)):
            if whole is not None:
                assert torch.allclose(torch.cat(taker.before[i]), whole.preactivations[i])
                assert torch.allclose(torch.cat(taker.after[i]), whole.activations[i])


def test_large_layers_are_run_in_smaller_blocks_and_time_ends_them(monkeypatch):
    net, x = bnrank.MLP([3, 8, 5, 2], seed=0), normal(11, 3)
    monkeypatch.setattr(capturing, "MAX_BLOCK", 8 * 3)
    taker = Kept()
    assert capturing.stream(Functional(net), x, read(net, x), [taker]) == 11
    assert [len(part) for part in taker.before[0]] == [3, 3, 3, 2]
    looks = iter([False, True])
    assert capturing.stream(Functional(net), x, read(net, x), [Kept()], over=lambda: next(looks)) == 6


def test_errors_of_takers_are_theirs_and_missing_layers_are_named():
    class Wrong(capturing.Taker):
        def activations(self, layer, values):
            raise ValueError("piece: got NaN")

    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(5, 3)
    with pytest.raises(ValueError, match=r"^piece: got NaN$"):
        capturing.stream(Functional(net), x, read(net, x), [Wrong()])

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(self.b(x) if len(x) < 4 else x)

    net = Sometimes()
    with pytest.raises(ValueError, match="layer 'b' did not run on samples 0 to 4"):
        capturing.stream(Functional(net), x, read(net, x), [])


def test_the_error_of_unobserved_layers_can_be_rebuilt_and_sent():
    error = capturing.UnobservedError("net: layer '0' did not run", {"0": "did not run"})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reasons) == (str(error), {"0": "did not run"})
    assert str(type(error)("a: did not run")) == "a: did not run"


def test_the_error_of_a_taker_ends_the_pass():
    class Wrong(capturing.Taker):
        def preactivations(self, layer, values):
            raise MemoryError("of the taker")

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.runs = nn.Linear(3, 3), nn.Linear(3, 3), 0

        def forward(self, x):
            y = self.a(x)
            if len(x) > 3:
                raise RuntimeError("of the module, later")
            return self.b(y)

    net, x = Fails(), normal(5, 3)
    with pytest.raises(MemoryError, match="of the taker"):
        capturing.stream(Functional(net), x, read(net, x), [Wrong()])
