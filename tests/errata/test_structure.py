"""Printed forms that fail, and the corrected ones: E4, E8, E12, E13 and the parts of E15 on theorem 7 of Jacot2023b."""

import math

import pytest
import torch

import bnrank
from bnrank.networks.mlp import from_layers, make
from bnrank.theory import structure
from helpers import normal


def parameter_norm(net):
    return sum(float((p.detach() ** 2).sum()) for p in net.parameters())


# E4 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
@pytest.mark.parametrize("value", [0.7, 1.0, 1.3])
def test_e4_a_scalar_linear_chain_reaches_half_of_the_printed_bound(depth, value):
    chain = from_layers([torch.tensor([[value]], dtype=torch.float64)] * depth, slope=1.0)
    steep = value**depth
    norm = float(bnrank.ntk.mixed_derivative_norm(chain, torch.ones(1, 1, dtype=torch.float64)))
    assert norm == pytest.approx(depth * steep ** (2 - 2 / depth))
    assert norm < 2 * depth * steep ** (2 - 2 / depth)


def test_e4_the_corrected_bound_holds_on_random_relu_networks():
    ratios = []
    for seed in range(60):
        net = make([3, 5, 5, 2][: 2 + seed % 3], 0.0 if seed % 2 else 1.0, seed=seed, dtype=torch.float64)
        x = normal(5, 3, seed=seed)
        norms = bnrank.ntk.mixed_derivative_norm(net, x)
        steep = bnrank.Jacobian(net, x).singular_values[:, 0]
        ratios += (norms / (net.depth * steep ** (2 - 2 / net.depth))).tolist()
    ratios = [r for r in ratios if math.isfinite(r)]
    assert min(ratios) >= 1 - 1e-9
    assert min(ratios) < 2  # the printed one fails here, too


# E8 --------------------------------------------------------------------------------------------------------------


def test_e8_only_one_index_of_v_has_the_shape_of_the_weight():
    net = make([3, 5, 4, 6], 0.3, seed=1, dtype=torch.float64)
    found = structure.weight_structure(net, normal(3))
    assert [(tuple(u.shape), tuple(v.shape)) for u, v in zip(found.left, found.right, strict=True)] == [
        ((5, 3), (3, 3)),
        ((4, 3), (5, 3)),
        ((6, 3), (4, 3)),
    ]
    for weight, u, v in zip(net.weights, found.left, found.right, strict=True):
        assert (u @ v.T).shape == weight.shape
    for i, weight in enumerate(net.weights):  # printed: V_l V_{l+1}^T and U_l V_{l+1}^T with V_l of shape (n_l, k)
        assert i == 2 or (found.left[i] @ found.left[i + 1].T).shape != weight.shape


# E12 -------------------------------------------------------------------------------------------------------------


def printed_sum(net, x, k):
    """sum ||W_l - U_l V_l^T||^2 with the SVD of P_{Im J(a~_l -> f)^T} W_l P_{Im J a_{l-1}}, as in the source."""
    weights, slopes = [w.detach() for w in net.weights], []
    a = x
    for i, weight in enumerate(weights[:-1]):
        z = weight @ a + (net.biases[i].detach() if net.bias else 0.0)
        slopes.append(torch.where(z > 0, torch.ones_like(z), net.slope))
        a = slopes[-1] * z
    before, after = [torch.eye(len(x), dtype=torch.float64)], [torch.eye(len(weights[-1]), dtype=torch.float64)]
    for weight, d in zip(weights, slopes, strict=False):
        before.append(d[:, None] * (weight @ before[-1]))
    for weight, d in zip(weights[:0:-1], slopes[::-1], strict=True):
        after.insert(0, (after[0] @ weight) * d)

    def onto(matrix):
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        return u[:, s > 1e-9 * s[0]] @ u[:, s > 1e-9 * s[0]].T

    total = 0.0
    for weight, image, preimage in zip(weights, before, after, strict=True):
        u, _, v = torch.linalg.svd(onto(preimage.T) @ weight @ onto(image), full_matrices=False)
        total += float(((weight - u[:, :k] @ v[:k]) ** 2).sum())
    return total


def test_e12_the_counterexample():
    net = from_layers([torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0, 1.0]])], slope=1.0)
    found = structure.weight_structure(net, torch.ones(1))
    assert found.slack == pytest.approx(1.0)
    assert printed_sum(net, torch.ones(1, dtype=torch.float64), 1) == pytest.approx(1.5857864376)
    assert found.total == pytest.approx(1.0)  # attained


def test_e12_on_random_networks():
    printed = corrected = cases = 0
    generator = torch.Generator().manual_seed(0)
    for seed in range(400):
        depth = int(torch.randint(2, 5, (1,), generator=generator))
        widths = torch.randint(1, 5, (depth + 1,), generator=generator).tolist()
        net = make(widths, (0.0, 0.3, 1.0)[seed % 3], False, seed=seed, dtype=torch.float64)
        x = normal(widths[0], seed=seed)
        found = structure.weight_structure(net, x)
        if found.rank == 0:
            continue
        cases += 1
        printed += printed_sum(net, x, found.rank) > found.slack + 1e-9
        corrected += found.total > found.slack + 1e-9
    assert (cases, corrected) == (367, 0)
    assert printed == pytest.approx(34, abs=3)


