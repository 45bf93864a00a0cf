import copy
import functools
import math

import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank import Jacobian
from bnrank.measures import backward, ntk
from oracles import input_jacobian
from oracles import ntk as dense_ntk

normal = functools.partial(helpers.normal, dtype=torch.float32)


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
    found = Jacobian(net, x, chunk_size=chunk).matrices
    assert torch.allclose(found, expected, atol=1e-12)
    values = Jacobian(net, x, chunk_size=chunk).singular_values
    assert values.shape == (9, min(expected.shape[1:]))
    assert torch.allclose(values, torch.linalg.svdvals(expected), atol=1e-12)


@pytest.mark.filterwarnings("ignore::bnrank.measures.kinks.KinkWarning")
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_kinks_are_taken_as_pytorch_takes_them(slope):
    net = bnrank.MLP([2, 4, 4, 2], slope=slope, seed=0)
    x = torch.zeros(3, 2)  # all preactivations are 0
    assert torch.allclose(Jacobian(net, x).matrices, input_jacobian(net, x))


class Doubled(bnrank.MLP):
    def forward(self, x):
        return 2 * super().forward(x)


def test_closed_forms_are_for_plain_mlps_only():
    changed = bnrank.MLP([3, 4, 2], seed=0)
    nn.utils.parametrizations.orthogonal(changed.layers[0])
    for net in (Doubled([3, 4, 2], seed=0), changed):
        x = normal(5, 3)
        assert torch.allclose(Jacobian(net, x).matrices, input_jacobian(net, x))
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
    found = Jacobian(planted(k), x).rank()
    ranks = torch.linalg.matrix_rank(input_jacobian(planted(k), x), rtol=1e-6)
    assert found.rank == k == int(ranks.max())
    assert int(ranks[found.witness]) == k
    assert torch.equal(found.point, x[found.witness])
    assert found.rtol == 1e-6
    values = Jacobian(planted(k), x).singular_values
    assert torch.equal(found.singular_values, values[found.witness])
    full = ranks == k
    assert values[found.witness, k - 1] / values[found.witness, 0] == (values[:, k - 1] / values[:, 0])[full].max()


def test_the_tolerance_decides():
    net = bnrank.MLP([2, 2], bias=False)
    with torch.no_grad():
        net.weights[0].copy_(torch.diag(torch.tensor([1.0, 1e-3])))
    assert Jacobian(net, torch.ones(1, 2)).rank().rank == 2
    assert Jacobian(net, torch.ones(1, 2)).rank(rtol=1e-2).rank == 1
    x = torch.ones(3, 2)
    assert torch.allclose(Jacobian(net, x).log_pseudo_determinant(), torch.tensor(math.log(1e-3)).double())
    assert torch.allclose(Jacobian(net, x).log_pseudo_determinant(rtol=1e-2), torch.zeros(3).double())
    assert torch.allclose(Jacobian(net, x).log_pseudo_determinant(rank=1), torch.zeros(3).double())


def test_a_constant_network_has_rank_zero_and_the_empty_product():
    net, x = bnrank.MLP([3, 4, 2], init=0.0), normal(5, 3)
    assert Jacobian(net, x).rank().rank == 0
    assert torch.equal(Jacobian(net, x).log_pseudo_determinant(), torch.zeros(5).double())
    assert torch.equal(Jacobian(net, x).log_pseudo_determinant(rank=1), torch.full((5,), -math.inf).double())


def test_the_pseudo_determinant_is_multiplicative_for_square_linear_maps():
    a, b = bnrank.MLP([4, 4], seed=1), bnrank.MLP([4, 4], seed=2)
    x = normal(3, 4)
    together = Jacobian(nn.Sequential(a, b), x).log_pseudo_determinant()
    assert torch.allclose(
        together, Jacobian(a, x).log_pseudo_determinant() + Jacobian(b, x).log_pseudo_determinant(), atol=1e-9
    )


