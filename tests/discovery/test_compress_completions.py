"""`compress(completions=True)`: planted ranks become completions, in modules of every kind, and are saved."""

import copy

import pytest
import torch
from torch import nn

import bnrank
from bnrank.discovery.compression import Timing, compress, parameters
from bnrank.networks.completion import Completion
from bnrank.networks.gated import FactoredRecurrent
from helpers import normal

QUICK = {"timing": Timing(batch_size=8, repeats=1), "progress": False}
N, RANK = 16, 10


class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.body = getattr(nn, kind)(N, N, batch_first=True, **settings)
        self.head = nn.Linear(N * (2 if settings.get("bidirectional") else 1), 3)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(N, 4, bias=bias, batch_first=True), nn.Linear(N, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


CASES = {
    "chain": (lambda: nn.Sequential(nn.Linear(N, 40), nn.Tanh(), nn.Linear(40, N), nn.Tanh(), nn.Linear(N, 3)), (N,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv1d(4, N, 3, padding=1), nn.Tanh(), nn.Conv1d(N, N, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * N, 3)
        ),
        (4, 8),
    ),
    "attention": (Attending, (5, N)),
    "attention without biases": (lambda: Attending(False), (5, N)),
    "LSTM": (lambda: Recurrent("LSTM"), (5, N)),
    "GRU": (lambda: Recurrent("GRU", bias=False), (5, N)),
    "LSTM in two directions": (lambda: Recurrent("LSTM", num_layers=2, bidirectional=True), (4, N)),
}


def planted(make):
    """A module whose matrices have rank 10, apart from the last one."""
    torch.manual_seed(0)
    net = make().double().eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim > 1 and "head" not in name and min(p.flatten(1).shape) > RANK:
                for part in p.chunk(3) if "in_proj" in name else [p]:
                    u, s, v = torch.linalg.svd(part.flatten(1), full_matrices=False)
                    part.copy_((u[:, :RANK] * s[:RANK] @ v[:RANK]).reshape(part.shape))
    return net


@pytest.mark.parametrize("case", CASES)
def test_a_planted_rank_is_completed_saved_and_found_again(case, tmp_path):
    make, shape = CASES[case]
    net, x = planted(make), normal(300, *shape)
    found = compress(net, x, tol=1e-3, completions=True, **QUICK)
    dense = compress(net, x, tol=1e-3, **QUICK)
    assert not any(isinstance(part, Completion) for part in dense.network.modules())
    completions = [part for part in found.network.modules() if isinstance(part, Completion)]
    assert max(part.in_features for part in completions) == RANK
    assert parameters(found.network) < min(parameters(dense.network), parameters(net))
    new = normal(20, *shape, seed=9)
    with torch.no_grad():
        assert torch.allclose(found.network(new), net(new), atol=1e-3)
        loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), make().double())
        assert torch.equal(loaded(new), found.network(new))
        half = copy.deepcopy(found.network).float()
        assert torch.allclose(half(new.float()).double(), net(new), atol=2e-3)
    found.network.train()
    found.network(new).sum().backward()
    assert all(p.grad is not None for p in found.network.parameters())


def test_it_counts_the_multiply_adds_that_run():
    """Fused kernels read the multiplied out matrices of an LSTM; its input goes through both factors."""
    net, x = planted(CASES["LSTM"][0]), normal(300, 5, N)
    found = compress(net, x, tol=1e-3, completions=True, **QUICK)
    gates = 4 * N
    assert found.certificate.multiply_adds == 5 * (RANK * N + RANK * gates + N * gates) + 3 * N
    assert found.certificate.parameters == 2 * (RANK * (N + gates - RANK) + gates) + 3 * N + 3


def test_a_network_with_completions_is_compressed_again_and_profiled():
    net, x = planted(CASES["chain"][0]), normal(300, N)
    once = compress(net, x, tol=1e-3, completions=True, **QUICK).network
    for settings in ({}, {"completions": True}, {"zeros": True}):
        again = compress(once, x, tol=0.05, **settings, **QUICK)
        assert again.certificate.on_x.centered < 0.05
        assert again.certificate.parameters <= parameters(once)
    assert bnrank.profile(once, x).sizes["layer"] == len([p for p in once.modules() if isinstance(p, nn.Linear)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("ranks", [(-4, 0), (0, -5), (-4, -5), (3, -5)])
def test_fused_and_unrolled_recurrent_modules_with_completions_agree(kind, ranks):
    torch.manual_seed(0)
    made = FactoredRecurrent(kind, 7, 6, ranks).double()
    for part in made.modules():
        if isinstance(part, Completion):
            part.order = torch.randperm(part.out_features)
    x = normal(5, 7) if kind.endswith("Cell") else normal(4, 5, 7)
    fused = made(x)
    made.unrolled = True
    for a, b in zip(torch.utils._pytree.tree_leaves(fused), torch.utils._pytree.tree_leaves(made(x)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_a_completed_attention_gets_zeros():
    net, x = planted(CASES["attention"][0]), normal(300, 5, N)
    once = compress(net, x, tol=1e-3, completions=True, **QUICK).network
    again = compress(once, x, tol=0.1, zeros=True, **QUICK)
    assert again.certificate.on_x.centered < 0.1


def test_completions_and_zeros_exclude_each_other():
    with pytest.raises(ValueError, match="completions: got True, with zeros=True, expected one of the two"):
        compress(planted(CASES["chain"][0]), normal(50, N), zeros=True, completions=True)
