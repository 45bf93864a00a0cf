import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank.networks.mlp import from_layers
from bnrank.theory import structure
from bnrank.theory.path import Path
from helpers import network, norm, normal
from oracles import input_jacobian, layer_values, parameter_jacobian

SLOPES = [0.0, 0.3, -0.5, 0.95, 1.0]
quick = settings(max_examples=15, deadline=None, derandomize=True)
networks = {
    "widths": st.lists(st.integers(1, 6), min_size=2, max_size=7),
    "slope": st.sampled_from(SLOPES),
    "bias": st.booleans(),
    "scale": st.floats(0.3, 2.0),
    "seed": st.integers(0, 10**6),
}


def projector(matrix, rank):
    """The orthogonal projection on the span of the first left singular vectors."""
    u = torch.linalg.svd(matrix)[0][:, :rank]
    return u @ u.T


def slow_terms(net, x, k):
    """T21 from explicit n x n projections and autograd Jacobians of every a_l."""
    depth, weights = net.depth, [w.detach() for w in net.weights]

    def activation(layer, sample):
        for i in range(layer):
            z = weights[i] @ sample + (net.biases[i].detach() if net.bias else 0.0)
            sample = torch.where(z > 0, z, net.slope * z)
        return sample

    whole = input_jacobian(net, x[None])[0]
    right = torch.linalg.svd(whole)[2][:k].T
    first, second, directions = [], [], right
    for l in range(1, depth + 1):  # noqa: E741
        product = weights[l - 1] @ projector(directions, k)
        u, _, v = torch.linalg.svd(product)
        first.append(float(((weights[l - 1] - u[:, :k] @ v[:k]) ** 2).sum()))
        if l == depth:
            break
        z = weights[l - 1] @ activation(l - 1, x) + (net.biases[l - 1].detach() if net.bias else 0.0)
        d = torch.diag(torch.where(z > 0, torch.ones_like(z), net.slope))
        second.append(k - float(((d @ projector(product, k)) ** 2).sum()))
        directions = torch.autograd.functional.jacobian(lambda s, layer=l: activation(layer, s), x) @ right
    biases = [float((b.detach() ** 2).sum()) for b in net.biases] or [0.0] * depth
    return first, [*second, 0.0], biases


@quick
@given(**networks)
def test_t21_terms_are_those_of_explicit_projections(widths, slope, bias, scale, seed):
    net, x = network(widths, slope, bias, scale, seed), normal(widths[0], seed=seed + 1)
    found = structure.weight_structure(net, x)
    k = found.rank
    assert k == torch.linalg.matrix_rank(input_jacobian(net, x[None])[0], rtol=1e-6)
    for mine, slow in zip((found.weights, found.nonlinearity, found.biases), slow_terms(net, x, k), strict=True):
        assert torch.allclose(mine, torch.tensor(slow, dtype=torch.float64), atol=1e-7)
    values = torch.linalg.svdvals(input_jacobian(net, x[None])[0])[:k]
    assert found.log_pseudo_determinant == pytest.approx(float(values.log().sum()), abs=1e-8)
    assert found.slack == pytest.approx(norm(net) - k * net.depth - 2 * float(values.log().sum()), abs=1e-7)


@quick
@given(**networks)
def test_t21_holds_for_every_k_up_to_the_rank(widths, slope, bias, scale, seed):
    net, x = network(widths, slope, bias, scale, seed), normal(widths[0], seed=seed + 1)
    rank = structure.weight_structure(net, x).rank
    slacks = []
    for k in range(rank + 1):
        found = structure.weight_structure(net, x, rank=k)
        assert found.total <= found.slack + 1e-9 * (1 + abs(found.slack))
        assert float(torch.cat([found.weights, found.nonlinearity, found.biases]).min()) >= -1e-9
        slacks.append(found.slack)
        for p in (0.05, 0.3, 0.9):
            assert len(found.layers_within(p)) >= (1 - p) * net.depth
        for u, v, weight in zip(found.left, found.right, net.weights, strict=True):
            assert u.shape == (weight.shape[0], k)
            assert v.shape == (weight.shape[1], k)
            assert torch.allclose(u.T @ u, torch.eye(k, dtype=torch.float64), atol=1e-9)
            assert torch.allclose(v.T @ v, torch.eye(k, dtype=torch.float64), atol=1e-9)
    values = torch.linalg.svdvals(input_jacobian(net, x[None])[0])[:rank]
    assert slacks[int((values > math.exp(-net.depth / 2)).sum())] == pytest.approx(min(slacks), abs=1e-7)


