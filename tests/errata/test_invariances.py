"""E20: slips of LeJegelka2022 on invariants of the gradient flow, each shown to fail as printed and to hold corrected.

A quantity q is invariant under d theta / dt = -grad loss exactly when its rate <grad q, -grad loss> is 0; the rate is
what is computed, in float64.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import nn

from helpers import normal

SIGNS = torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)


def rate(quantity, network, parameters):
    """d quantity / dt, entry by entry, under the gradient flow of the logistic loss with five labels."""
    parameters = [p.requires_grad_() for p in parameters]
    loss = nn.functional.softplus(-SIGNS * network(*parameters)).mean()
    velocity = [-g for g in torch.autograd.grad(loss, parameters)]
    return torch.autograd.functional.jvp(quantity, tuple(parameters), tuple(velocity))[1]


# The network of the first test: inputs x1 and x2, ReLU units h1 and h2, output y. An edge has its layer and its entry.
EDGES = {
    ("x1", "h1"): (0, 0, 0),
    ("x2", "h1"): (0, 0, 1),
    ("x1", "h2"): (0, 1, 0),
    ("x2", "h2"): (0, 1, 1),
    ("h1", "y"): (1, 0, 0),
    ("h2", "y"): (1, 0, 1),
}
PATHS = [((x, h), (h, "y")) for x in ("x1", "x2") for h in ("h1", "h2")]


def admitted(edges):
    """What Definition 7 asks: no path has two of the edges, and the graph without them is disconnected."""
    names = sorted({vertex for edge in EDGES for vertex in edge})
    left = [(names.index(a), names.index(b)) for a, b in EDGES if (a, b) not in edges]
    rows, columns = zip(*left, strict=True)
    graph = coo_array((np.ones(len(left)), (rows, columns)), shape=(len(names), len(names)))
    no_path_twice = all(sum(edge in edges for edge in path) <= 1 for path in PATHS)
    return no_path_twice and connected_components(graph, directed=False)[0] > 1


def test_e20_definition_7_admits_sets_without_the_invariance():
    x = normal(5, 2, seed=0)
    last_layer = (("h1", "y"), ("h2", "y"))

    def network(w1, w2):
        return (torch.relu(x @ w1.T) @ w2.T)[:, 0]

    def drift(edges):
        def difference(*weights):
            def squares(chosen):
                return sum(weights[layer][i, j] ** 2 for layer, i, j in map(EDGES.get, chosen))

            return squares(edges) - squares(last_layer)

        return abs(rate(difference, network, [normal(2, 2, seed=1), normal(1, 2, seed=2)]).item())

    sets = [edges for size in range(1, 6) for edges in itertools.combinations(EDGES, size) if admitted(edges)]
    drifts = {edges: drift(edges) for edges in sets}
    for edges in sets:
        crossed_once = all(sum(edge in edges for edge in path) == 1 for path in PATHS)
        assert (drifts[edges] < 1e-15) == crossed_once, edges
    # without the edges of x1 the graph falls apart, but the paths from x2 do not meet them
    assert drifts[("x1", "h1"), ("x1", "h2")] > 1e-3
    assert len(sets) == 10
    assert sum(value < 1e-15 for value in drifts.values()) == 4  # each unit cut off before or behind it


@pytest.mark.parametrize("skip", ["free", "diagonal", "identity"])
def test_e20_case_6_holds_for_free_blocks_only(skip):
    """A convolution, then a -> Z relu(Y a) + D a: W2^T W2 - W1 W1^T with W2 = [Y; D], one column per channel."""
    channels, positions, hidden, size = 3, 4, 5, 12
    x = normal(5, 2, 6, seed=3)
    last = normal(size, seed=4)
    parameters = [
        normal(channels, 2, 3, seed=5),
        0.5 * normal(hidden, size, seed=6),
        0.5 * normal(size, hidden, seed=7),
    ]
    if skip == "free":
        parameters.append(0.5 * normal(size, size, seed=8))
    elif skip == "diagonal":
        parameters.append(normal(size, seed=8))

    def skipped(d):
        return torch.eye(size, dtype=torch.float64) if not d else torch.diag(d[0]) if d[0].ndim == 1 else d[0]

    def network(kernel, y, z, *d):
        a = nn.functional.conv1d(x, kernel).reshape(5, -1)
        return (torch.relu(a @ y.T) @ z.T + a @ skipped(d).T) @ last

    def difference(kernel, y, z, *d):
        w1 = kernel.reshape(channels, -1)
        w2 = torch.cat([y, skipped(d)]).reshape(-1, channels, positions).permute(0, 2, 1).reshape(-1, channels)
        return w2.T @ w2 - w1 @ w1.T + 0 * z.sum()

    drift = rate(difference, network, parameters).abs()
    diagonal, off_diagonal = drift.diagonal().max(), (drift - torch.diag(drift.diagonal())).max()
    assert (diagonal < 1e-13) == (skip != "identity")
    assert (off_diagonal < 1e-13) == (skip == "free")
    if skip != "free":
        assert off_diagonal > 0.01
    if skip == "identity":
        assert diagonal > 0.01


def balanced_block(rng, n_in, hidden, n_out):
    """Y, Z and D with Y Y^T = Z^T Z: the constant of Lemma 11 is 0."""
    z = rng.normal(size=(n_out, hidden))
    values, vectors = np.linalg.eigh(z.T @ z)
    q = np.linalg.qr(rng.normal(size=(n_in, n_in)))[0][:hidden]
    y = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ q
    return y, z, rng.normal(size=(n_out, n_in)) * rng.exponential()


def ratio_of_shufflings(y, z, d):
    return np.linalg.norm(np.vstack([y, d]), 2) ** 2 / np.linalg.norm(np.hstack([z, d]), 2) ** 2


def test_e20_lemma_11_has_2_for_8():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(2000):
        n_in, n_out = rng.integers(2, 6, size=2)
        y, z, d = balanced_block(rng, n_in, rng.integers(1, n_in + 1), n_out)
        np.testing.assert_allclose(y @ y.T, z.T @ z, atol=1e-12)
        ratios.append(ratio_of_shufflings(y, z, d))
    assert max(ratios) <= 2
    assert min(ratios) >= 1 / 2
    assert 1.9 > max(ratios) > 1.5  # far from 8
    # attained: Y and D see the same direction, Z and D write to orthogonal ones
    y, z, d = np.array([[1.0, 0.0]]), np.array([[0.0], [1.0]]), np.diag([1.0, 0.0])
    np.testing.assert_array_equal(y @ y.T, z.T @ z)
    assert ratio_of_shufflings(y, z, d) == pytest.approx(2, abs=1e-15)
    assert ratio_of_shufflings(z.T, y.T, d.T) == pytest.approx(1 / 2, abs=1e-15)


def test_e20_theorem_2_needs_a_factor_at_the_flattening():
    """A 1 x 1 convolution of four channels on four positions, X = I_4, then one linear output: f = <V, K X>."""
    start = 0.3 * (np.eye(4) - np.ones((4, 4)) / 2)  # orthogonal up to scale, without zeros

    def network(k, v):
        return (v @ k).trace()

    def velocity(_, theta):
        k, v = theta.reshape(2, 4, 4)
        slope = 1 / (1 + np.exp(np.trace(v @ k)))  # of log(1 + e^{-f}), label +1
        return slope * np.stack([v.T, k.T]).ravel()

    theta = torch.tensor(np.stack([start, start.T])).requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.softplus(-network(*theta)), theta)
    np.testing.assert_allclose(velocity(0, theta.detach().numpy().ravel()), -gradient.numpy().ravel(), atol=1e-15)

    times = np.geomspace(1, 1e6, 13)
    path = solve_ivp(velocity, (0, 1e6), np.stack([start, start.T]).ravel(), "LSODA", times, rtol=1e-9, atol=1e-12).y
    assert (np.sign(path) == np.sign(path[:, :1])).all()  # a stable sign regime
    squares, ratios = [], []
    for k, v in path.T.reshape(-1, 2, 4, 4):
        values = np.linalg.svd(k)[1] ** 2
        np.testing.assert_allclose(k @ k.T, v.T @ v, atol=1e-9)  # balanced: the constant of the theorem is 0
        squares.append(values.sum())
        ratios.append(values[0] / values.sum())
    assert squares[-1] > 20 * squares[0]  # the norm diverges
    # printed: M_j = 1 here, as min(in, k) = 1 for a 1 x 1 kernel and no convolution follows; then the ratio tends to 1
    assert max(ratios) < 0.2501
    # with the factor min(C, P) = 4 the bound is 1/4, and is attained
    assert min(ratios) >= 0.25 - 1e-9
