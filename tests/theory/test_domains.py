"""Planarity and complete positivity (T9), and the bound from two tangents (T17b)."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bnrank.networks.mlp import from_layers
from bnrank.theory import cones, constructions
from bnrank.theory.domains import completely_positive, planarity, tangent_bound

HORN = np.array([[1, -1, 1, 1, -1], [-1, 1, -1, 1, 1], [1, -1, 1, -1, 1], [1, 1, -1, 1, -1], [-1, 1, 1, -1, 1]])


def rotation(d, rng):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def circular_cone(n, degrees):
    """N rays of a regular cone in R^3, at an angle from the axis."""
    angle, t = np.deg2rad(degrees), 2 * np.pi * np.arange(n) / n
    return np.stack([np.full(n, np.cos(angle)), np.sin(angle) * np.cos(t), np.sin(angle) * np.sin(t)], 1)


def with_gram(gram):
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(values.clip(min=0))


def check_yes(found, x, tol=1e-6):
    """A "yes" is an isometry of the span into an orthant, and a factor of the Gram matrix."""
    assert found.status == "yes", found.reason
    o, x = found.isometry.numpy(), np.asarray(x, dtype=float)
    size = np.linalg.norm(x, axis=1)
    projection = np.linalg.pinv(x) @ x
    assert np.allclose(o.T @ o, projection, atol=1e-7)
    assert ((x @ o.T).min(1) >= -tol * size).all()
    assert found.factor.min() >= 0
    gram = found.factor.numpy() @ found.factor.numpy().T
    assert np.abs(gram - x @ x.T).max() <= tol * size.max() ** 2
    assert found.residual <= tol
    assert found.form is None


def dual_rays(x):
    """Extreme rays of {b : x b >= 0}, by brute force over subsets of constraints (in the span of x)."""
    x = np.asarray(x, dtype=float)
    span = np.linalg.svd(x, full_matrices=False)[2][: np.linalg.matrix_rank(x)].T
    y, rays = x @ span, []
    k = y.shape[1]
    for rows in itertools.combinations(range(len(y)), k - 1):
        _, s, v = np.linalg.svd(y[list(rows)]) if rows else (None, np.ones(1), np.eye(k))
        if k == 1 or s[-1] > 1e-9:
            rays += [sign * v[-1] for sign in (1, -1) if (y @ (sign * v[-1])).min() >= -1e-9]
    return np.array(rays).reshape(-1, k) @ span.T


def check_no(found, x):
    """A "no" is a form of negative trace that is not negative on the dual cone."""
    assert found.status == "no", found.reason
    form = found.form.numpy()
    assert np.trace(form) < 0
    assert np.allclose(form, form.T)
    rays = dual_rays(x)
    if not len(rays):
        return  # no half-space holds all points
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(len(rays), 0.3), 4000)
    b = np.concatenate([rays, weights @ rays])
    b /= np.linalg.norm(b, axis=1, keepdims=True)
    assert (np.asarray(x) @ b.T).min() >= -1e-8
    assert np.einsum("ni,ij,nj->n", b, form, b).min() >= -1e-9
    assert found.isometry is None


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**6))
def test_rotated_non_negative_points_are_completely_positive(n, m, seed):
    rng = np.random.default_rng(seed)
    x = rng.random((n, m)) * (rng.random((n, m)) < 0.6) @ rotation(m, rng)
    found = completely_positive(x)
    check_yes(found, x)
    assert found.k == np.linalg.matrix_rank(x)


@pytest.mark.parametrize("search", [(1, False), (1, True)])
def test_many_points_in_many_dimensions_are_found_by_projections(search, monkeypatch):
    monkeypatch.setattr(cones, "SEARCHES", (search,))
    rng = np.random.default_rng(0)
    x = rng.random((60, 10)) * (rng.random((60, 10)) < 0.5) @ rotation(10, rng)
    found = completely_positive(x)
    assert "projections" in found.reason
    check_yes(found, x)


def test_what_is_non_negative_already_needs_no_search(monkeypatch):
    monkeypatch.setattr(cones, "search", None)
    x = torch.rand(40, 30, generator=torch.Generator().manual_seed(0))
    x[:, 20:] = 0
    found = completely_positive(x)
    check_yes(found, x)
    assert found.k == 20


def test_a_negative_inner_product_is_a_certificate():
    rng = np.random.default_rng(0)
    x = rng.random((30, 4))
    x[17] = [-3.0, 1, 1, 1]
    found = completely_positive(x)
    i, j = found.pair
    assert x[i] @ x[j] < 0
    check_no(found, x[[i, j, 0, 1, 2]])
    assert (np.einsum("i,ij,j", x[i], found.form.numpy(), x[j])) != 0


@pytest.mark.parametrize(("degrees", "status"), [(10, "yes"), (89.99, "yes"), (90, "yes"), (90.01, "no"), (200, "no")])
def test_circle_arcs_up_to_a_right_angle(degrees, status):
    t = np.deg2rad(np.linspace(20, 20 + degrees, 50))
    x = np.stack([np.cos(t), np.sin(t)], 1)
    found = completely_positive(x)
    assert found.k == 2
    if status == "yes":
        check_yes(found, x)
    else:
        check_no(found, x)


@pytest.mark.parametrize("n", [3, 5, 6, 12, 40])
@pytest.mark.parametrize("side", [-0.01, 0.01])
def test_regular_cones_around_their_threshold(n, side):
    """The dual cone is regular too, of cot(a) / cos(pi/n) at most from the axis: tan^2 a <= 1 / (2 cos^2(pi/n)).

    The identity is a mean over rotations of b b^T if b can be sqrt 2 from the axis, and Tr diag(-r^2, 1, 1) < 0 else.
    Beyond the threshold inner products are negative at n = 3 alone.
    """
    x = circular_cone(n, np.rad2deg(np.arctan(1 / (math.sqrt(2) * math.cos(math.pi / n)))) + side)
    found = completely_positive(x)
    assert found.k == 3
    if side < 0:
        check_yes(found, x)
    else:
        check_no(found, x)
        assert (found.pair is not None) == (n == 3)


def test_a_doubly_non_negative_matrix_that_the_horn_matrix_separates():
    c = (math.sqrt(5) - 1) / 2
    gram = np.eye(5) + c * np.roll(np.eye(5), 1, 0) + c * np.roll(np.eye(5), -1, 0)  # rank 3
    assert (HORN * gram).sum() < 0
    found = completely_positive(with_gram(gram))
    assert (found.k, found.pair, found.rays) == (3, None, 5)
    check_no(found, with_gram(gram))


def test_a_doubly_non_negative_matrix_of_full_rank():
    gram = np.array([[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, 6.0]])
    found = completely_positive(with_gram(gram))
    assert (found.k, found.pair) == (5, None)
    check_no(found, with_gram(gram))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_four_points_without_negative_inner_products_always_are(seed):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.standard_normal((4, 4)) + rng.random() * np.eye(4)
        if (x @ x.T).min() >= 0:
            break
    check_yes(completely_positive(x), x)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(3, 4), st.integers(5, 9), st.integers(0, 10**6))
def test_random_cones_get_a_certificate_either_way(k, n, seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.ones((n, 1)), 0.45 * rng.standard_normal((n, k - 1))], 1)
    found = completely_positive(x)
    if found.status == "yes":
        check_yes(found, x)
    else:
        check_no(found, x)


def test_both_answers_occur_among_random_cones_without_negative_inner_products():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        directions = rng.standard_normal((9, 2))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        found = completely_positive(np.concatenate([np.ones((9, 1)), rng.uniform(0.7, 1.0) * directions], 1))
        if found.pair is None:
            seen.add(found.status)
    assert seen == {"yes", "no"}


@pytest.mark.parametrize("k", [2, 3, 5, 6])
def test_only_extreme_rays_are_looked_at(k):
    """The corners of a cross-polytope around an axis, and points within."""
    rng = np.random.default_rng(k)
    corners = np.concatenate([np.eye(k - 1), -np.eye(k - 1)]) * 0.2
    corners = np.concatenate([np.ones((2 * k - 2, 1)), corners], 1)
    x = np.concatenate([corners, rng.dirichlet(np.ones(len(corners)), 40) @ corners])
    found = completely_positive(rng.permutation(x * rng.uniform(0.1, 9, (len(x), 1))) @ rotation(k, rng))
    assert found.rays == 2 * k - 2
    assert found.k == k


def test_scales_order_and_zeros_do_not_matter():
    rng = np.random.default_rng(1)
    x = circular_cone(6, 39.5)
    sizes = np.exp(rng.standard_normal(6) * 5)[:, None]
    y = np.concatenate([(x * sizes)[::-1], np.zeros((2, 3))])
    assert completely_positive(x).status == completely_positive(y).status == "no"
    y = np.concatenate([(circular_cone(6, 39) * sizes)[::-1], np.zeros((2, 3))])
    found = completely_positive(y)
    assert found.status == "yes"
    assert found.residual < 1e-6
    assert (found.factor[-2:] == 0).all()


def test_trivial_domains():
    zero = completely_positive(torch.zeros(3, 2))
    assert (zero.status, zero.k, zero.factor.shape) == ("yes", 0, (3, 1))
    one = completely_positive(torch.tensor([[-2.0, 1.0]]))
    assert (one.status, one.k) == ("yes", 1)
    check_yes(one, [[-2.0, 1.0]])
    assert completely_positive(torch.tensor([[1.0], [-1.0]])).status == "no"
    assert completely_positive(torch.tensor([[1e-30, 0.0], [-1e30, 0.0]])).status == "no"


def test_without_a_certificate_it_says_so(monkeypatch):
    monkeypatch.setattr(cones, "MAX_FACES", 0)
    monkeypatch.setattr(cones, "STEPS", 3)
    found = completely_positive(circular_cone(12, 40))
    assert found.status == "inconclusive"
    assert "12 rays" in found.reason
    monkeypatch.setattr(cones, "SEARCHES", ())
    found = completely_positive(circular_cone(4, 40))  # four rays need no certificate
    assert (found.status, found.isometry) == ("yes", None)


def test_identity_of_norm_kl_on_planar_completely_positive_domains():
    """T9, one half: W_1 = O, W_l = P_{Im O}, W_L = O^T."""
    x = circular_cone(8, 36) @ np.concatenate([rotation(3, np.random.default_rng(0)), np.zeros((3, 2))], 1)
    found = completely_positive(x)
    o = found.isometry
    net = from_layers([o, *[o @ o.T] * 5, o.T])
    points = torch.from_numpy(np.concatenate([x, np.random.default_rng(0).random((50, 8)) @ x]))  # the whole cone
    assert torch.allclose(net(points), points, atol=1e-6)
    assert sum(float((p**2).sum().detach()) for p in net.parameters()) == pytest.approx(3 * 7, rel=1e-9)


def test_isometries_serve_the_construction_of_t7():
    """A linear map on a cone, both completely positive: kernels (1 - p) P + p A^T A at every layer."""
    x = torch.from_numpy(circular_cone(7, 35))
    a = torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.2], [0.1, 0.0, 1.1]], dtype=torch.float64)
    inner, outer = (completely_positive(points, atol=1e-13).isometry for points in (x, x @ a.T))
    net = constructions.completely_positive(a, 8, x, inner=inner, outer=outer)
    assert torch.allclose(net(x), x @ a.T, atol=1e-9)


def test_planarity():
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 5))
    found = planarity(plane)
    assert (found.k, found.affine) == (2, 2)
    assert found.planar(2)
    assert not found.planar(1)
    beside = planarity(plane + rng.standard_normal(5))
    assert (beside.k, beside.affine) == (3, 2)
    expected = torch.linalg.svdvals(torch.from_numpy(plane)) / math.sqrt(30)
    assert torch.allclose(found.singular_values, expected)
    assert planarity(plane + 1e-4 * rng.standard_normal((30, 5)), rtol=1e-2).k == 2
    assert planarity(np.zeros((3, 2))).k == 0
    assert planarity(plane, rtol=0.0).k == 2
    assert planarity(np.ones((1, 4), dtype=np.float32)).affine == 0


def least_over_weights(a, b):
    """min over M = W W^T of trace k of the larger of log det(A^T M^-1 A) and log det(B^T M^-1 B)."""
    d, k = a.shape
    lower = np.tril_indices(d)

    def worst(values):
        w = np.zeros((d, d))
        w[lower] = values
        m = w @ w.T + 1e-12 * np.eye(d)
        m *= k / np.trace(m)
        inverse = np.linalg.inv(m)
        # the norm ||W||^2 is free up to scale: what is left is max log det at trace k
        return max(np.linalg.slogdet(t.T @ inverse @ t)[1] for t in (a, b))

    best = math.inf
    for seed in range(2):
        start = np.eye(d)[lower] + 0.3 * np.random.default_rng(seed).standard_normal(len(lower[0]))
        for _ in range(3):
            found = minimize(worst, start, method="Nelder-Mead", options={"maxiter": 2000, "adaptive": True})
            start = found.x
        best = min(best, found.fun)
    return best


@pytest.mark.parametrize("degrees", [0, 10, 45, 90])
def test_two_tangents_of_a_curve(degrees):
    phi = np.deg2rad(degrees)
    a, b = np.array([[1.0], [0.0]]), np.array([[np.cos(phi)], [np.sin(phi)]])
    assert tangent_bound(a, b) == pytest.approx(math.log(1 + math.sin(phi)), abs=1e-12)
    assert least_over_weights(a, b) == pytest.approx(tangent_bound(a, b), abs=1e-5)


def test_two_tangent_planes_have_the_sum_over_principal_angles():
    first, second = 0.4, 1.1
    a = np.eye(4)[:, :2]
    b = np.array([[np.cos(first), 0], [0, np.cos(second)], [np.sin(first), 0], [0, np.sin(second)]])
    expected = math.log(1 + math.sin(first)) + math.log(1 + math.sin(second))
    q = rotation(4, np.random.default_rng(0))
    assert tangent_bound(q @ a @ [[2.0, 1], [0, 1]], q @ b) == pytest.approx(expected, abs=1e-12)
    assert least_over_weights(a, b) == pytest.approx(expected, abs=5e-3)
    assert tangent_bound(a, a @ [[1.0, 1], [0, 1]]) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("bad", [np.ones(3), np.full((2, 2), np.nan), np.zeros((0, 2))])
def test_bad_points_are_named(bad):
    for function in (planarity, completely_positive):
        with pytest.raises(ValueError, match="x: got"):
            function(bad)


def test_bad_arguments_are_named():
    x = np.eye(2)
    with pytest.raises(TypeError, match="x: got"):
        planarity([[1.0]])
    with pytest.raises(ValueError, match=r"^atol: got 0"):
        completely_positive(x, atol=0)
    with pytest.raises(ValueError, match="rtol"):
        planarity(x, rtol=1.0)
    with pytest.raises(ValueError, match="seed: got -1"):
        completely_positive(x, seed=-1)
    with pytest.raises(ValueError, match=r"b: got shape \(3, 1\)"):
        tangent_bound(np.ones((2, 1)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="a: got dependent columns"):
        tangent_bound(np.ones((2, 2)), x)
