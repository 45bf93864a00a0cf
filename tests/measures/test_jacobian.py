import math

import pytest
import torch
from torch import nn

import bnrank
from bnrank.measures import jacobian, ntk
from oracles import input_jacobian
from oracles import ntk as dense_ntk


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.c(x + torch.relu_(self.b(torch.tanh(self.a(x)))))


NETWORKS = {
    "mlp": (bnrank.MLP([4, 7, 6, 3], seed=0), (4,)),
    "wide output": (bnrank.MLP([2, 7, 6, 5], slope=-0.3, bias=False, seed=0), (2,)),
    "one layer": (bnrank.MLP([4, 3], seed=0), (4,)),
    "residual": (Residual(), (5,)),
    "convolution": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.Flatten(), nn.Linear(8, 3)),
        (1, 4, 4),
    ),
    "image to image": (nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.GELU()), (2, 4)),
    "recurrent": (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 2)), nn.Linear(2, 2), nn.Flatten()), (4,)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_jacobians_equal_those_of_autograd(name, chunk):
    net, shape = NETWORKS[name]
    x = normal(9, *shape)
    expected = input_jacobian(net, x)
    found = torch.cat(list(jacobian.jacobians(net, x, chunk=chunk)))
    assert torch.allclose(found, expected, atol=1e-12)
    values = jacobian.singular_values(net, x, chunk=chunk)
    assert values.shape == (9, min(expected.shape[1:]))
    assert torch.allclose(values, torch.linalg.svdvals(expected), atol=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_kinks_are_taken_as_pytorch_takes_them(slope):
    net = bnrank.MLP([2, 4, 4, 2], slope=slope, seed=0)
    x = torch.zeros(3, 2)  # all preactivations are 0
    assert torch.allclose(torch.cat(list(jacobian.jacobians(net, x))), input_jacobian(net, x))


class Doubled(bnrank.MLP):
    def forward(self, x):
        return 2 * super().forward(x)


def test_closed_forms_are_for_plain_mlps_only():
    changed = bnrank.MLP([3, 4, 2], seed=0)
    nn.utils.parametrizations.orthogonal(changed.layers[0])
    for net in (Doubled([3, 4, 2], seed=0), changed):
        x = normal(5, 3)
        assert torch.allclose(torch.cat(list(jacobian.jacobians(net, x))), input_jacobian(net, x))
        assert torch.allclose(ntk.gram(net, x), dense_ntk(net, x))


def planted(k, d=6):
    """x -> B relu(A x), A of rank k."""
    net = bnrank.MLP([d, d, d], seed=0, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0].copy_(normal(d, k).double() @ normal(k, d, seed=1).double())
    return net


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_planted_rank_is_found_with_a_witness(k):
    x = normal(40, 6)
    found = jacobian.rank(planted(k), x)
    ranks = torch.linalg.matrix_rank(input_jacobian(planted(k), x), rtol=1e-6)
    assert found.rank == k == int(ranks.max())
    assert int(ranks[found.witness]) == k
    assert torch.equal(found.point, x[found.witness])
    assert found.rtol == 1e-6
    values = jacobian.singular_values(planted(k), x)
    assert torch.equal(found.singular_values, values[found.witness])
    full = ranks == k
    assert values[found.witness, k - 1] / values[found.witness, 0] == (values[:, k - 1] / values[:, 0])[full].max()


def test_the_tolerance_decides():
    net = bnrank.MLP([2, 2], bias=False)
    with torch.no_grad():
        net.weights[0].copy_(torch.diag(torch.tensor([1.0, 1e-3])))
    assert jacobian.rank(net, torch.ones(1, 2)).rank == 2
    assert jacobian.rank(net, torch.ones(1, 2), rtol=1e-2).rank == 1
    x = torch.ones(3, 2)
    assert torch.allclose(jacobian.log_pseudo_determinant(net, x), torch.tensor(math.log(1e-3)).double())
    assert torch.allclose(jacobian.log_pseudo_determinant(net, x, rtol=1e-2), torch.zeros(3).double())
    assert torch.allclose(jacobian.log_pseudo_determinant(net, x, rank=1), torch.zeros(3).double())


def test_a_constant_network_has_rank_zero_and_the_empty_product():
    net, x = bnrank.MLP([3, 4, 2], init=0.0), normal(5, 3)
    assert jacobian.rank(net, x).rank == 0
    assert torch.equal(jacobian.log_pseudo_determinant(net, x), torch.zeros(5).double())
    assert torch.equal(jacobian.log_pseudo_determinant(net, x, rank=1), torch.full((5,), -math.inf).double())


def test_the_pseudo_determinant_is_multiplicative_for_square_linear_maps():
    a, b = bnrank.MLP([4, 4], seed=1), bnrank.MLP([4, 4], seed=2)
    x = normal(3, 4)
    together = jacobian.log_pseudo_determinant(nn.Sequential(a, b), x)
    assert torch.allclose(
        together, jacobian.log_pseudo_determinant(a, x) + jacobian.log_pseudo_determinant(b, x), atol=1e-9
    )


def test_samples_that_depend_on_each_other_are_refused():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="module: "):
        jacobian.singular_values(net, normal(5, 3))

    class Mean(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with pytest.raises(ValueError, match="depends on the others in its batch"):
        jacobian.singular_values(Mean(), normal(5, 3))


def test_errors_name_the_argument():
    net, x = bnrank.MLP([3, 2]), normal(4, 3)
    with pytest.raises(ValueError, match="rank: got 3, expected at most"):
        jacobian.log_pseudo_determinant(net, x, rank=3)
    with pytest.raises(ValueError, match="rtol: got 2"):
        jacobian.rank(net, x, rtol=2.0)
    with pytest.raises(ValueError, match="chunk: got 0"):
        jacobian.singular_values(net, x, chunk=0)
    with pytest.raises(TypeError, match=r"x: got dtype torch.int64"):
        jacobian.singular_values(nn.Sequential(nn.Embedding(3, 2)), torch.ones(2, 2, dtype=torch.int64))
    with torch.no_grad():
        net.weights[0][0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        jacobian.singular_values(net, x)


def test_gradients_and_parameters_are_left_alone():
    net, x = Residual(), normal(4, 5)
    x.requires_grad_(True)
    jacobian.singular_values(net, x)
    assert x.grad is None
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
