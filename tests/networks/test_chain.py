"""Modules read as chains, networks from layers, and linear networks."""

import copy

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks import LinearNetwork, as_mlp, from_layers, load, save
from bnrank.training import Adam
from helpers import norm

ACT = nn.ReLU()  # one instance at two places, as people write it
CHAINS = {
    "mlp": bnrank.MLP([3, 5, 4, 2], slope=-0.5, seed=1),
    "bias-free": bnrank.MLP([3, 5, 2], bias=False),
    "one layer": bnrank.MLP([3, 2]),
    "relu": nn.Sequential(nn.Flatten(), nn.Linear(3, 5), ACT, nn.Linear(5, 4), ACT, nn.Dropout(0.5), nn.Linear(4, 2)),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.LeakyReLU(0.3)), nn.Identity(), nn.Linear(5, 2)),
    "some biases": nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 2)),
    "linear": nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)),
    "linear network": LinearNetwork([3, 4, 2], bias=True, seed=3),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_the_same_function_with_the_same_norm(name):
    module = CHAINS[name]
    module.train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    net = as_mlp(module)
    assert net.weights[0].dtype == torch.float64
    assert norm(net) == pytest.approx(norm(module), rel=1e-12)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    expected = module.eval()(x).double()
    torch.testing.assert_close(net(x.double()), expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        net.weights[0].zero_()
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in before.items())


def test_the_slope_of_a_chain_is_that_between_its_layers():
    assert as_mlp(CHAINS["nested"]).slope == pytest.approx(0.3)
    assert as_mlp(CHAINS["relu"]).slope == 0
    assert type(as_mlp(CHAINS["linear"])) is LinearNetwork


def shared():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(3, 2))


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


def tied_biases():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    module[2].bias = module[0].bias
    return module


def tied_mlp():
    net = bnrank.MLP([3, 3, 3])
    net.layers[1].weight = net.layers[0].weight
    return net


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (tied_biases(), "shared between layers"),
        (tied_mlp(), "an MLP that was changed"),
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), r"got Tanh \(first at 1\)"),
        (nn.Conv2d(1, 1, 3), r"Conv2d"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "activation after the last Linear"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), "activation before the first Linear"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU(), nn.Linear(3, 3)), "two activations in a row"),
        (
            nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3)),
            "activations of slopes",
        ),
        (nn.Sequential(nn.Identity()), "without a Linear"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(3, 2)), "expected each to take"),
        (shared(), "shared between layers"),
        (tied(), "shared between layers"),
        (nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(2.0), nn.Linear(3, 3)), "slope: got 2"),
    ],
)
def test_what_is_no_chain_is_refused_by_name(module, said):
    with pytest.raises(TypeError, match=said):
        as_mlp(module)


def test_linear_layers_in_a_row_are_multiplied_where_asked():
    parts = [nn.Linear(4, 2, bias=False), nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 1, bias=False)]
    module, x = nn.Sequential(*parts, nn.Linear(1, 6)), torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    net = as_mlp(module, multiply_out=True)
    assert (net.widths, net.slope) == ([4, 5, 6], 0)
    torch.testing.assert_close(net(x.double()), copy.deepcopy(module).double()(x.double()))
    assert torch.linalg.matrix_rank(net.weights[0].detach()) == 2  # to float64, not to the module's precision
    with pytest.raises(TypeError, match="multiply_out=True"):
        as_mlp(module)


def test_multiplying_out_changes_nothing_else():
    assert as_mlp(CHAINS["linear"], multiply_out=True).depth == 2  # no activations: a chain as it is
    assert norm(as_mlp(CHAINS["some biases"], multiply_out=True)) == pytest.approx(norm(CHAINS["some biases"]))
    mixed = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.LeakyReLU(0.2), nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"slopes \[0.0, 0.2\]"):
        as_mlp(mixed, multiply_out=True)
    with pytest.raises(TypeError, match="expected each to take"):
        as_mlp(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), multiply_out=True)


def test_a_network_from_layers_has_those_layers():
    weights = [torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0], [4.0]])]
    net = from_layers(weights, [torch.tensor([0.5]), torch.tensor([0.0, 1.0])], slope=0.5)
    assert net.widths == [2, 1, 2]
    torch.testing.assert_close(
        net(torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)),
        torch.tensor([[-2.25, -2.0], [7.5, 11.0]], dtype=torch.float64),
    )
    with torch.no_grad():
        weights[0].zero_()
    assert float(net.weights[0].detach().abs().sum()) == 3  # a copy


@pytest.mark.parametrize(
    ("weights", "biases", "said"),
    [
        ([], [], "weights: got shapes"),
        ([torch.ones(3)], [], "at least one"),
        ([torch.ones(2, 3), torch.ones(2, 3)], [], "expected each to take"),
        ([torch.ones(2, 3)], [torch.ones(3)], "biases: got shapes"),
        ([torch.ones(2, 3), torch.ones(1, 2)], [torch.ones(2)], "biases: got shapes"),
    ],
)
def test_layers_that_do_not_fit_are_refused(weights, biases, said):
    with pytest.raises(ValueError, match=said):
        from_layers(weights, biases)


def test_a_linear_network_is_a_product_and_keeps_its_kind_on_disk(tmp_path):
    net = LinearNetwork([3, 4, 5, 2], seed=2)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    product = net.weights[2] @ net.weights[1] @ net.weights[0]
    torch.testing.assert_close(net(x), x @ product.T)
    back = load(save(net, tmp_path / "net.safetensors"))
    assert type(back) is LinearNetwork
    assert torch.equal(back(x), net(x))


def test_a_linear_network_trains_like_the_same_sequential():
    task = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=3, rank=2, seed=0)
    net = LinearNetwork([4, 5, 4], bias=True, dtype=torch.float64)
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)).double()
    other.load_state_dict(
        {"0.weight": net.weights[0], "0.bias": net.biases[0], "1.weight": net.weights[1], "1.bias": net.biases[1]}
    )
    runs = [
        bnrank.train(m, task, ridge=1e-2, steps=30, optimizer=Adam(lr=1e-2), dtype=torch.float64, progress=False)
        for m in (net, other)
    ]
    assert float(runs[0].summary.loss[0]) == pytest.approx(float(runs[1].summary.loss[0]), rel=1e-9)
