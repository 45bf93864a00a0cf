"""Layers that complete some of the units of a layer, against the layer of low rank."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.discovery.compression.fits import factor_weights, gram_fit, pointwise_pair
from bnrank.discovery.compression.parts import channel_rows, lipschitz, parameters
from bnrank.networks.completion import Completion
from helpers import normal

KINDS = {
    "linear": (nn.Linear(20, 16), (20,)),
    "linear without bias": (nn.Linear(20, 16, bias=False), (20,)),
    "tokens": (nn.Linear(20, 16), (5, 20)),
    "convolution": (nn.Conv1d(6, 16, 3, padding=1), (6, 7)),
    "convolution of images": (nn.Conv2d(4, 12, 3, stride=2, padding=1, bias=False), (4, 6, 5)),
    "convolution of volumes": (nn.Conv3d(2, 10, 2), (2, 3, 3, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_what_two_dense_factors_give_with_fewer_weights(kind):
    layer, shape = KINDS[kind]
    layer, x = layer.double(), normal(60, *shape)
    with torch.no_grad():
        rows = channel_rows(layer, layer(x))
        fitted, k = gram_fit(rows, rows), len(layer.weight) // 2
        dense, completed = (nn.Sequential(*pointwise_pair(layer, fitted, k, way)) for way in (False, True))
        assert isinstance(completed[1], Completion)
        assert torch.allclose(completed(x), dense(x), atol=1e-10)
    m, taps = layer.weight.flatten(1).shape
    assert parameters(dense) - parameters(completed) == k**2
    weights = sum(p.numel() for p in completed.parameters() if p.ndim > 1)
    assert weights == int(factor_weights(torch.tensor(k), taps, m, True)) < m * taps


@settings(derandomize=True, max_examples=25, deadline=None)
@given(n=st.integers(2, 30), m=st.integers(2, 30), seed=st.integers(0, 1000), data=st.data())
def test_every_rank_saves_weights_and_the_combinations_are_stable(n, m, seed, data):
    """Coefficients by pivoting are seldom large; the bound of Gu and Eisenstat for pivoting is 2^k."""
    k = data.draw(st.integers(1, min(n, m)), label="k")
    layer = nn.Linear(n, m).double()
    layer.weight.data = (normal(m, k, seed=seed) * 3.0 ** -torch.arange(k)) @ normal(k, n, seed=seed + 1)
    x = normal(100, n, seed=seed + 2)
    with torch.no_grad():
        fitted = gram_fit(layer(x), layer(x))
        k = min(k, len(fitted.reading))
        made = nn.Sequential(*pointwise_pair(layer, fitted, k, True))
        assert torch.allclose(made(x), layer(x), atol=1e-3 * float(layer(x).std()))
    if isinstance(made[1], Completion):
        assert parameters(made) == k * (n + m - k) + m < n * m + m or k >= n
        assert float(made[1].others.weight.abs().max()) < 30
    else:
        assert k >= m or k < 0.1 * (n + m)


def test_its_matrix_its_biases_and_its_constant_are_those_of_the_layer():
    second = Completion(3, 8).double()
    second.order = torch.randperm(8)
    z = normal(5, 3)
    assert torch.allclose(second(z), z @ second.weight.T + second.completed(None), atol=1e-12)
    first = nn.Linear(4, 3).double()
    biases = second(first(torch.zeros(1, 4).double()))[0]
    assert torch.allclose(second.completed(first.bias), biases, atol=1e-12)
    whole = float(torch.linalg.matrix_norm(second.weight @ first.weight, 2))
    assert lipschitz([first, second], normal(2, 4)) == pytest.approx(whole)
    image = Completion(3, 8, dimensions=2).double()
    alone = float(torch.linalg.matrix_norm(image.weight, 2))
    assert lipschitz([image], normal(2, 3, 4, 4)) == pytest.approx(alone)
    second.others.register_forward_hook(lambda _, __, out: 100 * out)
    assert lipschitz([first, second], normal(2, 4)) is None


def test_a_chain_with_it_is_read_by_the_theory_only_multiplied_out():
    net = nn.Sequential(nn.Linear(5, 3), Completion(3, 9), nn.ReLU(), nn.Linear(9, 2)).double()
    state, x = torch.get_rng_state(), normal(7, 5)
    chain = bnrank.networks.as_mlp(net, multiply_out=True)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(TypeError, match="got Completion"):
        bnrank.networks.as_mlp(net)
    shared = nn.Sequential(*net[:3], nn.Linear(9, 3), net[1]).double()
    with pytest.raises(TypeError, match="shared between layers"):
        bnrank.networks.as_mlp(shared, multiply_out=True)
    assert chain.widths == [5, 9, 2]
    assert torch.allclose(chain(x), net(x), atol=1e-12)


def test_it_is_scripted_exported_and_moved_to_another_precision():
    net = nn.Sequential(nn.Linear(5, 3), Completion(3, 9)).half().float()
    assert net[1].order.dtype == torch.int64
    x = torch.randn(4, 5)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(net), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), net(x))
    assert torch.equal(torch.export.export(net, (x,)).module()(x), net(x))


@pytest.mark.parametrize("sizes", [(3, 3), (0, 3), (4, 3)])
def test_sizes_that_leave_no_other_units_are_refused(sizes):
    with pytest.raises(ValueError, match="in_features: got"):
        Completion(*sizes)


def test_other_dimensions_are_refused():
    with pytest.raises(ValueError, match="dimensions: got 4, expected 0 to 3"):
        Completion(1, 2, dimensions=4)