def test_samples_that_depend_on_each_other_are_refused():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="net: "):
        Jacobian(net, normal(5, 3)).rank()

    class Mean(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with pytest.raises(ValueError, match="depends on the others in its batch"):
        Jacobian(Mean(), normal(5, 3)).rank()


def test_errors_name_the_argument():
    net, x = bnrank.MLP([3, 2]), normal(4, 3)
    with pytest.raises(ValueError, match="rank: got 3, expected at most"):
        Jacobian(net, x).log_pseudo_determinant(rank=3)
    with pytest.raises(ValueError, match="rtol: got 2"):
        Jacobian(net, x).rank(rtol=2.0)
    with pytest.raises(ValueError, match="chunk_size: got 0"):
        Jacobian(net, x, chunk_size=0).rank()
    with pytest.raises(TypeError, match=r"x: got dtype torch.int64"):
        Jacobian(nn.Sequential(nn.Embedding(3, 2)), torch.ones(2, 2, dtype=torch.int64)).rank()
    with torch.no_grad():
        net.weights[0][0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        Jacobian(net, x).rank()


def test_everything_is_computed_once_from_parameters_copied_at_the_start(monkeypatch):
    net, x = bnrank.MLP([3, 5, 2], seed=0, dtype=torch.float64), normal(4, 3)
    for module in (net, nn.Sequential(net)):
        expected, trace = input_jacobian(module, x), bnrank.ntk.trace(module, x)
        together, first, later = (Jacobian(module, x) for _ in range(3))
        assert later.singular_values.shape == (4, 2)
        with torch.no_grad():
            net.weights[0].mul_(2.0)
        assert torch.allclose(first.ntk_trace, trace)
        assert torch.allclose(later.ntk_trace, trace)
        assert torch.allclose(together.matrices, expected)
        with monkeypatch.context() as patched:
            patched.setattr(together, "_derivatives", None)
            values = together.singular_values
            assert torch.allclose(values, torch.linalg.svdvals(expected))
            assert together.matrices is together.matrices
            assert together.rank().rank == 2
        assert not together.near_kinks().any()
        assert str(together).startswith(f"Jacobian of {type(module).__name__} at 4 samples of 3 inputs: rank 2 at")


def test_gradients_and_parameters_are_left_alone():
    net, x = Residual(), normal(4, 5)
    x.requires_grad_(True)
    Jacobian(net, x).rank()
    assert x.grad is None
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


# Many shapes of MLP against autograd -----------------------------------------------------------------------------

SHAPES = {
    "narrow inside": [5, 3, 2, 4],
    "narrow output": [3, 8, 8, 1],
    "one input": [1, 8, 8, 6],
    "wide ends": [9, 3, 3, 9],
    "wide output": [3, 5, 20],
    "wide input": [20, 5, 3],
    "one layer": [4, 6],
    "deep": [4, *[6] * 12, 4],
}


@pytest.mark.parametrize("widths", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_one_pass_gives_what_autograd_gives(widths, slope, bias, monkeypatch):
    net = mlp(widths, slope, bias, dtype=torch.float32)
    for n, block in ((1, 2**17), (7, 2**17), (7, 1)):
        monkeypatch.setattr(backward, "BLOCK_ENTRIES", block)
        monkeypatch.setattr(backward, "BLOCK_ROWS", min(block, 128))
        x = normal(n, widths[0])
        expected = torch.linalg.svdvals(input_jacobian(net, x))
        diagonal = torch.einsum("iiaa->i", dense_ntk(net, x))
        for chunk in (None, 1, 3):
            together = Jacobian(net, x, chunk_size=chunk)
            traces, values = together.ntk_trace, together.singular_values
            assert values.shape == (n, min(widths[0], widths[-1]))
            assert values.dtype == traces.dtype == torch.float64
            for found in (values, Jacobian(net, x, chunk_size=chunk).singular_values):
                assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)
            for found in (traces, ntk.trace(net, x, chunk_size=chunk)):
                assert torch.allclose(found, diagonal, rtol=1e-12)


def mlp(widths, slope=0.0, bias=True, seed=0, dtype=torch.float64):
    cls = bnrank.networks.LinearNetwork if slope == 1 else bnrank.MLP
    net = cls(widths, bias=bias, seed=seed, dtype=dtype)
    net.slope = slope
    for b in net.biases:
        b.data.normal_(generator=torch.Generator().manual_seed(seed))
    return net


def test_neurons_that_are_dead_at_all_samples_are_left_out_and_change_nothing():
    net = mlp([4, 9, 9, 9, 3])
    with torch.no_grad():
        net.biases[0][:4] = -100.0
        net.biases[1][3:] = -100.0
        net.biases[2][1] = -100.0
    x = normal(6, 4)
    expected, diagonal = input_jacobian(net, x), torch.einsum("iiaa->i", dense_ntk(net, x))
    layers = backward.Layers.of(net, torch.float64)
    weights = layers._alive(layers.forward(x.double()).slopes)[0].weights
    assert weights[3].shape[1] < 9
    assert weights[2].shape[1] <= 6
    assert torch.allclose(next(Jacobian(net, x).chunks()), expected)
    for measured in (net, dead(net)):
        together = Jacobian(measured, x)
        traces, values = together.ntk_trace, together.singular_values
        assert torch.allclose(values, torch.linalg.svdvals(input_jacobian(measured, x)))
        assert torch.allclose(traces, torch.einsum("iiaa->i", dense_ntk(measured, x)))
    assert torch.allclose(ntk.trace(net, x), diagonal)


def dead(net):
    """The same with a layer without an active neuron."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net.biases[1].fill_(-100.0)
    return net


def test_bounds_on_the_memory():
    """More samples do not make larger pieces; a given chunk is the size of a piece."""
    net = mlp([20, 100, 100, 20])
    pieces = [len(j) for j in Jacobian(net, normal(5000, 20)).chunks()]
    assert max(pieces) <= 2**20 // (2 * 240)
    assert [len(j) for j in Jacobian(net, normal(50, 20), chunk_size=20).chunks()] == [20, 20, 10]


# Schatten --------------------------------------------------------------------------------------------------------


def test_the_schatten_norm_is_the_sum_of_powers():
    net, x = mlp([4, 7, 6, 3]), normal(5, 4)
    values = torch.linalg.svdvals(input_jacobian(net, x))
    assert torch.allclose(Jacobian(net, x).schatten(), (values ** (2 / 3)).sum(1))
    assert torch.allclose(Jacobian(nn.Sequential(net), x).schatten(5), (values ** (2 / 5)).sum(1))
    chain = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))
    values = Jacobian(chain, x).singular_values
    assert torch.allclose(Jacobian(chain, x).schatten(), values.sum(1))
    with pytest.raises(ValueError, match="depth: got None, expected L of a module that is no chain"):
        Jacobian(Residual(), normal(4, 5)).schatten()
    with pytest.raises(ValueError, match="depth: got 0"):
        Jacobian(net, x).schatten(0)


def test_rounding_does_not_count_as_a_small_singular_value():
    net, x = planted(2), normal(10, 6)
    values = Jacobian(net, x).singular_values
    assert float(values[:, 2:].max()) > 0  # rounding
    depth = 24
    assert torch.allclose(Jacobian(net, x).schatten(depth), (values[:, :2] ** (2 / depth)).sum(1))
    assert (Jacobian(net, x).schatten(depth, rtol=0.0) > Jacobian(net, x).schatten(depth)).all()
    assert torch.equal(Jacobian(bnrank.MLP([3, 4, 2], init=0.0), normal(5, 3)).schatten(), torch.zeros(5).double())


def test_the_schatten_norm_is_below_the_parameters():
    """T4, with equality for balanced linear networks."""
    net, x = mlp([4, 7, 6, 3]), normal(50, 4)
    norm = sum(float((p.detach() ** 2).sum()) for p in net.parameters())
    assert 3 * float(Jacobian(net, x).schatten().max()) <= norm
    linear = bnrank.networks.LinearNetwork([3, 3, 3, 3, 3], dtype=torch.float64)
    with torch.no_grad():
        for weight in linear.weights:
            weight.copy_(torch.diag(torch.tensor([2.0, 1.0, 0.5]).double()))
    norm = sum(float((p.detach() ** 2).sum()) for p in linear.parameters())
    assert 4 * float(Jacobian(linear, normal(1, 3)).schatten()) == pytest.approx(norm)


def test_every_public_function_refuses_what_is_not_finite():
    for module in (bnrank.MLP([3, 4, 2]), nn.Sequential(nn.Linear(3, 2))):
        with torch.no_grad():
            next(module.parameters())[0, 0] = torch.inf
        name = next(iter(dict(module.named_parameters())))
        x = normal(4, 3)
        for call in (
            lambda: Jacobian(module, x).chunks(),  # noqa: B023
            lambda: Jacobian(module, x).singular_values,  # noqa: B023
            lambda: Jacobian(module, x).rank(),  # noqa: B023
            lambda: Jacobian(module, x).log_pseudo_determinant(),  # noqa: B023
            lambda: Jacobian(module, x).schatten(2),  # noqa: B023
            lambda: Jacobian(module, x).near_kinks(),  # noqa: B023
            lambda: ntk.trace(module, x),  # noqa: B023
            lambda: Jacobian(module, x).ntk_trace,  # noqa: B023
            lambda: ntk.gram(module, x),  # noqa: B023
            lambda: ntk.top_eigenvalue(module, x),  # noqa: B023
            lambda: ntk.mixed_derivative_norm(module, x),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=f"NaN or infinite entries in {name}"):
                call()
    huge = mlp([3, 4, 2])
    with torch.no_grad():
        for weight in huge.weights:
            weight.fill_(1e300)
    with pytest.raises(ValueError, match="its Jacobian has NaN or infinite entries"):
        Jacobian(huge, normal(4, 3)).rank()
    with pytest.raises(ValueError, match="overflow"):
        ntk.trace(huge, normal(4, 3))


class SquaredLength(nn.Module):
    def forward(self, x):
        return x.square().sum(-1)


def test_a_module_of_one_output_may_leave_the_axis_out_and_gradients_may_be_off_outside():
    x = normal(6, 3).double()
    with torch.no_grad():
        (found,) = Jacobian(SquaredLength(), x).chunks()
    torch.testing.assert_close(found, 2 * x[:, None])
