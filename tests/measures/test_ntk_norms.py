"""The largest eigenvalue of the kernel (T26, E14) and the norm of its mixed derivative (T25)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank import Jacobian
from bnrank.measures import ntk, products
from helpers import normal
from oracles import float64
from oracles import ntk as dense_ntk


def mlp(widths, slope=0.0, bias=True, seed=0):
    cls = bnrank.networks.LinearNetwork if slope == 1 else bnrank.MLP
    net = cls(widths, bias=bias, seed=seed)
    net.slope = slope
    for b in net.biases:
        b.data.normal_(generator=torch.Generator().manual_seed(seed))
    return net


class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + (self.a(x) ** 2)[:, :2]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.last = nn.Linear(3, 3), nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.last(torch.sigmoid(self.a(torch.relu_(self.a(x)))))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.Flatten(), nn.Linear(8, 3))


def attention():
    return nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(8, 2))


MLPS = {
    f"{widths}, {slope}, {bias}": (mlp(widths, slope, bias), (widths[0],))
    for widths in ([3, 7, 6, 2], [3, 5, 1], [4, 3], [1, 5, 5, 5, 4])
    for slope, bias in ((0.0, True), (0.3, False), (-0.5, True), (1.0, False))
}
OTHERS = {
    "smooth": (Smooth(), (3,)),
    "tied": (Tied(), (3,)),
    "convolution": (convolution(), (1, 4, 4)),
    "attention": (attention(), (2, 4)),
    "wrapped": (nn.Sequential(mlp([3, 7, 6, 2])), (3,)),
}
NETWORKS = MLPS | OTHERS


# Largest eigenvalue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dense", [0, 10**6])
def test_the_top_eigenvalue_is_that_of_the_whole_matrix(name, dense, monkeypatch):
    monkeypatch.setattr(products, "DENSE", dense)
    net, shape = NETWORKS[name]
    for n in (1, 9):
        x = normal(n, *shape)
        kernel = dense_ntk(net, x)
        matrix = kernel.permute(0, 2, 1, 3).reshape(n * kernel.shape[2], -1)
        if dense == 0 and len(matrix) < 3:
            continue  # a Lanczos method needs more than two dimensions
        expected = float(torch.linalg.eigvalsh(matrix)[-1])
        assert ntk.top_eigenvalue(net, x) == pytest.approx(expected, rel=1e-10)
        assert ntk.top_eigenvalue(net, x, chunk_size=4, seed=1, normalized=True) == pytest.approx(
            expected / n, rel=1e-10
        )


def test_more_samples_than_parameters_or_than_are_kept():
    net, x = mlp([3, 2, 1]), normal(200, 3)
    matrix = dense_ntk(net, x).reshape(200, 200)
    expected = float(torch.linalg.eigvalsh(matrix)[-1])
    assert ntk.top_eigenvalue(net, x) == pytest.approx(expected, rel=1e-12)
    assert ntk.top_eigenvalue(nn.Sequential(net), x) == pytest.approx(expected, rel=1e-12)
    assert ntk.top_eigenvalue(net, x, chunk_size=64) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("chunk_size", [4, None])
@pytest.mark.parametrize("name", ["[3, 7, 6, 2], -0.5, True", "tied", "smooth", "convolution"])
def test_the_two_products_are_adjoint_and_those_of_the_jacobian(name, chunk_size):
    net, shape = NETWORKS[name]
    x = normal(6, *shape)
    pair = products.Products(bnrank.networks.functional.Functional(net), x, chunk_size)
    u, v = normal(pair.n * pair.d_out, seed=1), normal(pair.count, seed=2)
    assert float(u @ pair.forward(v)) == pytest.approx(float(pair.backward(u) @ v))
    step = 1e-6
    moved = float64(net)
    parameters = list(moved.parameters())
    outputs = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, v.split([p.numel() for p in parameters]), strict=True):
                p.add_(sign * step * d.view_as(p))
            outputs.append(moved(x.clone()).flatten())
            for p, d in zip(parameters, v.split([p.numel() for p in parameters]), strict=True):
                p.sub_(sign * step * d.view_as(p))
    assert torch.allclose(pair.forward(v), (outputs[0] - outputs[1]) / (2 * step), atol=1e-6)


def test_gradient_descent_stays_at_a_minimum_only_below_two_over_the_step():
    """T26: with eta (2/N) ||J||_op^2 = 1.8 it converges, with 2.2 it diverges."""
    net = bnrank.MLP([3, 8, 8, 2], seed=0, dtype=torch.float64)
    x = normal(5, 3)
    y = net(x).detach()  # the network fits the data exactly
    sharpness = 2 * ntk.top_eigenvalue(net, x, normalized=True)
    hessian = torch.autograd.functional.hessian(loss_of(net, x, y), parameters_of(net))
    assert float(torch.linalg.eigvalsh(hessian)[-1]) == pytest.approx(sharpness, rel=1e-9)
    for factor, converges in ((1.8, True), (2.2, False)):
        loss, theta = loss_of(net, x, y), parameters_of(net)
        theta = theta + 1e-7 * torch.linalg.eigh(hessian).eigenvectors[:, -1]
        before = float(loss(theta))
        for _ in range(20):
            theta.requires_grad_(True)
            (gradient,) = torch.autograd.grad(loss(theta), theta)
            theta = theta.detach() - factor / sharpness * gradient
        assert (float(loss(theta)) < before) == converges


def parameters_of(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def loss_of(net, x, y):
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def loss(theta):
        parts = theta.split([s.numel() for s in shapes.values()])
        parameters = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return ((torch.func.functional_call(net, parameters, (x,)) - y) ** 2).sum(1).mean()

    return loss


def test_a_bound_on_the_operator_norm_is_none_on_the_trace():
    """E14: Theta(X, X) = I for N d_out orthogonal gradients."""
    net = bnrank.MLP([50, 3], bias=False)
    x = torch.eye(50)
    assert ntk.top_eigenvalue(net, x, normalized=True) == pytest.approx(0.02)
    assert float(ntk.trace(net, x).mean()) == pytest.approx(3.0)


def test_a_kernel_that_is_zero():
    net, x = bnrank.MLP([3, 8, 8, 2], init=0.0, bias=False), normal(40, 3)
    for module in (net, nn.Sequential(net)):
        assert ntk.top_eigenvalue(module, x) == 0.0
        assert torch.equal(ntk.mixed_derivative_norm(module, x[:2]), torch.zeros(2).double())


def test_an_accuracy_out_of_reach_is_named(monkeypatch):
    """Theta = X X^T with eigenvalues close to each other takes a Lanczos method many steps."""
    net, x = bnrank.MLP([200, 1], bias=False), torch.diag(torch.linspace(1.0, 1.0001, 200, dtype=torch.float64))
    assert ntk.top_eigenvalue(net, x) == pytest.approx(1.0001**2, rel=1e-10)
    monkeypatch.setattr(products, "ITERATIONS", 1)
    with pytest.raises(ValueError, match="rtol: got 1e-10, not reached in 1 restarts"):
        ntk.top_eigenvalue(net, x)


# Mixed derivative ------------------------------------------------------------------------------------------------


def second_derivatives(net, x):
    """d^2 f_a / dx_i dtheta_p as (d_in d_out, P) matrices, one per sample, a row at a time."""
    net = float64(net)
    parameters = list(net.parameters())
    matrices = []
    for sample in x.double():
        sample = sample.clone().requires_grad_(True)
        rows = []
        for output in net(sample[None]).flatten():
            (slope,) = torch.autograd.grad(output, sample, create_graph=True)
            rows.append([gradient(entry, parameters) for entry in slope.flatten()])
        matrices.append(torch.stack([torch.stack(row) for row in rows], 1).flatten(0, 1))
    return matrices


def gradient(value, parameters):
    if not value.requires_grad:
        return torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    found = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize("name", [*MLPS, "wrapped"])
@pytest.mark.parametrize("dense", [0, 10**6])
def test_the_mixed_norm_is_that_of_the_second_derivatives(name, dense, monkeypatch):
    monkeypatch.setattr(products, "DENSE", 3 if dense == 0 else dense)
    monkeypatch.setattr(ntk, "FORMED", dense)
    net, shape = NETWORKS[name]
    x = normal(3, *shape)
    expected = [float(torch.linalg.matrix_norm(m, 2)) ** 2 for m in second_derivatives(net, x)]
    assert ntk.mixed_derivative_norm(net, x, chunk_size=2).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["[3, 5, 1], 0.3, False", "[3, 7, 6, 2], -0.5, True"])
def test_it_is_the_derivative_of_the_kernel(name):
    """Finite differences of Theta(x, y) in x and y, as a (d_in d_out) x (d_in d_out) matrix."""
    net, shape = NETWORKS[name]
    x, step = normal(1, *shape), 1e-4
    d = x.numel()
    moved = x + step * torch.cat([torch.eye(d), -torch.eye(d)]).double().view(2 * d, *shape)
    kernel = dense_ntk(net, moved)  # (2 d, 2 d, d_out, d_out)
    difference = (kernel[:d, :d] - kernel[:d, d:] - kernel[d:, :d] + kernel[d:, d:]) / (4 * step**2)
    matrix = difference.permute(0, 2, 1, 3).reshape(d * kernel.shape[2], -1)
    expected = float(torch.linalg.matrix_norm(matrix, 2))
    assert float(ntk.mixed_derivative_norm(net, x)) == pytest.approx(expected, rel=1e-5)


@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    slope=st.sampled_from([0.0, 1.0]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_lower_bound_of_t25(widths, slope, bias, seed):
    net, x = mlp(widths, slope, bias, seed), normal(5, widths[0], seed=seed)
    depth = len(widths) - 1
    bound = depth * Jacobian(net, x).singular_values[:, 0] ** (2 - 2 / depth)
    assert (ntk.mixed_derivative_norm(net, x) >= bound * (1 - 1e-9)).all()


def test_scalar_linear_chains_reach_the_bound():
    """E4: exactly L s^{2 - 2/L}, half of what is printed."""
    for depth in (1, 2, 5):
        net = bnrank.networks.LinearNetwork([1] * (depth + 1), dtype=torch.float64)
        for weight in net.weights:
            weight.data.fill_(1.3)
        s = 1.3**depth
        assert float(ntk.mixed_derivative_norm(net, normal(1, 1))) == pytest.approx(depth * s ** (2 - 2 / depth))


def test_errors_name_what_is_wrong():
    net, x = mlp([3, 4, 2]), normal(4, 3)
    for call in (ntk.top_eigenvalue, ntk.mixed_derivative_norm):
        with pytest.raises(ValueError, match="chunk_size: got 0"):
            call(net, x, chunk_size=0)
        with pytest.raises(ValueError, match="rtol: got 1"):
            call(net, x, rtol=1.0)
        with pytest.raises(ValueError, match="seed: got -1"):
            call(net, x, seed=-1)
        with pytest.raises(ValueError, match="x: got shape"):
            call(net, normal(4, 2))
    with pytest.raises(ValueError, match="no parameters"):
        ntk.top_eigenvalue(nn.ReLU(), x)
    with pytest.raises(ValueError, match="depends on the others"):
        ntk.top_eigenvalue(nn.Sequential(nn.Linear(3, 2), nn.Softmax(0)), x)
    with pytest.raises(ValueError, match="Wrapped cannot be differentiated as often"):
        ntk.top_eigenvalue(Wrapped(), x)
    with pytest.raises(TypeError, match="net: got Tanh"):
        ntk.mixed_derivative_norm(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), x)
    with pytest.raises(TypeError, match=r"x: got dtype torch\.int64"):
        ntk.mixed_derivative_norm(nn.Sequential(nn.Embedding(3, 2)), torch.ones(2, 2, dtype=torch.int64))
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    numbers = torch.arange(20).reshape(10, 2) % 5
    assert ntk.top_eigenvalue(embedding, numbers) > 0


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return Once.apply(x, self.w)


def test_the_network_is_left_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    ntk.top_eigenvalue(net, normal(40, 3))
    assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert all(m.training for m in net.modules())
    assert torch.equal(random, torch.get_rng_state())