def rotation(n, seed):
    return torch.linalg.qr(normal(n, n, seed=seed))[0]


def test_t21_is_an_equality_for_partial_isometries_and_grows_away_from_them():
    q = rotation(5, 1)[:, :2]
    isometries = [q @ rotation(2, 2), rotation(2, 3) @ q.T, rotation(4, 4)[:, :2]]
    net = from_layers(isometries, slope=1.0)
    found = structure.weight_structure(net, normal(2))
    assert (found.rank, round(found.total, 9), round(found.slack, 9)) == (2, 0.0, 0.0)
    assert found.layers_within(0.5) == (1, 2, 3)
    stretched = structure.weight_structure(
        from_layers([isometries[0], 2 * isometries[1], isometries[2]], slope=1.0), normal(2)
    )
    assert stretched.weights.tolist() == pytest.approx([0, 2.0, 0], abs=1e-9)  # two values 2 instead of 1
    assert stretched.slack == pytest.approx(2 * (4 - 1 - 2 * math.log(2)))


def test_t21_sees_a_nonlinearity_inside():
    """A direction on which one of two neurons is off: D P has norm 1/2, where the source's second sum has k - 1/2."""
    weights = [torch.tensor([[0.5**0.5], [-(0.5**0.5)]]), torch.tensor([[0.5**0.5, -(0.5**0.5)]])]
    found = structure.weight_structure(from_layers(weights), torch.ones(1))
    assert found.nonlinearity.tolist() == pytest.approx([0.5, 0.0])
    assert found.total <= found.slack


@quick
@given(**networks)
def test_t11_volumes_add_up(widths, slope, bias, scale, seed):
    net, x = network(widths, slope, bias, scale, seed), normal(widths[0], seed=seed + 1)
    weights = [w.detach() for w in net.weights]
    slopes, a = [], x
    for i, weight in enumerate(weights[:-1]):
        z = weight @ a + (net.biases[i].detach() if bias else 0.0)
        slopes.append(torch.where(z > 0, torch.ones_like(z), slope))
        a = torch.where(z > 0, z, slope * z)
    path = Path(weights, slopes)
    k = path.rank(1e-6)
    narrow = path.narrow(k)
    whole = torch.linalg.svdvals(input_jacobian(net, x[None])[0])[:k].log().sum()
    for l, basis in enumerate(narrow.bases[1:], start=1):  # noqa: E741
        first = torch.linalg.svdvals(path.forward[l - 1] @ narrow.bases[0])[:k].log().sum()
        second = torch.linalg.svdvals(path.backward[l - 1] @ basis)[:k].log().sum()
        assert float(first + second) == pytest.approx(float(whole), abs=1e-6)


def test_rank_counts_no_rounding():
    """W2 W1 = 0 by cancellation: what float64 leaves has full rank, relative to itself."""
    q = rotation(6, 1)
    path = Path([q[:, :3] @ normal(3, 6), normal(6, 3, seed=1) @ q[:, 3:].T], [torch.ones(6, dtype=torch.float64)])
    assert 0 < float(path.decomposition[1][0]) < 1e-14
    assert path.rank(1e-6) == 0
    longer = Path([*path.weights, normal(4, 6, seed=2)], [*path.slopes, torch.ones(6, dtype=torch.float64)])
    assert 0 < float(longer.decomposition[1][0]) < 1e-13
    assert longer.rank(1e-6) == 0


