import functools

import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank.measures import derivatives, ntk
from oracles import ntk as dense_ntk

normal = functools.partial(helpers.normal, dtype=torch.float32)


class Unvectorizable(nn.Module):
    """Looks at a value, which torch.func.vmap cannot; has a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.a, self.unused = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) if x[0, 0].item() > 0 else 2 * self.a(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.ones(3), requires_grad=False)
        self.steps = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)

    def forward(self, x):
        return torch.relu_(self.a(torch.tanh(self.a(x))))[:, :3] * self.table


NETWORKS = {
    "mlp": (bnrank.MLP([4, 7, 6, 3], seed=0), (4,)),
    "no bias": (bnrank.MLP([4, 7, 3], slope=-0.3, bias=False, seed=0), (4,)),
    "one layer": (bnrank.MLP([4, 3], seed=0), (4,)),
    "convolution": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.Flatten(), nn.Linear(8, 3)),
        (1, 4, 4),
    ),
    "attention": (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(8, 2)),
        (2, 4),
    ),
    "unvectorizable": (Unvectorizable(), (4,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gram_and_trace_equal_the_parameter_jacobian(name):
    net, shape = NETWORKS[name]
    x = normal(6, *shape)
    expected = dense_ntk(net, x)
    found = ntk.gram(net, x)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-10)
    diagonal = torch.einsum("iiaa->i", expected)
    for chunk in (None, 1, 4):
        assert torch.allclose(ntk.trace(net, x, chunk_size=chunk), diagonal, atol=1e-10)


def test_every_parameter_counts_trainable_or_not_and_tied_ones_once():
    class Free(nn.Module):
        def __init__(self, w, table):
            super().__init__()
            self.w, self.table = nn.Parameter(w), nn.Parameter(table)
            self.b = nn.Parameter(torch.zeros(4, dtype=torch.float64))

        def forward(self, x):
            inner = torch.tanh(x @ self.w.T + self.b)
            return torch.relu(inner @ self.w.T + self.b)[:, :3] * self.table

    tied = Tied()
    nn.init.zeros_(tied.a.bias)
    free = Free(tied.a.weight.detach().double(), tied.table.detach().double())
    x = normal(5, 4)
    assert torch.allclose(ntk.gram(tied, x), dense_ntk(free, x))


def test_closed_form_and_gradients_agree():
    net = bnrank.MLP([4, 7, 6, 3], slope=0.2, seed=0)
    wrapped, x = nn.Sequential(net), normal(20, 4)
    assert torch.allclose(ntk.trace(net, x), ntk.trace(wrapped, x))
    assert torch.allclose(ntk.gram(net, x), ntk.gram(wrapped, x))


def test_trace_scales_as_a_homogeneous_function():
    """Bias-free, depth L: theta -> c theta multiplies df/dtheta by c^{L-1}."""
    net, x = bnrank.MLP([4, 7, 6, 3], bias=False, seed=0, dtype=torch.float64), normal(5, 4)
    before = ntk.trace(net, x)
    with torch.no_grad():
        for weight in net.weights:
            weight.mul_(3.0)
    assert torch.allclose(ntk.trace(net, x), 3.0**4 * before)


def test_errors_name_the_argument(monkeypatch):
    with pytest.raises(ValueError, match="no parameters"):
        ntk.trace(nn.ReLU(), normal(4, 3))
    with pytest.raises(ValueError, match="chunk_size: got 0"):
        ntk.trace(bnrank.MLP([3, 2]), normal(4, 3), chunk_size=0)
    with pytest.raises(ValueError, match="failed on x"):
        ntk.trace(nn.Sequential(nn.Linear(3, 2)), normal(4, 4))
    monkeypatch.setattr(ntk, "MAX_ENTRIES", 100)
    with pytest.raises(ValueError, match="expected at most 6 samples"):
        ntk.gram(nn.Sequential(nn.Linear(3, 2)), normal(7, 3))


def test_the_network_is_left_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    ntk.trace(net, normal(6, 3))
    assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert all(m.training for m in net.modules())
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "cpu", -1])
def test_a_dtype_that_is_not_floating_point_is_refused(dtype):
    for measure in (bnrank.ntk.gram, bnrank.ntk.trace, bnrank.Jacobian):
        with pytest.raises(TypeError, match="dtype: got"):
            measure(bnrank.MLP([3, 4, 2]), torch.ones(2, 3), dtype=dtype)


@pytest.mark.parametrize("limit", [1, 50, 120])
def test_traces_of_many_outputs_at_a_time_are_those_of_the_whole_jacobian(monkeypatch, limit):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 7))
    x = torch.randn(6, 3, dtype=torch.float64)
    whole = bnrank.ntk.trace(net, x)
    monkeypatch.setattr(derivatives, "CHUNK_ENTRIES", limit)
    assert torch.allclose(bnrank.ntk.trace(net, x), whole)
    lstm = nn.Sequential(nn.LSTM(3, 4, batch_first=True))
    sequences = torch.randn(2, 5, 3, dtype=torch.float64)
    found = bnrank.ntk.trace(lstm, sequences)
    monkeypatch.setattr(derivatives, "CHUNK_ENTRIES", 2**24)
    assert torch.allclose(found, bnrank.ntk.trace(lstm, sequences))


def test_the_largest_eigenvalue_is_that_without_gradients():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    expected = ntk.top_eigenvalue(net, x)
    with torch.no_grad():
        assert ntk.top_eigenvalue(net, x) == pytest.approx(expected, rel=1e-12)
