"""`bnrank.check` on networks where rounding, kinks and extreme weights could fake a violation."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import bnrank
from bnrank import constructions
from bnrank.networks import LinearNetwork, from_layers

D = torch.float64
ONE = torch.ones(1, 1, dtype=D)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def points(n, d, seed=0, positive=False):
    draw = torch.rand if positive else torch.randn
    return draw(n, d, generator=generator(seed), dtype=D)


def check(net, x, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnrank.measures.KinkWarning)
        verdicts = bnrank.check(net, x, *arguments, **options)
    assert verdicts.ok, str(verdicts)
    return verdicts


def projection():
    u = torch.linalg.qr(points(5, 2, 3))[0]
    return u @ u.T


def rank_one_product():
    """Forty weights u_l u_{l-1}^T: f has one singular value 1, and rounding."""
    units = [torch.linalg.qr(points(10, 10, k))[0][:, :1] for k in range(41)]
    return from_layers([units[k + 1] @ units[k].T for k in range(40)], slope=1.0)


def network_times(factor):
    net = bnrank.MLP([2, 5, 5, 2], dtype=D)
    return from_layers([factor * w.detach() for w in net.weights])


X3 = points(20, 3, positive=True)
CONSTRUCTED = {
    "interpolant": lambda: (
        constructions.line_interpolant(points(5, 10, 3), 0.3 * points(5, 10, 4), 6),
        points(5, 10, 3),
    ),
    "identity": lambda: (constructions.identity(3, 5), X3),
    "identity, signed": lambda: (constructions.identity(3, 5, slope=-0.5, signed=True), points(10, 3)),
    "completely positive": lambda: (
        constructions.completely_positive(torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=D)), 6, torch.eye(3, dtype=D)),
        X3,
    ),
    "linear": lambda: (constructions.linear(points(4, 5), 7), points(10, 5, 1)),
    "projection": lambda: (constructions.linear(projection(), 6), points(10, 5, 1)),
    "powers of a projection": lambda: (from_layers([projection()] * 5), points(10, 5, 1)),
    "diagonal": lambda: (constructions.diagonal(torch.tensor([2.0, -0.5, 0.0], dtype=D), 5), points(10, 3)),
    "cross": lambda: (constructions.cross(), torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.3, 2.0], [0.0, 0.0]], dtype=D)),
    "geodesic": lambda: (constructions.diverging_geodesic(20), X3),
    "maximum": lambda: (constructions.max_of_affine(points(5, 3), points(5, 1)[:, 0]), points(10, 3)),
    "deepened": lambda: (constructions.deepen(bnrank.MLP([3, 2, 4], dtype=D), 9), points(10, 3)),
}
EXTREME = {
    "up and down": (from_layers([ONE * 1e155, ONE * 1e-155]), ONE),
    "large": (from_layers([ONE * 1e80] * 2), torch.linspace(0.1, 1, 4, dtype=D)[:, None]),
    "very large": (from_layers([ONE * 1e120] * 3), torch.linspace(0.1, 1, 4, dtype=D)[:, None]),
    "large inputs": (from_layers([ONE] * 3), torch.linspace(1, 4, 4, dtype=D)[:, None] * 1e160),
    "next to nothing": (from_layers([ONE * 1e-300] * 3), torch.linspace(1, 4, 4, dtype=D)[:, None]),
    "huge and random": (network_times(1e150), points(6, 2)),
    "small and random": (network_times(1e-150), points(6, 2)),
    "tiny": (from_layers([ONE * 1e-150] * 3), torch.linspace(1, 4, 4, dtype=D)[:, None]),
    "constant and small": (
        from_layers([ONE * 0.7, ONE * 1e-4], [torch.tensor([1.0], dtype=D), torch.tensor([300.0], dtype=D)]),
        torch.tensor([[1e-3], [2.37e-3]], dtype=D),
    ),
    "rank from rounding": (
        from_layers([torch.diag(torch.tensor([1.0, 1e-8])), torch.diag(torch.tensor([1e-8, 1.0]))]).float(),
        torch.rand(30, 2, generator=generator()),
    ),
    "orthogonal directions": (rank_one_product(), points(5, 10)),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_constructed_networks_violate_nothing(name):
    net, x = CONSTRUCTED[name]()
    check(net, x)


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("rtol", [1e-6, 0.0])
def test_extreme_weights_violate_nothing_and_stop_nothing(name, rtol):
    check(*EXTREME[name], rtol=rtol)


def test_values_beyond_floats_are_inconclusive_by_name():
    assert "1e150" in check(*EXTREME["large inputs"], only="T18")["T18"].reason


def test_a_rank_that_is_rounding_of_the_weights_is_no_factorization():
    net, x = EXTREME["rank from rounding"]
    found = bnrank.rank(net, x)
    assert (found.lower, found.upper, found.relative_error) == (2, 2, pytest.approx(0, abs=1e-5))


def test_on_kinks_alone_what_needs_a_derivative_is_not_applicable():
    net = bnrank.MLP([2, 4, 4, 2], bias=False)
    verdicts = check(net, torch.zeros(3, 2))
    assert verdicts["T24"].reason == "some sample is off the kinks: all 3 are on kinks"
    assert verdicts.about["samples on a kink"] == 3


def test_a_neuron_out_of_balance_is_not_called_balanced():
    penalty, a = 1e-3, 2.0
    x = 2 * torch.eye(4, dtype=D)
    y = x * (a * a + penalty)
    y[3] = 0
    first, second = a * torch.eye(4, dtype=D), a * torch.eye(4, dtype=D)
    first[3, 3], second[3, 3] = 0.05, 0.0
    neurons = check(from_layers([first, second]), x, y, penalty, only="T14")[1]
    assert (neurons.left, neurons.right) == (pytest.approx(0.0025), 0.0)
    assert neurons.status == "inconclusive"
    assert "are explained" in neurons.reason


def test_the_affine_network_is_the_function_beside_the_samples():
    net = from_layers([ONE, ONE], [torch.tensor([5.0], dtype=D), torch.tensor([-4.0], dtype=D)])
    found = bnrank.cost.bracket(net, torch.tensor([[-1.0], [2.0]], dtype=D), domain="data")
    assert found.how == "affine"
    beside = torch.tensor([[-1.001], [2.001]], dtype=D)
    torch.testing.assert_close(found.network(beside), net(beside))
    assert found.upper == pytest.approx(sum(float((p.detach() ** 2).sum()) for p in found.network.parameters()))


class Stopped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.detach())


def test_odd_modules_are_told_what_is_missing():
    x = torch.randn(6, 3, generator=generator())
    stopped = check(Stopped(), x, x[:, :2], 0.1)
    assert "differentiated" in stopped["T4"].reason + stopped["T5"].reason
    assert check(nn.ReLU(), x, x, 0.1)["T14"].status == "not applicable"
    shared = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
    shared[2].weight.data = shared[0].weight.data.T
    with pytest.raises(ValueError, match=r"same memory \(0\.weight and 2\.weight\)"):
        bnrank.check(shared, x)


def test_a_deep_linear_network_at_its_optimum_is_tight():
    a = points(3, 3)
    verdicts = check(constructions.linear(a, 8), points(10, 3, 1))
    for id_ in ("T2", "T4"):
        assert verdicts[id_].slack == pytest.approx(0, abs=1e-9)
    assert isinstance(constructions.linear(a, 8), LinearNetwork)
    assert math.isfinite(verdicts["T1"].left)


class _Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 2, dtype=x.dtype)


def test_outputs_that_no_parameter_enters_have_gradient_zero() -> None:
    about = bnrank.check(_Constant(), torch.randn(6, 3), torch.zeros(6, 2), 0.1).about
    assert about["cost"] == 2.0
    assert about["stationarity"] == 1.0  # all of the gradient is that of the ridge