# E13 -------------------------------------------------------------------------------------------------------------


def balanced_with_biases(depth, small):
    """f(x) = x, and a second neuron whose only input is a bias: exactly balanced."""
    first, last = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0, small]])
    middle = torch.tensor([[1.0, 0.0], [0.0, small]])
    biases = [torch.tensor([0.0, small]), *[torch.zeros(2)] * (depth - 2), torch.zeros(1)]
    return from_layers([first.double(), *[middle.double()] * (depth - 2), last.double()], biases)


def bias_gradients(net, x):
    """||J(a~_l -> f)||^2 for every layer, by autograd."""
    zeros = [torch.zeros(len(w), dtype=torch.float64, requires_grad=True) for w in net.weights]
    a = x
    for i, (weight, bias, zero) in enumerate(zip(net.weights, net.biases, zeros, strict=True)):
        z = weight @ a + bias + zero
        a = torch.relu(z) if i < net.depth - 1 else z
    return torch.stack([(g**2).sum() for g in torch.autograd.grad(a.sum(), zeros)])


def test_e13_the_weight_part_of_the_kernel_is_not_enough():
    depth, small = 1000, 1e-4
    net = balanced_with_biases(depth, small)
    assert bnrank.cost.imbalance(net).residual < 1e-15
    x = torch.tensor([[1e-5], [3e-5]], dtype=torch.float64)
    found = structure.preactivation_bound(net, x, rank=1)
    bias_part = float(torch.stack([bias_gradients(net, sample) for sample in x]).sum(1).mean())
    printed = found.balanced_bound * math.sqrt((found.ntk_trace - bias_part) / found.ntk_trace)
    p = 0.9 / depth  # so few that all layers must be within
    assert found.values.max() > printed / (p * depth)
    assert found.layers_within(p) == tuple(range(1, depth + 1))
    assert found.total <= found.balanced_bound
    assert float(found.values.max()) == pytest.approx(9.8e-6, rel=0.01)
    assert printed / 0.9 == pytest.approx(2.5e-6, rel=0.01)


def test_e13_the_maximum_that_the_corollary_drops():
    """c1 < 0: two chains of 1/2, the second off at the data, balanced; e^{c1/k} alone makes the bound tiny."""
    depth = 60
    net = from_layers([0.5 * torch.eye(2, dtype=torch.float64)] * depth)
    x = torch.tensor([[1.0, -1.0], [2.0, -0.5], [1.0, -2.0]], dtype=torch.float64)
    found = structure.preactivation_bound(net, x)
    assert found.rank == 1
    c1 = parameter_norm(net) - depth
    assert c1 == pytest.approx(-depth / 2)
    printed = found.balanced_bound * math.exp(c1 / 2)
    assert found.values[0] > printed / 0.9
    assert found.total <= found.balanced_bound


# E15, theorem 7 --------------------------------------------------------------------------------------------------


def test_e15_the_schatten_power_goes_with_the_layer():
    """|J a~_l|_+^{2/(kl)} <= (1/k) ||J a~_l||_q^q <= (||W_1||^2 + ... + ||W_l||^2)/(kl): q is 2/l, in print 2/L."""
    printed = corrected = 0
    for seed in range(100):
        net = make([3, 3, 3, 3, 3], 1.0, False, seed=seed, dtype=torch.float64)
        product = torch.eye(3, dtype=torch.float64)
        for l, weight in enumerate(net.weights, start=1):  # noqa: E741
            product = weight.detach() @ product
            s = torch.linalg.svdvals(product)
            volume = float(s.log().sum() * 2 / (3 * l))
            share = sum(float((w.detach() ** 2).sum()) for w in net.weights[:l]) / (3 * l)
            corrected += not math.exp(volume) - 1e-9 <= float((s ** (2 / l)).mean()) <= share + 1e-9
            printed += not math.exp(volume) - 1e-9 <= float((s ** (2 / net.depth)).mean()) <= share + 1e-9
    assert corrected == 0
    assert printed > 50


def test_e15_the_rank_belongs_in_the_base():
    """|J a~_l|_+^{2/k} <= (1 + c1/(kL))^l, in print (1 + c1/L)^l: too small for c1 < 0, too large for c1 > 0."""
    k, depth = 2, 6
    for value in (0.8, 1.2):
        net = from_layers([value * torch.eye(k, dtype=torch.float64)] * depth, slope=1.0)
        c1 = parameter_norm(net) - k * depth
        for l in range(1, depth + 1):  # noqa: E741
            volume = float(torch.linalg.det(torch.linalg.matrix_power(net.weights[0].detach(), l))) ** (2 / k)
            assert volume <= (1 + c1 / (k * depth)) ** l + 1e-12
            printed = (1 + c1 / depth) ** l
            assert volume > printed if c1 < 0 else printed > math.exp(l * c1 / (k * depth))
