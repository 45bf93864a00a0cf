"""Kernels along depth against loops, distances against textbook formulas and brute force, layouts against points."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from bnrank import MLP
from bnrank.measures import representations
from bnrank.measures.representations import METRICS, distance, distances, kernels, layout
from bnrank.networks.constructions import linear
from helpers import normal


def orthogonal(n, seed=0):
    return torch.linalg.qr(normal(n, n, seed=seed))[0]


def triple(metric, seed):
    """Return factors of three kernels of five samples, of one range."""
    if metric in ("affine-invariant", "log-euclidean"):
        return [normal(5, 6, seed=seed), normal(5, 5, seed=seed + 1), normal(5, 8, seed=seed + 2)]
    return [normal(5, 2, seed=seed), normal(5, 3, seed=seed + 1), normal(5, 8, seed=seed + 2)]


@pytest.mark.parametrize("values", ["preactivations", "activations"])
def test_kernels_are_inner_products_over_n(values):
    net, x = MLP([3, 5, 4, 2], slope=0.3, seed=1), normal(6, 3)
    found = kernels(net, x, which=values, chunk_size=4).matrices()
    at = [x[i].clone() for i in range(6)]
    for layer in range(4):
        for i, j in itertools.product(range(6), repeat=2):
            assert float(found[layer, i, j]) == pytest.approx(float((at[i] @ at[j]).detach()) / 6, abs=1e-12)
        if layer == 3:
            break
        for i in range(6):
            inside = at[i] if layer == 0 or values == "activations" else nn.functional.leaky_relu(at[i], 0.3)
            at[i] = net.weights[layer].double() @ inside + net.biases[layer].double()
            if values == "activations" and layer < 2:
                at[i] = nn.functional.leaky_relu(at[i], 0.3)


def test_kernels_of_images_are_those_of_flattened_ones():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x = normal(5, 1, 4, 4).float()
    found = kernels(net, x)
    assert found.names == ("input", "0", "3")
    assert [tuple(f.shape) for f in found.factors] == [(5, 16), (5, 8), (5, 3)]
    torch.testing.assert_close(
        found.matrices()[1], torch.tensordot(net[0](x), net[0](x), ([1, 2, 3],) * 2).detach().double() / 5
    )
    torch.testing.assert_close(found.singular_values()[1] ** 2, torch.linalg.eigvalsh(found.matrices()[1]).flip(0))


def test_bures_is_the_formula_with_roots_and_the_best_of_all_rotations():
    f, g = normal(5, 4), normal(5, 6, seed=1)
    a, b = (f @ f.T).numpy(), (g @ g.T).numpy()
    root = scipy.linalg.sqrtm(a)
    squared = np.trace(a + b - 2 * scipy.linalg.sqrtm(root @ b @ root)).real
    assert distance(f, g) == pytest.approx(math.sqrt(squared), rel=1e-6)
    f, g = f[:, :2], g[:, :2]
    turns = np.linspace(0, 2 * np.pi, 20_001)
    tried = []
    for flip in (1, -1):
        q = np.array([[np.cos(turns), -flip * np.sin(turns)], [np.sin(turns), flip * np.cos(turns)]])
        turned = np.einsum("na,abt->nbt", f.numpy(), q)
        tried.append(np.sqrt(((turned - g.numpy()[..., None]) ** 2).sum((0, 1))).min())
    assert distance(f, g) == pytest.approx(min(tried), rel=1e-7)
    assert distance(f, g) <= min(tried)


@pytest.mark.filterwarnings("ignore:logm result may be inaccurate")
@pytest.mark.parametrize("wide", [False, True])
def test_logarithmic_distances_are_those_of_matrix_logarithms(wide):
    """On the common range, which is everything or of dimension 4 among 30 samples."""
    f, g = normal(4, 4) + 2 * torch.eye(4), normal(4, 7, seed=1)
    a, b = (f @ f.T).numpy(), (g @ g.T).numpy()
    root = np.linalg.inv(scipy.linalg.sqrtm(a))
    basis = torch.linalg.qr(normal(30, 4, seed=2))[0] if wide else torch.eye(4, dtype=torch.float64)
    f, g = basis @ f, basis @ g
    assert distance(f, g, "affine-invariant") == pytest.approx(
        np.linalg.norm(scipy.linalg.logm(root @ b @ root)), rel=1e-10
    )
    assert distance(f, g, "log-euclidean") == pytest.approx(
        np.linalg.norm(scipy.linalg.logm(a) - scipy.linalg.logm(b)), rel=1e-10
    )


@pytest.mark.parametrize("samples", [6, 40])
def test_angles_are_those_of_kernels_and_cka(samples):
    f, g = normal(samples, 3) + 1, normal(samples, 5, seed=1)
    a, b = f @ f.T, g @ g.T
    assert distance(f, g, "angle") == pytest.approx(math.acos(float((a * b).sum() / a.norm() / b.norm())), rel=1e-10)
    h = torch.eye(samples, dtype=torch.float64) - 1 / samples
    a, b = h @ a @ h, h @ b @ h
    cka = float(torch.trace(a @ b) / torch.sqrt(torch.trace(a @ a) * torch.trace(b @ b)))
    assert distance(f, g, "centered-angle") == pytest.approx(math.acos(cka), rel=1e-10)


@pytest.mark.parametrize("metric", METRICS)
def test_axioms_of_a_metric(metric):
    for seed in range(30):
        a, b, c = triple(metric, 10 * seed)
        ab, bc, ac = distance(a, b, metric), distance(b, c, metric), distance(a, c, metric)
        assert 0.1 < ab < math.inf
        assert distance(b, a, metric) == pytest.approx(ab, rel=1e-9)
        assert ac <= ab + bc + 1e-9
        assert distance(a, a @ orthogonal(a.shape[1], seed), metric) < 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_what_changes_nothing(metric):
    a, b, _ = triple(metric, 0)
    d = distance(a, b, metric)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert distance(a[order], b[order] @ orthogonal(b.shape[1]), metric) == pytest.approx(d, rel=1e-9)
    scaled = distance(3 * a, 3 * b, metric)
    assert scaled == pytest.approx(3 * d if metric == "bures" else d, rel=1e-9)
    alone = distance(3 * a, b, metric)
    assert (alone == pytest.approx(d, rel=1e-9)) == metric.endswith("angle")
    m = normal(5, 5, seed=7)
    assert (distance(m @ a, m @ b, metric) == pytest.approx(d, rel=1e-6)) == (metric == "affine-invariant")


def test_log_euclidean_is_at_most_affine_invariant():
    for seed in range(20):
        a, b, _ = triple("log-euclidean", 10 * seed)
        assert distance(a, b, "log-euclidean") <= distance(a, b, "affine-invariant") * (1 + 1e-12)


@pytest.mark.parametrize(("metric", "factor"), [("bures", 1.0), ("affine-invariant", 2.0), ("log-euclidean", 2.0)])
def test_small_distances_keep_their_digits(metric, factor):
    f = normal(40, 4)
    size = float(f.norm()) if metric == "bures" else math.sqrt(4)
    step = 1e-10
    turned = (f * (1 + step)) @ orthogonal(4)
    assert distance(f, turned, metric) == pytest.approx(factor * step * size, rel=1e-4)


def test_small_angles_keep_their_digits():
    f = torch.eye(3, dtype=torch.float64)[:, :1]
    g = torch.tensor([[1.0], [1e-10], [0.0]], dtype=torch.float64)
    assert distance(f, g, "angle") == pytest.approx(math.sqrt(2) * 1e-10, rel=1e-6)  # of v v^T, not of v


def test_kernels_of_different_ranges_are_infinitely_far_apart():
    f, g = normal(6, 2), normal(6, 2, seed=1)
    for metric in ("affine-invariant", "log-euclidean"):
        assert distance(f, g, metric) == math.inf
        assert distance(f, torch.cat([f, g], 1), metric) == math.inf
        assert distance(f, f @ normal(2, 5, seed=2), metric) < math.inf
        noisy = torch.cat([f, 1e-9 * g], 1)
        assert distance(f, noisy, metric) == pytest.approx(0, abs=1e-8)
        assert distance(f, noisy, metric, rtol=1e-12) == math.inf
        assert distance(0 * f, 0 * g, metric) == 0
        assert distance(0 * f, g, metric) == math.inf
    assert distance(0 * f, g) == pytest.approx(float(g.norm()))


@pytest.mark.parametrize("metric", ["affine-invariant", "log-euclidean"])
def test_ranges_are_one_up_to_an_angle_of_a_millionth(metric):
    basis = orthogonal(7)
    f, g = normal(3, 3, seed=1), normal(3, 3, seed=2)
    same = distance(f, g, metric)
    for angle in (1e-10, 1e-7, 9e-7):
        tilted = basis[:, :3].clone()
        tilted[:, 0] = math.cos(angle) * basis[:, 0] + math.sin(angle) * basis[:, 3]
        assert distance(basis[:, :3] @ f, tilted @ g, metric) == pytest.approx(same, rel=1e-9)
    for angle in (2e-6, 1e-3):
        tilted[:, 0] = math.cos(angle) * basis[:, 0] + math.sin(angle) * basis[:, 3]
        assert distance(basis[:, :3] @ f, tilted @ g, metric) == math.inf


@pytest.mark.parametrize("white", [True, False])
def test_optimal_linear_networks_are_straight(white):
    """T8: affine-invariant distances go with the steps on any data; those of logarithms where the data are white."""
    a, x = normal(4, 4), normal(50, 4, seed=1)
    if white:
        x = torch.linalg.qr(x)[0]
    found = kernels(linear(a, 7), x)
    steps = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    d = distances(found, "affine-invariant")
    expected = 2 * float(torch.linalg.svdvals(a).log().norm())
    np.testing.assert_allclose(d, steps * expected / 7, atol=1e-12)
    d = distances(found, "log-euclidean")
    assert np.allclose(d, steps * expected / 7, atol=1e-10) == white


def test_distances_are_those_of_all_pairs():
    held = [normal(8, n, seed=n) for n in (2, 3, 4)]
    found = distances(held, "angle")
    for i, j in itertools.product(range(3), repeat=2):
        assert found[i, j] == pytest.approx(distance(held[i], held[j], "angle"), abs=1e-7)
    assert (np.diag(found) == 0).all()


def test_layout_finds_points_in_the_plane():
    points = normal(9, 2).numpy()
    d = np.linalg.norm(points[:, None] - points, axis=2)
    made = layout(d)
    np.testing.assert_allclose(np.linalg.norm(made.points[:, None] - made.points, axis=2), d, atol=1e-12)
    np.testing.assert_allclose(made.points.mean(0), 0, atol=1e-12)
    assert made.share == pytest.approx(1, abs=1e-12)
    assert (np.sort(made.eigenvalues)[::-1] == made.eigenvalues).all()
    assert (made.points.max(0) >= -made.points.min(0)).all()
    np.testing.assert_allclose(layout(d, 3).points[:, 2], 0, atol=1e-7)


def test_layout_says_how_much_it_leaves_out():
    simplex = np.ones((4, 4)) - np.eye(4)  # three equal eigenvalues
    assert layout(simplex).share == pytest.approx(2 / 3)
    star = np.array(
        [[0, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2], [1, 2, 2, 0.0]]
    )  # in no space: eigenvalues 2, 2, 0, -1/4
    made = layout(star)
    np.testing.assert_allclose(made.eigenvalues, [2, 2, 0, -0.25], atol=1e-12)
    assert made.share == pytest.approx(4 / 4.25)
    assert layout(np.zeros((3, 3))).share == 1


CONSTANT = torch.full((7, 3), 0.1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: distance(normal(3, 2), normal(4, 2)), ValueError, "b: got 4 samples, expected 3"),
        (lambda: distance(normal(3, 2), normal(3, 2), "burres"), ValueError, "did you mean 'bures'"),
        (lambda: distance(normal(3, 2), [1, 2]), TypeError, "b: got"),
        (lambda: distance(normal(3, 2) * math.nan, normal(3, 2)), ValueError, "a: got NaN"),
        (lambda: distance(normal(3), normal(3, 2)), ValueError, r"a: got shape \(3,\)"),
        (lambda: distance(normal(3, 2), 0 * normal(3, 2), "angle"), ValueError, "b: got a kernel that is 0"),
        (
            lambda: distance(CONSTANT, normal(7, 2), "centered-angle"),
            ValueError,
            "a: got a representation that is constant",
        ),
        (lambda: distance(normal(7, 2), 1e9 * CONSTANT, "centered-angle"), ValueError, "b: got a representation"),
        (lambda: distance(normal(3, 2), normal(3, 2), rtol=2.0), ValueError, "rtol"),
        (lambda: distances([]), ValueError, "factors: got an empty"),
        (lambda: kernels(MLP([2, 2]), normal(3, 2), which="weights"), ValueError, "which: got 'weights'"),
        (lambda: kernels(nn.ReLU(), normal(3, 2)), ValueError, "no linear or convolutional layer"),
        (lambda: layout(np.ones((2, 3))), ValueError, "distances: got"),
        (lambda: layout(np.full((2, 2), math.inf)), ValueError, "distances: got"),
        (lambda: layout(np.array([[0, 1], [2, 0]])), ValueError, "symmetric"),
        (lambda: layout(np.eye(2)), ValueError, "symmetric with 0"),
        (lambda: layout(np.zeros((2, 2)), 3), ValueError, "dims: got 3"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_values_that_overflow_are_refused():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.fill_(1e300)
        net[1].weight.fill_(1e300)
    with pytest.raises(ValueError, match="preactivations of layer '1': got NaN or infinite"):
        kernels(net, torch.ones(2, 1))


def test_public_names():
    assert set(representations.__all__) <= set(dir(representations))
