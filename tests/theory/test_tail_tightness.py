"""How tight T48 is: constants that are attained, by weights and along gradient flows, rates, and what fails."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.theory.invariants import tail
from bnrank.theory.invariants.finding import find
from bnrank.theory.invariants.tail_layers import largest
from bnrank.training import Limits, Solver

DOUBLE = torch.float64


class Free(nn.Module):
    """x -> Z Y x + D x."""

    def __init__(self, n, hidden, out):
        super().__init__()
        self.Y, self.Z, self.D = nn.Linear(n, hidden, False), nn.Linear(hidden, out, False), nn.Linear(n, out, False)

    def forward(self, x):
        return self.Z(self.Y(x)) + self.D(x)


class First(nn.Module):
    """(x_1, x_2) -> (p x_1, x_2)."""

    def __init__(self, p):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, x):
        return torch.cat([self.p * x[:, :1], x[:, 1:]], 1)


def with_weights(module, *weights):
    """Set the parameters, in order."""
    parameters = list(module.double().parameters())
    assert len(parameters) == len(weights)
    with torch.no_grad():
        for p, w in zip(parameters, weights, strict=True):
            p.copy_(w)
    return module


def orthogonal(n):
    """Return an orthogonal matrix without zeros."""
    return torch.eye(n, dtype=DOUBLE) - 2 * torch.ones(n, n, dtype=DOUBLE) / n


def blocks(count, t=1.0):
    """Return blocks whose values are balanced, the written form of each a multiple of an isometry."""
    layers, weights, square, n = [nn.Linear(1, 1, False)], [torch.tensor([[t]], dtype=DOUBLE)], t * t, 1
    for _ in range(count):
        square, eye = square / 2, torch.eye(n, dtype=DOUBLE)
        layers.insert(0, Free(2 * n, n, n))
        y, d = torch.cat([0 * eye, eye], 1), torch.cat([eye, 0 * eye], 1)
        weights = [math.sqrt(square) * w for w in (y, eye, d)] + weights
        n *= 2
    layers.insert(0, nn.Linear(n, n, False))
    return with_weights(nn.Sequential(*layers), math.sqrt(square) * orthogonal(n), *weights), torch.ones(2, n)


def balanced(found, module):
    constants = found.constants(module)
    values = [*constants.between, *(e for layer in constants.inside for chain in layer for e in chain)]
    return all(float(v.abs().max()) < 1e-12 for v in values)


@pytest.mark.parametrize("t", [1.0, 100.0])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_two_per_block_is_attained(count, t):
    module, x = blocks(count, t)
    found = tail(module, x)
    assert balanced(found, module) or t > 1
    assert found.blocks[0] == count
    assert found.ratios(module)[0] == pytest.approx(0.5**count, rel=1e-12)
    first = found.bounds(module)[0]
    assert (first.factor, first.left) == (2**count, pytest.approx(first.right, rel=1e-11))


def convolutional(k, s):
    """Return two convolutions and a number, the second of one channel and k entries per channel in, with its data."""
    module = nn.Sequential(
        nn.Conv1d(k, k, 1, bias=False), nn.Conv1d(k, 1, k, bias=False), nn.Flatten(), nn.Linear(1, 1, False)
    )
    q = s * orthogonal(k)
    with_weights(module, q[:, :, None], q[None], torch.tensor([[math.sqrt(k) * s]], dtype=DOUBLE))
    return module, torch.eye(k, dtype=DOUBLE)[None]


def flattened(k, s):
    """Return a convolution of k channels on k positions into a scalar layer, with its data."""
    module = nn.Sequential(nn.Conv1d(k, k, 1, bias=False), nn.Flatten(), nn.Linear(k * k, 1, False))
    q = s * orthogonal(k)
    return with_weights(module, q[:, :, None], q.reshape(1, -1)), torch.eye(k, dtype=DOUBLE)[None]


def block(a):
    """Return a block behind (p x_1, x_2), all weights equal, with its data."""
    module = nn.Sequential(First(a), nn.Linear(2, 2, False), Free(2, 1, 1), nn.Linear(1, 1, False))
    y, z, d = (torch.tensor(w, dtype=DOUBLE) for w in ([[0.0, a]], [[a]], [[a, 0.0]]))
    last = torch.tensor([[math.sqrt(2) * a]], dtype=DOUBLE)
    weights = (torch.tensor(a, dtype=DOUBLE), a * torch.eye(2, dtype=DOUBLE), y, z, d, last)
    return with_weights(module, *weights), torch.eye(2, dtype=DOUBLE)


def logistic(out, y):
    return nn.functional.softplus(-y * out).mean()


@pytest.mark.parametrize(("made", "factor"), [(convolutional, 4), (flattened, 4)])
def test_factors_are_attained_along_a_flow(made, factor):
    module, x = made(4, 0.5)
    found = tail(module, x)
    assert balanced(found, module)
    start, y = found.constants(module), torch.ones(len(x), 1, dtype=DOUBLE)
    result = bnrank.flow(
        module, (x, y, logistic), 1e5, solver=Solver("dop853", rtol=1e-10), limits=Limits(max_networks=16)
    )
    squares = []
    for network in result.networks:
        first = found.bounds(network, start)[0]
        squares.append(first.frobenius)
        assert first.factor == factor
        assert found.ratios(network)[0] == pytest.approx(1 / factor, abs=1e-7)
        assert first.left >= first.right - 1e-7
    assert squares[-1] > 2 * squares[0]  # as far as 1e5 gets: the norm diverges like a power of log t


def test_a_block_on_vectors_does_not_stay_at_one_half():
    """All samples push a layer before it by g s^T with one g: of its two singular values only the first can grow on."""
    module, x = block(0.8)
    y = torch.ones(len(x), 1, dtype=DOUBLE)
    found = tail(module, x)
    assert balanced(found, module)
    assert found.ratios(module)[0] == pytest.approx(0.5, rel=1e-12)
    (gradient,) = torch.autograd.grad(logistic(module(x), y), module[1].weight)
    values = torch.linalg.svdvals(gradient)
    assert float(values[1]) < 1e-14 * float(values[0])
    result = bnrank.flow(
        module, (x, y, logistic), 1e5, solver=Solver("dop853", rtol=1e-10), limits=Limits(max_networks=16)
    )
    ratios = [found.ratios(network)[0] for network in result.networks]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(ratios))
    assert ratios[-1] > 0.7


def test_as_many_as_outputs():
    w = 3 * torch.eye(3, dtype=DOUBLE)
    module = bnrank.networks.from_layers([w, w], slope=1.0)
    found = tail(module, torch.ones(2, 3))
    assert found.ratios(module) == pytest.approx((1 / 3, 1 / 3), rel=1e-12)
    assert [b.right for b in found.bounds(module)] == pytest.approx([9, 9], rel=1e-12)


def square_root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0.0).sqrt() @ vectors.T


def fully_connected(t, conserved):
    """Return W_1 and t e_1^T with W_1 W_1^T - W_2^T W_2 given."""
    n = len(conserved)
    last = t * torch.eye(n, dtype=DOUBLE)[:1]
    return bnrank.networks.from_layers([square_root(last.T @ last + conserved), last], slope=1.0), torch.ones(2, n)


def test_the_constant_of_a_fully_connected_tail_is_attained():
    conserved = torch.diag(torch.tensor([-2.0, 1.0, 0.5], dtype=DOUBLE))
    for t in (3.0, 30.0):
        module, x = fully_connected(t, conserved)
        bound = tail(module, x).bounds(module)[0]
        assert bound.constant == pytest.approx(1.5, abs=1e-9)
        assert bound.left == pytest.approx(bound.right, rel=1e-12)
        assert 1 - tail(module, x).ratios(module)[0] == pytest.approx(1.5 / bound.frobenius, rel=1e-8)


def test_alignment_is_of_a_higher_order_than_the_ratio():
    """1 - ratio falls like ||W||_F^-2 and 1 - alignment^2 like ||W||_F^-4, as the bounds say."""
    g = torch.Generator().manual_seed(1)
    a = torch.randn(4, 4, generator=g, dtype=DOUBLE)
    conserved = a @ a.T
    squares, ratios, angles, least = [], [], [], []
    for t in (10.0, 20.0, 40.0, 80.0):
        module, x = fully_connected(t, conserved)
        found = tail(module, x)
        one = found.alignments(module)[0]
        bound = found.bounds(module)[0]
        spread = float(found.constants(module).between[0][-1] - found.constants(module).between[0][0])
        squares.append(bound.frobenius)
        ratios.append(1 - found.ratios(module)[0])
        angles.append(1 - one.value**2)
        least.append(1 - one.minimum**2)
        assert ratios[-1] <= bound.constant / bound.frobenius
        assert angles[-1] <= least[-1] <= (spread / (2 * bound.frobenius - 4 * bound.constant - spread)) ** 2
    slopes = [np.polyfit(np.log(squares), np.log(values), 1)[0] for values in (ratios, angles, least)]
    assert slopes == pytest.approx([-1, -2, -2], abs=0.1)


def test_flattenings_of_random_tensors():
    """Lemma 10: both flattenings, both ways, and both factors attained."""
    rng = np.random.default_rng(0)

    def squared(matrix):
        return np.linalg.norm(matrix, 2) ** 2

    for _ in range(500):
        out, inner, k = rng.integers(1, 6, size=3)
        tensor = rng.normal(size=(out, inner, k)) * (rng.random((out, inner, k)) < rng.random())
        written, read = tensor.reshape(out, -1), tensor.transpose(0, 2, 1).reshape(-1, inner)
        assert squared(written) <= min(inner, k) * squared(read) * (1 + 1e-12)
        assert squared(read) <= min(out, k) * squared(written) * (1 + 1e-12)
        for rank in range(1, out + 1):  # for all singular values
            far = (np.linalg.svd(written)[1][rank:] ** 2).sum()
            assert (np.linalg.svd(read)[1][rank * min(inner, k) :] ** 2).sum() <= far + 1e-12
    isometry = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    one_out, one_in = isometry[None], isometry[:, None]
    assert squared(one_out.reshape(1, -1)) == pytest.approx(4 * squared(one_out.transpose(0, 2, 1).reshape(-1, 4)))
    assert squared(one_in.transpose(0, 2, 1).reshape(-1, 1)) == pytest.approx(4 * squared(one_in.reshape(4, -1)))


def test_the_constant_is_at_most_that_of_adding_operator_norms():
    g = torch.Generator().manual_seed(2)
    for n in range(1, 7):
        for rank in range(1, n + 1):
            a = torch.randn(n, n, generator=g, dtype=DOUBLE)
            values = torch.linalg.eigvalsh(a + a.T)
            assert largest(values, n - rank) <= float(values.sum() - rank * values[0]) + 1e-12


def test_an_identity_block_leaves_no_such_bound():
    """All that is conserved is 0, the last layer has rank one, and the ratio is 1 / (h + 1)."""

    class Identity(nn.Module):
        def __init__(self, n, hidden):
            super().__init__()
            self.Y, self.Z = nn.Linear(n, hidden, False), nn.Linear(hidden, n, False)

        def forward(self, x):
            return x + self.Z(self.Y(x))

    for hidden in (1, 2, 5):
        n = hidden + 1
        y = torch.tensor([1 - i / n for i in range(1, n)], dtype=DOUBLE).sqrt()
        eye = torch.eye(n, dtype=DOUBLE)
        weights = (eye / math.sqrt(n), y[:, None] * eye[1:], (y[:, None] * eye[:-1]).T, eye[:1])
        module = nn.Sequential(nn.Linear(n, n, False), Identity(n, hidden), nn.Linear(n, 1, False))
        with_weights(module, *weights)
        for quantity in find(module, torch.ones(2, n, dtype=DOUBLE), verify=False):
            assert float(quantity.value(module).abs().max()) < 1e-12, quantity.name
        first = module[0].weight.detach()
        ratio = torch.linalg.matrix_norm(first, 2) ** 2 / first.square().sum()
        assert float(ratio) == pytest.approx(1 / n, rel=1e-12)
        assert tail(module, torch.ones(2, n)).names == ("2",)


def test_what_a_convolution_inside_a_block_adds_by_hand():
    """Z of a block has factor min(4, 2): rank 1 written is rank 2 read, and two of four eigenvalues are left."""

    class Convolutions(nn.Module):
        def __init__(self):
            super().__init__()
            self.Y, self.Z, self.D = (nn.Conv1d(*sizes, bias=False) for sizes in ((3, 4, 1), (4, 2, 2), (3, 2, 2)))

        def forward(self, x):
            return self.Z(self.Y(x)) + self.D(x)

    module = nn.Sequential(nn.Conv1d(2, 3, 1), Convolutions(), nn.Flatten(), nn.Linear(6, 1))
    layer = tail(module, torch.ones(2, 2, 4)).layers[1]
    assert [[m.factor for m in branch] for branch in layer.branches] == [[1, 2], [2]]
    spectra = [[torch.tensor([1.0, 10, 100, 1000])], []]
    assert [layer.added(spectra, rank) for rank in (1, 2)] == [1100.0, 0.0]  # not 1110, of the three after rank 1


def test_the_constant_inside_a_block_is_attained():
    """Z^T Z + E = diag(t^2, 1, 2), D elsewhere: after the two directions of size t, 1 + 2 is left."""
    t = 10.0
    module = nn.Sequential(nn.Linear(4, 4, False), Free(4, 3, 1), nn.Linear(1, 1, False))
    y, z, d = torch.zeros(3, 4, dtype=DOUBLE), torch.tensor([[t, 0, 0]]), torch.tensor([[0, 0, 0, t]])
    y[range(3), range(3)] = torch.tensor([t, 1, math.sqrt(2)], dtype=DOUBLE)
    first = torch.diag(torch.tensor([t, 1, math.sqrt(2), t], dtype=DOUBLE))
    with_weights(module, first, y, z, d, torch.tensor([[t]]))
    bound = tail(module, torch.ones(2, 4)).bounds(module)[0]
    assert (bound.factor, bound.constant, bound.beyond) == (2, pytest.approx(3), pytest.approx(3))
    assert bound.left == pytest.approx(bound.right)
