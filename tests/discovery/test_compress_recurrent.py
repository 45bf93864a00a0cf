"""Matrices of LSTM and GRU of low rank are found, whole or in cells that code calls step by step."""

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery.compression import Timing, multiply_adds, parameters
from bnrank.discovery.compression.lowrank import Factoring, places
from bnrank.discovery.compression.wholes import split_up
from helpers import normal

from .functions import judge_of

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def low(weight, rank):
    u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
    return u[:, :rank] * s[:rank] @ v[:rank]


class Recurrent(nn.Module):
    """A recurrent module, or a cell that runs step by step, whose matrices have rank 3."""

    def __init__(self, kind):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.stepwise = kind.endswith("Cell")
            settings = {} if self.stepwise else {"batch_first": True}
            self.body, self.head = getattr(nn, kind)(12, 16, **settings), nn.Linear(16, 3)
        for p in self.body.parameters():
            if p.ndim == 2:
                p.data = low(p, 3)

    def forward(self, x):
        if not self.stepwise:
            return self.head(self.body(x)[0][:, -1])
        state = None
        for step in range(x.shape[1]):
            state = self.body(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "LSTMCell", "GRUCell"])
def test_planted_ranks_are_found_and_the_result_is_saved(kind, tmp_path):
    net, x = Recurrent(kind).eval(), normal(200, 5, 12).float()
    found = compress(net, x, tol=1e-3, **QUICK)
    assert found.steps[-1].what == "body.input.0 to rank 3, body.hidden.0 to rank 3"
    gates = net.body.weight_ih_l0.shape[0] if hasattr(net.body, "weight_ih_l0") else net.body.weight_ih.shape[0]
    assert parameters(found.network) == 3 * (12 + gates) + 3 * (16 + gates) + 2 * gates + 16 * 3 + 3
    assert found.certificate.met
    assert multiply_adds(found.network, x) == 5 * (3 * (12 + gates) + 16 * gates) + 16 * 3
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Recurrent(kind))
    new = normal(50, 5, 12, seed=7).float()
    with torch.no_grad():
        assert torch.equal(loaded(new), found.network(new))
        assert torch.allclose(loaded(new), net(new), atol=1e-4)


def test_plain_factors_of_the_hidden_matrix_are_those_of_all_steps():
    """The oracle: principal axes of W_hh h over all hidden states, by SVD."""
    torch.manual_seed(0)
    net, x = Recurrent("GRU").double().eval(), normal(100, 4, 12)
    net.body.weight_hh_l0.data = normal(48, 16, seed=3) / 3
    with torch.no_grad():
        states = net.body(x)[0]
        rows = torch.cat([torch.zeros(100, 1, 16).double(), states[:, :-1]], 1).transpose(0, 1).reshape(-1, 16)
        rows = rows @ net.body.weight_hh_l0.T + net.body.bias_hh_l0
        outputs = net(x)
    axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    left = (axes.S.square().flip(0).cumsum(0).flip(0) / axes.S.square().sum()).sqrt()
    split_up(net, x)
    flat = lambda value: value.flatten(1)  # noqa: E731
    judge = judge_of((x, flat, outputs), (x[:9], flat, outputs[:9]), outputs)
    factoring = Factoring(judge, net, places(net, x)[0], (1, 1, 1))
    choice, ranks = factoring.at(0.3, "plain")
    rank = dict(ranks)["body.hidden.0"]
    assert rank == int((left > 0.3).sum())
    first, second = choice["body.hidden.0"]
    expected = axes.Vh[:rank].T @ axes.Vh[:rank]
    got = second.weight @ torch.linalg.pinv(second.weight)
    assert torch.allclose(got, expected, atol=1e-8)
    assert first.weight.shape == (rank, 16)


def test_a_hidden_state_that_is_always_zero_needs_no_matrix():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTMCell(12, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.cell(x)[0])

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Once().eval()
    found = compress(net, normal(200, 12), tol=1e-3, **QUICK)
    assert "cell.hidden.0 to rank 1" in found.steps[-1].what
    assert found.certificate.met


def test_a_module_that_cannot_be_split_is_left_with_a_reason():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.LSTM(6, 8, batch_first=True)
            self.up, self.head = nn.Linear(8, 20), nn.Linear(20, 2)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)
            return self.head(torch.tanh(self.up(self.body(packed)[1][0][0])))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Packed()
    with torch.no_grad():
        net.up.weight.copy_(low(net.up.weight, 1))
    found = compress(net, normal(100, 5, 6), tol=0.01, **QUICK)
    assert found.network.up[0].out_features <= 3
    assert {part.name.split(".")[0] for part in found.skipped} == {"body"}
    assert {part.type for part in found.skipped} == {"LSTM"}
    assert all(part.reason for part in found.skipped)


@pytest.mark.parametrize("rank", [2, 20])
def test_units_that_a_recurrent_module_reads_are_removed_and_it_is_saved(rank, tmp_path):
    class Copies(nn.Module):
        """Twenty units, of which ten are copies, before a recurrent module."""

        def __init__(self):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.read, self.body = nn.Linear(12, 20), nn.LSTM(20, 8, batch_first=True)
                self.head = nn.Linear(8, 3)
            with torch.no_grad():
                self.read.weight[10:], self.read.bias[10:] = self.read.weight[:10], self.read.bias[:10]
                self.body.weight_ih_l0.copy_(low(self.body.weight_ih_l0, rank))

        def forward(self, x):
            return self.head(self.body(self.read(x).tanh())[0][:, -1])

    net, x = Copies().eval(), normal(200, 5, 12).float()
    found = compress(net, x, tol=1e-4, **QUICK)
    assert found.steps[0].what == "neurons or channels: read 20 to 10"
    assert found.network.body.input_size == 10
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Copies())
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))
        assert torch.allclose(loaded(x), net(x), atol=1e-4)