def slow_growth(net, k):
    squares = [float((w.detach() ** 2).sum()) for w in net.weights]
    return max([1.0] + [(sum(squares[:n]) / n / k) ** n for n in range(1, net.depth + 1)])


def slow_activation_sum(net, x):
    with torch.no_grad():
        a, total = x, 0.0
        for layer in net.layers:
            total += float((a**2).sum()) + (layer.bias is not None)
            a = layer(a)
            a = torch.where(a > 0, a, net.slope * a)
    return total


@quick
@given(**networks)
def test_t22_holds_with_the_constant_for_the_weights_at_hand(widths, slope, bias, scale, seed):
    net, x = network(widths, slope, bias, scale, seed), normal(widths[0], seed=seed + 1)
    rank = structure.weight_structure(net, x).rank
    for k in range(1, rank + 1):
        found = structure.activation_bound(net, x, rank=k)
        assert found.total == pytest.approx(slow_activation_sum(net, x))
        assert found.ntk_trace == pytest.approx(float((parameter_jacobian(net, x[None]) ** 2).sum()))
        volume = float(torch.linalg.svdvals(input_jacobian(net, x[None])[0])[:k].prod())
        slow = found.ntk_trace * slow_growth(net, k) / (k * volume ** (2 / k))
        assert found.bound == pytest.approx(slow, rel=1e-6)
        assert found.total <= found.bound * (1 + 1e-9)
        assert found.spread == (found.bound <= found.balanced_bound * (1 + 1e-6))
        for p in (0.1, 0.5):
            assert len(found.layers_within(p)) >= (1 - p) * net.depth


def test_t22_is_attained_by_an_identity_chain_and_fails_without_the_constant():
    chain = from_layers([torch.eye(1)] * 9)
    found = structure.activation_bound(chain, torch.tensor([3.0]))
    assert (found.total, found.bound, found.balanced_bound) == (81.0, 81.0, 81.0)
    found = structure.activation_bound(from_layers([torch.eye(3)] * 9), torch.ones(3))
    assert (found.rank, found.total, found.bound) == (3, 27.0, pytest.approx(27.0))
    shrinking = from_layers([torch.tensor([[0.5]])] * 9)  # c1 < 0: max{1, .} matters
    found = structure.activation_bound(shrinking, torch.tensor([3.0]))
    assert found.total <= found.balanced_bound
    c1 = norm(shrinking) - 9
    assert found.total > found.balanced_bound * math.exp(c1)
    front = from_layers([torch.tensor([[8.0]]), *[torch.tensor([[0.5]])] * 9])  # all of the norm in front
    found = structure.activation_bound(front, torch.tensor([1.0]))
    assert found.total <= found.bound
    assert not found.spread or found.total <= found.balanced_bound


def balanced(net):
    """The same function (without biases) with ||W_l[i]|| = ||W_{l+1}[:, i]||, by rescaling neurons in turn."""
    weights = [w.detach().clone() for w in net.weights]
    for _ in range(2000):
        for first, second in itertools.pairwise(weights):
            ratio = (second.norm(dim=0) / first.norm(dim=1)).sqrt()
            first *= ratio[:, None]
            second /= ratio
    return from_layers(weights, slope=net.slope)


@pytest.mark.parametrize("seed", range(3))
def test_balanced_weights_are_spread(seed):
    net, x = balanced(network([4, 5, 5, 5, 4], 0.3, False, seed=seed)), normal(4)
    norms = [float((w.detach() ** 2).sum()) for w in net.weights]
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-6)
    for k in (1, 2, 3):
        found = structure.activation_bound(net, x, rank=k)
        assert found.spread
        assert found.total <= found.balanced_bound


