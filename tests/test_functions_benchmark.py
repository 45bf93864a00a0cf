"""What `python -m benchmarks.functions` plants is what its text says."""

import pytest
import torch
from benchmarks import functions

from bnrank.networks.mlp import from_layers
from bnrank.theory.constructions import add
from helpers import norm, normal


@pytest.mark.parametrize("kind", ["line", "linear", "plane"])
def test_planted_parts_compose_at_the_sum_of_their_norms(kind):
    for seed in range(5):
        x, g, h = functions.planted(seed, kind)
        z = g(x)
        assert float(z.min()) >= 0
        net = functions.chained(h.network, g.network)
        with torch.no_grad():
            assert torch.allclose(net(x), h(z), rtol=0, atol=1e-12)
        assert functions.norm(net) == pytest.approx(norm(g.network) + norm(h.network))
        steps = (z[1:] - z[:-1]).norm(dim=1)
        if kind == "linear":
            assert float(steps.max() - steps.min()) < 1e-12
        assert int(torch.linalg.matrix_rank(z - z.mean(0))) == (1 if kind == "linear" else 2)


def test_bends_and_folds():
    a, c, w, b = normal(2), normal(2, seed=1), torch.tensor([0.6, 0.8]).double(), torch.tensor(0.5).double()
    x = normal(7, 2, seed=2).abs()
    line = x @ w
    expected = line[:, None] * a + torch.relu(line - b)[:, None] * c
    assert torch.allclose(functions.bend(a, w, b, c)(x), expected)
    matrix = normal(2, 2, seed=3)
    assert torch.allclose(functions.fold(matrix, w, b, c)(x), x @ matrix.T + torch.relu(line - b)[:, None] * c)


def test_wholes_start_from_combined_networks_or_not(monkeypatch):
    x, one = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None], torch.ones(1, dtype=torch.float64)
    parts = [functions.bend(axis, one, 0.5 * one, 2 * axis) for axis in torch.eye(2, dtype=torch.float64)]
    total = add(*(part.network for part in parts))
    y = total(x).detach()
    monkeypatch.setattr(functions, "DEPTHS", [3, 4])
    monkeypatch.setattr(functions, "PLANTED", {"width": 5, "starts": 0, "polish": 0})
    weights, (first, second, last) = list(total.weights), total.biases
    detour = from_layers(weights, [first + 3, second - 3 * weights[1].sum(1), last])
    with torch.no_grad():
        assert torch.allclose(detour(x), y)
    seeded, alone = functions.wholes(x, y, detour, [total])
    assert seeded[0] <= norm(total) + 1e-9 < alone[0]
    assert seeded[1] <= seeded[0] + 1 + 1e-9  # the input has dimension 1
    assert alone == functions.wholes(x, y, detour, [])[0]
