"""E14, E15 (Theorem 10, Proposition 5) and the ranks of T16: the printed forms fail, the corrected ones hold."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import bnrank
from bnrank.measures import ntk
from bnrank.networks.mlp import from_layers
from bnrank.theory.domains import completely_positive, planarity, tangent_bound
from bnrank.theory.kernels import jacobian_ranks
from bnrank.theory.stability import growth_bound, sharpness_bound
from bnrank.theory.tours import shortest_path_bounds

DOUBLE = torch.float64


def operator_norm_and_trace(net, x):
    gram = ntk.gram(net, x).permute(0, 2, 1, 3)
    n, d_out = gram.shape[:2]
    return float(torch.linalg.matrix_norm(gram.reshape(n * d_out, n * d_out), 2)), float(ntk.trace(net, x).sum())


def test_e14_the_operator_norm_of_the_ntk_does_not_bound_its_trace():
    """f(x) = W x on orthonormal inputs: Theta = I, N = 50, d_out = 3."""
    net, x = from_layers([torch.ones(3, 50)]), torch.eye(50, dtype=DOUBLE)
    norm, trace = operator_norm_and_trace(net, x)
    assert norm / 50 == pytest.approx(0.02)
    assert trace / 50 == pytest.approx(3)
    assert trace / 50 > norm / 50  # (1/N) ||Theta||_op <= c L would not give (1/N) Tr Theta <= c L
    assert 3 * trace > norm / 50  # nor the printed d_out Tr Theta <= c L
    assert trace / 50 <= 3 * norm * (1 + 1e-12)  # what it gives: (1/N) Tr Theta <= d_out ||Theta||_op, attained
    for seed in range(5):
        net = bnrank.MLP([4, 8, 2], seed=seed)
        x = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
        norm, trace = operator_norm_and_trace(net, x)
        assert trace / 9 <= 2 * norm


@pytest.mark.parametrize("seed", range(3))
def test_e14_the_hessian_of_the_mean_squared_error_is_twice_the_kernel(seed):
    """||H|| = ||Theta|| / N fits (1/(2N)) sum ||f - y||^2; the loss has 1/N."""
    net = bnrank.MLP([2, 5, 2], slope=0.3, seed=seed, dtype=DOUBLE)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    y = net(x).detach()
    shapes = [p.shape for p in net.parameters()]
    names = [name for name, _ in net.named_parameters()]

    def loss(theta):
        parts = theta.split([s.numel() for s in shapes])
        values = {n: part.reshape(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return ((torch.func.functional_call(net, values, (x,)) - y) ** 2).sum() / 6

    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    hessian = torch.autograd.functional.hessian(loss, theta)
    norm, trace = operator_norm_and_trace(net, x)
    top = float(torch.linalg.eigvalsh(hessian)[-1])
    assert top == pytest.approx(2 * norm / 6, rel=1e-8)
    assert float(hessian.trace()) == pytest.approx(2 * trace / 6, rel=1e-8)
    assert sharpness_bound(net, x).curvature == pytest.approx(top, rel=1e-8)


def half_distances(y):
    """(d_1 + d_2) / 2 for every point: mean distance to the nearest and the second nearest."""
    distances = np.sort(cdist(y, y), axis=1)
    return (distances[:, 1] + distances[:, 2]) / 2, distances[:, 2]


@pytest.mark.parametrize("k", [2, 3])
def test_e15_theorem_10_distances_fall_with_the_number_of_points(k):
    """(d_1 + d_2) / 2 is of order N^{-1/k}; a line of the proof has N^{1/k}."""
    rng = np.random.default_rng(k)
    means = [half_distances(rng.random((n, k)))[0].mean() for n in (200, 1600)]
    assert math.log(means[1] / means[0]) / math.log(8) == pytest.approx(-1 / k, abs=0.05)


def test_e15_theorem_10_an_open_path_has_two_ends():
    """Its ends have one neighbor each: sum (d_1 + d_2) / 2 is no lower bound, less the two largest d_2 / 2 it is."""
    line = np.arange(7.0)[:, None]
    half, second = half_distances(line)
    assert shortest_path_bounds(line).upper == pytest.approx(6)
    assert half.sum() == pytest.approx(8)
    assert half.sum() - np.sort(second)[-2:].sum() / 2 == pytest.approx(6)  # tight
    rng = np.random.default_rng(0)
    fails = 0
    for _ in range(40):
        y = rng.random((7, 2))
        half, second = half_distances(y)
        exact = shortest_path_bounds(y).upper
        fails += half.sum() > exact
        assert half.sum() - np.sort(second)[-2:].sum() / 2 <= exact + 1e-12
    assert fails == 40
    many = rng.random((300, 2))  # there the ends do not matter
    assert half_distances(many)[0].sum() < shortest_path_bounds(many).lower


def test_e15_theorem_10_with_an_explicit_constant():
    """What is used instead of the proof's asymptotics, checked on networks with weights of rank one."""
    for seed in range(8):
        net = bnrank.MLP([3, 1, 1, 1, 4, 2], slope=(0.0, 0.3)[seed % 2], seed=seed, dtype=DOUBLE)
        x = torch.randn(10, 3, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
        found = growth_bound(net, x)
        assert len(found.layers) >= 4
        assert found.bound <= found.measured


def norm_excess(weights, biases):
    return sum(float((p**2).sum()) for p in [*weights, *biases]) - len(weights)


def identities(rng, count=300):
    """Networks that are the identity on [-1, 1]: some neurons on everywhere, others as pairs relu(t), relu(-t)."""
    for _ in range(count):
        depth, m, pairs = int(rng.integers(2, 12)), int(rng.integers(1, 4)), int(rng.integers(0, 2))
        size = np.exp(rng.uniform(-1, 1))
        w = size * rng.standard_normal(m) / math.sqrt(m)
        b = np.abs(w) * (1 + rng.random(m) * (rng.random(m) < 0.5))
        t = float(np.exp(rng.uniform(-1, 1)))
        first = np.concatenate([w, [t, -t] * pairs])[:, None]
        shift = np.concatenate([b, [0.0, 0.0] * pairs])
        share = float(rng.random()) if pairs else 1.0
        outer = np.concatenate([share * w / (w @ w), [(1 - share) / t, (share - 1) / t] * pairs])[None]
        gain = float(np.linalg.norm(first) / np.linalg.norm(outer)) ** (1 / depth)
        held = np.eye(len(shift))
        weights = [first / gain ** (depth - 1), *[held * gain] * (depth - 2), outer * gain]
        biases = [shift / gain ** (depth - 1), *[np.zeros(len(shift))] * (depth - 2), -outer @ shift]
        yield [torch.from_numpy(np.atleast_2d(v)) for v in weights], [torch.from_numpy(v) for v in biases]


def test_e15_proposition_5_the_printed_proof_does_not_see_complete_positivity():
    """On [-1, 1] all tangents agree, so that the proof's bound is 0, yet no network is the identity at norm L + 1/2.

    By T21 at x = -1 and 1, with W_1 = r u, ||u|| = 1, a = |u_A|^2 for the neurons A active at both, and b_i >= r |u_i|
    there: ||theta||^2 - L >= (r - 1)^2 + (1 - a) / 2 + r^2 a >= 1/2. In general, for k-planar Omega and U the partial
    isometry of W_1, ||(U x)_-||^2 <= 2 max(1, ||x||^2) (||theta||^2 - k L): an excess that vanishes makes Omega
    completely positive, since the completely positive Gram matrices are a closed set.
    """
    domain = torch.tensor([[-1.0], [1.0]])
    tangent = torch.ones(1, 1)
    assert planarity(domain).planar(1)
    assert tangent_bound(tangent, tangent) == 0
    assert completely_positive(domain).status == "no"
    r, a = np.meshgrid(np.linspace(0, 3, 301), np.linspace(0, 1, 101))
    assert ((r - 1) ** 2 + (1 - a) / 2 + r**2 * a).min() == pytest.approx(0.5)

    x = torch.linspace(-1, 1, 21, dtype=DOUBLE)[:, None]
    excesses = []
    for weights, biases in identities(np.random.default_rng(0)):
        net = from_layers(weights, biases)
        assert torch.allclose(net(x), x, atol=1e-9)
        excesses.append(norm_excess(weights, biases))
        u = weights[0] / weights[0].norm()
        negative = float((x @ u.T).clamp(max=0).square().sum(1).max())
        assert negative <= 2 * excesses[-1]
    assert min(excesses) >= 0.5
    best = []  # one neuron: t -> s (t + 1) -> ... -> t + 1 -> t, at most 1 + log 2 above L in the limit
    for depth in (4, 40, 400):
        s = 2 ** (1 / (2 * depth) - 0.5)
        rest = s ** (-1 / (depth - 1))
        weights = [torch.full((1, 1), v, dtype=DOUBLE) for v in [s, *[rest] * (depth - 1)]]
        biases = [torch.full((1,), v, dtype=DOUBLE) for v in [s, *[0.0] * (depth - 2), -1.0]]
        assert torch.allclose(from_layers(weights, biases)(x), x, atol=1e-9)
        best.append(norm_excess(weights, biases))
    assert best[-1] == pytest.approx(1 + math.log(2), abs=2e-3)
    assert all(b >= 0.5 for b in best)


def test_e15_proposition_5_needs_the_linear_span():
    """All tangents of {(t, 1)} agree too, and it is completely positive, but its linear span has dimension 2.

    It is the identity at norm L + 1 with a bias (0, 1); T21 does not allow the biases to vanish with ||theta||^2 - L.
    """
    t = torch.linspace(0, 1, 9, dtype=DOUBLE)
    x = torch.stack([t, torch.ones(9, dtype=DOUBLE)], 1)
    assert completely_positive(x).status == "yes"
    assert (planarity(x).k, planarity(x).affine) == (2, 1)
    first = torch.tensor([[1.0, 0.0]], dtype=DOUBLE)
    weights = [first, *[torch.ones(1, 1, dtype=DOUBLE)] * 3, first.T]
    biases = [*[torch.zeros(1, dtype=DOUBLE)] * 4, torch.tensor([0.0, 1.0], dtype=DOUBLE)]
    assert torch.equal(from_layers(weights, biases)(x), x)
    assert norm_excess(weights, biases) == pytest.approx(1)


def test_t16_the_rank_of_the_inputs_is_that_of_the_centered_ones():
    """Rank(X - x) = min(d_in, N, Rank X + 1) in print; for X on an affine plane it is one less at every x."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((30, 2)), np.ones((30, 1)), np.zeros((30, 2))], 1)
    assert np.linalg.matrix_rank(x) == 3  # print: 4
    points = rng.standard_normal((20, 5))
    assert {int(np.linalg.matrix_rank(x - p)) for p in points} == {3}
    found = jacobian_ranks(x, rng.standard_normal((30, 5)), points=points)
    assert set(found.ranks.tolist()) == {found.x_rank + 1} == {3}
