"""Recurrent modules with factors: the same as torch's at full rank, fused and unrolled, and SVD at lower rank."""

import itertools

import pytest
import torch
from torch import nn

from bnrank.discovery.gated import FactoredRecurrent
from helpers import normal

SETTINGS = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "dropout": 0.3},
]


def made(kind, seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(nn, kind)(5, 4, **settings).double().eval()


def same(got, expected):
    flat = [[a, *b] if isinstance(b, tuple) else [a, b] for a, b in (got, expected)]
    assert [t.shape for t in flat[0]] == [t.shape for t in flat[1]]
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*flat, strict=True))


@pytest.mark.parametrize(("kind", "settings"), list(itertools.product(("LSTM", "GRU"), SETTINGS)))
@pytest.mark.parametrize("unrolled", [False, True])
def test_at_full_rank_it_is_the_same(kind, settings, unrolled):
    full, x = made(kind, **settings), normal(3, 6, 5)
    found = FactoredRecurrent.like(full)
    found.unrolled = unrolled
    count = full.num_layers * (2 if full.bidirectional else 1)
    n = 3 if full.batch_first else 6
    h, c = normal(count, n, 4, seed=1), normal(count, n, 4, seed=2)
    state = (h, c) if kind == "LSTM" else h
    assert same(found(x), full(x))
    assert same(found(x, state), full(x, state))
    one = (h[:, 0], c[:, 0]) if kind == "LSTM" else h[:, 0]
    assert same(found(x[0], one), full(x[0], one))
    assert sum(p.numel() for p in found.parameters()) == sum(p.numel() for p in full.parameters())


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
@pytest.mark.parametrize("unrolled", [False, True])
def test_cells_are_the_same_with_and_without_a_state(kind, unrolled):
    full, x = made(kind), normal(3, 5)
    found = FactoredRecurrent.like(full)
    found.unrolled = unrolled
    h, c = normal(3, 4, seed=1), normal(3, 4, seed=2)
    for given, state in ((x, (h, c)), (x, None), (x[0], (h[0], c[0])), (x[0], None)):
        state = state if kind == "LSTMCell" or state is None else state[0]
        got, expected = (
            torch.stack(out) if isinstance(out, tuple) else out for out in (found(given, state), full(given, state))
        )
        assert torch.allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_factors_stand_for_their_product(kind):
    full, x = made(kind), normal(6, 3, 5)
    found = FactoredRecurrent.like(full)
    for layers, name in ((found.input, "weight_ih_l0"), (found.hidden, "weight_hh_l0")):
        u, s, v = torch.linalg.svd(getattr(full, name).detach(), full_matrices=False)
        pair = nn.Sequential(nn.Linear(len(v), 2, bias=False), nn.Linear(2, len(u))).double()
        pair[0].weight.data, pair[1].weight.data = v[:2].clone(), u[:, :2] * s[:2]
        pair[1].bias.data = layers[0].bias.data
        layers[0] = pair
        getattr(full, name).data = u[:, :2] * s[:2] @ v[:2]
    assert same(found(x), full(x))
    assert found.refreshed().ranks == (2, 2)
    assert found.multiply_adds() == 2 * 5 + len(u) * 2 + len(u) * 4
    found.unrolled = True
    assert same(found(x), full(x))


@pytest.mark.parametrize("settings", SETTINGS)
def test_at_full_rank_it_has_the_multiply_adds_of_all_layers_and_directions(settings):
    full = made("GRU", **settings)
    assert FactoredRecurrent.like(full).multiply_adds() == sum(p.numel() for p in full.parameters() if p.ndim == 2)


def test_frozen_parameters_stay_frozen():
    full = made("GRU")
    full.weight_hh_l0.requires_grad_(False)
    frozen = [name for name, p in FactoredRecurrent.like(full).named_parameters() if not p.requires_grad]
    assert frozen == ["hidden.0.weight"]


def test_what_it_does_not_take():
    assert not FactoredRecurrent.accepts(nn.LSTM(5, 4, proj_size=2))
    assert not FactoredRecurrent.accepts(nn.RNN(5, 4))
    packed = nn.utils.rnn.pack_sequence([torch.zeros(3, 5), torch.zeros(2, 5)])
    with pytest.raises(TypeError, match="packed sequences"):
        FactoredRecurrent("LSTM", 5, 4)(packed)


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "LSTMCell", "GRUCell"])
def test_inputs_and_states_of_other_shapes_are_refused_as_by_torch(kind, unrolled):
    full, cell, lstm = made(kind), kind.endswith("Cell"), kind.startswith("LSTM")
    found = FactoredRecurrent.like(full)
    found.unrolled = unrolled
    x, start = (normal(3, 5), (3, 4)) if cell else (normal(6, 3, 5), (1, 3, 4))
    wide, deep, other = torch.cat([x, x], -1), x[None, None], normal(*start[:-2], 6, 4)
    for given, states in ((wide, None), (deep, None), (x, other), (x, normal(*start)[None])):
        hx = (states, states) if lstm and states is not None else states
        for module in (full, found):
            with pytest.raises((ValueError, RuntimeError)):
                module(given, hx)
    if lstm:
        with pytest.raises(ValueError, match=r"hx: got \(.*\), expected 2 of shape"):
            found(x, (normal(*start),))
        state = [normal(*start, seed=1), normal(*start, seed=2)]
        assert torch.allclose(found(x, state)[1 if cell else 0], full(x, state)[1 if cell else 0], rtol=0, atol=1e-12)