@quick
@given(**networks)
def test_t23_holds_with_the_constant_for_the_weights_at_hand(widths, slope, bias, scale, seed):
    net, x = network(widths, slope, bias, scale, seed), normal(12, widths[0], seed=seed + 1)
    least = min(structure.weight_structure(net, sample).rank for sample in x)
    for k in range(1, least + 1):
        found = structure.preactivation_bound(net, x, rank=k)
        zs = layer_values(net, list(net.layers), x)
        slow = [torch.linalg.svdvals(z / 12**0.5) for z in zs]
        slow = [float(s[k]) if len(s) > k else 0.0 for s in slow]
        assert found.values.tolist() == pytest.approx(slow, abs=1e-10)
        volume = min(float(torch.linalg.svdvals(j)[:k].prod()) for j in input_jacobian(net, x))
        slow = max(found.slack, 0) * found.ntk_trace * slow_growth(net, k) / (k * volume ** (2 / k))
        assert found.bound == pytest.approx(slow**0.5, rel=1e-6)
        points = [structure.weight_structure(net, sample, rank=k) for sample in x]
        assert found.slack == pytest.approx(min(point.slack for point in points), abs=1e-7)
        assert found.ntk_trace == pytest.approx(float((parameter_jacobian(net, x) ** 2).sum()) / 12)
        assert found.total <= found.bound * (1 + 1e-9) + 1e-9
        assert len(found.layers_within(0.4)) >= 0.6 * net.depth


def test_t23_by_hand():
    """Two chains of ones, the second with a dead end: s_2 of the data in every layer."""
    weights = [torch.eye(2), torch.eye(2), torch.tensor([[1.0, 0.0]])]
    x = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    found = structure.preactivation_bound(from_layers(weights), x)
    assert found.rank == 1
    assert found.values.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0.0])  # X has values 3 and 1
    assert found.slack == pytest.approx(2.0)  # ||theta||^2 = 5, kL = 3, |Jf| = 1
    assert found.ntk_trace == pytest.approx(15.0)  # 5 ||e_1||^2 for each of three layers
    assert found.log_balanced_growth == pytest.approx(2.0)


def test_sequentials_with_some_biases_count_those():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.ones(3)
    found = structure.activation_bound(net, x)
    assert found.ntk_trace == pytest.approx(float((parameter_jacobian(net, x[None]) ** 2).sum()))
    a = x
    squares = []
    for linear in (net[0], net[2], net[4]):
        squares.append(float((a.detach() ** 2).sum()) + (linear.bias is not None))
        a = torch.relu(linear(a))
    assert found.values.tolist() == pytest.approx(squares, rel=1e-5)
    assert found.total <= found.bound


def test_dead_networks():
    net = network([3, 4, 2], seed=1)
    with torch.no_grad():
        net.biases[0].fill_(-100.0)
    found = structure.weight_structure(net, torch.ones(3))
    assert found.rank == 0
    assert found.total == pytest.approx(found.slack)
    for bound in (structure.activation_bound, structure.preactivation_bound):
        with pytest.raises(ValueError, match="Jf"):
            bound(net, torch.ones(1, 3))


def test_errors_name_the_argument():
    net = network([3, 4, 2], seed=1)
    with pytest.raises(ValueError, match="rank: got 3, expected at most the rank"):
        structure.weight_structure(net, torch.ones(3), rank=3)
    with pytest.raises(ValueError, match=r"x: got shape \(2, 3\), expected one sample"):
        structure.weight_structure(net, torch.ones(2, 3))
    with pytest.raises(ValueError, match="p: got 1"):
        structure.weight_structure(net, torch.ones(3)).bound(1.0)
    with pytest.raises(TypeError, match="Tanh"):
        structure.weight_structure(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), torch.ones(3))
    with torch.no_grad():
        net.weights[0][0, 0] = float("inf")
    with pytest.raises(ValueError, match="infinite"):
        structure.activation_bound(net, torch.ones(3))
