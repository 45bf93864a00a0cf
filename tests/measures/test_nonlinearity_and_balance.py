import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
import helpers
from bnrank import nonlinearity
from bnrank.measures.balance import imbalance

normal = functools.partial(helpers.normal, dtype=torch.float32)


@pytest.mark.parametrize("chunk", [3, 100])
def test_the_ratio_is_that_of_the_whole_matrices(chunk):
    net, x = bnrank.MLP([3, 6, 5, 2], slope=0.2, seed=0), normal(20, 3)
    found = nonlinearity(net, x, chunk_size=chunk)
    a = x.double()
    for i in range(2):
        z = a @ net.weights[i].detach().double().T + net.biases[i].detach().double()
        a = nn.functional.leaky_relu(z, 0.2)
        assert found[f"layers.{i}"] == pytest.approx(float((z - a).norm() / z.norm()), rel=1e-12)
    assert math.isnan(found["layers.2"])


def test_non_negative_preactivations_have_ratio_zero_and_zero_ones_none():
    net, x = bnrank.MLP([3, 6, 5, 2], seed=0), normal(20, 3).abs()
    with torch.no_grad():
        net.weights[0].abs_()
        net.weights[1].zero_()
    found = nonlinearity(net, x)
    assert found["layers.0"] == 0
    assert math.isnan(found["layers.1"])


def test_of_other_modules_what_enters_the_next_layer_counts():
    net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(True), nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    pooled = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 1))
    x = normal(10, 1, 6)
    z = net.double()[0](x.double()).detach()
    found = nonlinearity(net, x)
    assert found["0"] == pytest.approx(float((z - z.relu()).norm() / z.norm()))
    assert 0 < found["3"] < 1
    assert math.isnan(nonlinearity(pooled, x)["0"])


def balanced(net):
    """Rescale neuron by neuron, layer by layer, until the norms in and out are the same (T14)."""
    with torch.no_grad():
        for _ in range(300):
            for l in range(len(net.weights) - 1):  # noqa: E741
                incoming = (net.weights[l] ** 2).sum(1) + (net.biases[l] ** 2 if net.biases else 0.0)
                c = ((net.weights[l + 1] ** 2).sum(0) / incoming) ** 0.25
                net.weights[l].mul_(c[:, None])
                if net.biases:
                    net.biases[l].mul_(c)
                net.weights[l + 1].div_(c)
    return net


@settings(max_examples=15, deadline=None, derandomize=True)
@given(bias=st.booleans(), widths=st.lists(st.integers(1, 6), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_a_balanced_network_has_residual_zero(bias, widths, seed):
    net = bnrank.MLP(widths, bias=bias, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, b in enumerate(net.biases):
            b.copy_(normal(*b.shape, seed=seed + i))
    found = imbalance(balanced(net))
    assert found.residual < 1e-9
    assert len(found.per_neuron) == len(found.per_layer) == len(widths) - 2


def test_the_residual_is_the_one_written_down():
    net = bnrank.MLP([2, 3, 4, 2], seed=0, dtype=torch.float64)
    with torch.no_grad():
        net.biases[0].copy_(normal(3))
    found = imbalance(net)
    above = below = 0.0
    for l in range(2):  # noqa: E741
        for i in range(net.widths[l + 1]):
            incoming = sum(float(w) ** 2 for w in net.weights[l][i]) + float(net.biases[l][i]) ** 2
            outgoing = sum(float(w) ** 2 for w in net.weights[l + 1][:, i])
            assert float(found.per_neuron[l][i]) == pytest.approx(abs(incoming - outgoing))
            above, below = above + abs(incoming - outgoing), below + incoming + outgoing
    assert found.residual == pytest.approx(above / below)
    assert 0 < found.residual < 1


def test_a_local_minimum_of_the_regularized_loss_is_balanced():
    net, x = bnrank.MLP([2, 4, 1], slope=0.5, seed=0, dtype=torch.float64), normal(8, 2).double()
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.LBFGS(
        net.parameters(), max_iter=2000, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        value = ((net(x) - y) ** 2).sum(1).mean() + 0.1 * sum((p**2).sum() for p in net.parameters())
        value.backward()
        return value

    before = imbalance(net).residual
    optimizer.step(loss)
    assert imbalance(net).residual < 1e-6 < before


def test_a_sequential_is_the_same_as_its_mlp():
    net = bnrank.MLP([2, 5, 3], seed=0)
    same = nn.Sequential(net.layers[0], nn.ReLU(), net.layers[1])
    assert imbalance(same).residual == imbalance(net).residual
    assert imbalance(bnrank.MLP([2, 3])).residual == imbalance(nn.Linear(2, 2)).residual == 0.0
    assert imbalance(bnrank.MLP([2, 3, 1], init=0.0)).residual == 0.0
    with pytest.raises(TypeError, match=r"Tanh \(first at 1\)"):
        imbalance(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
