"""Kernel ridge regression overestimates the rank (T16)."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold

from bnrank.theory.kernels import KERNELS, jacobian_ranks, select

SKLEARN = {
    "rbf": lambda h: RBF(h),
    "laplace": lambda h: Matern(h, nu=0.5),
    "matern32": lambda h: Matern(h, nu=1.5),
    "matern52": lambda h: Matern(h, nu=2.5),
    "rational": lambda h: RationalQuadratic(h / np.sqrt(2), alpha=1.0),
}


def data(n=40, d=3, noise=0.1, seed=0):
    """Outputs that depend on the first input alone, and noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    t = x[:, 0]
    y = np.stack([np.sin(t), t**2, np.abs(t), np.cos(2 * t)], 1)
    return x, y + noise * rng.standard_normal(y.shape)


@pytest.mark.parametrize("kernel", KERNELS)
def test_jacobians_equal_differences_of_sklearns_predictions(kernel):
    x, y = data()
    points = np.random.default_rng(1).standard_normal((6, 3))
    found = jacobian_ranks(x, y, kernel, 0.05, length_scale=1.7, points=points)
    model = KernelRidge(alpha=0.05, kernel=SKLEARN[kernel](1.7)).fit(x, y)
    h = 1e-5
    steps = np.eye(3) * h
    for point, values in zip(points, found.singular_values, strict=True):
        columns = [(model.predict([point + s]) - model.predict([point - s]))[0] / (2 * h) for s in steps]
        expected = np.linalg.svd(np.stack(columns, 1), compute_uv=False)
        assert np.allclose(values, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_rank_is_full_where_the_true_function_has_rank_one(kernel):
    x, y = data()
    found = jacobian_ranks(x, y, kernel)
    assert (found.x_rank, found.y_rank) == (3, 4)
    assert found.expected.tolist() == [3] * 39
    assert found.ranks.tolist() == [3] * 39
    assert found.singular_values.shape == (39, 3)


def test_outputs_of_low_rank_have_jacobians_of_low_rank():
    x, y = data()
    found = jacobian_ranks(x, y[:, :1] @ np.ones((1, 4)))
    assert (set(found.expected.tolist()), found.y_rank) == ({1}, 1)
    assert set(found.ranks.tolist()) == {1}
    assert set(jacobian_ranks(x, np.zeros((40, 2))).ranks.tolist()) == {0}


def test_inputs_in_a_subspace_add_one_dimension_off_it():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal(6)
    y = rng.standard_normal((30, 6))
    inside = jacobian_ranks(x, y)
    assert (set(inside.expected.tolist()), inside.x_rank) == ({2}, 2)
    assert set(inside.ranks.tolist()) == {2}
    off = jacobian_ranks(x, y, points=rng.standard_normal((5, 6)))
    assert set(off.ranks.tolist()) == set(off.expected.tolist()) == {3}


def test_few_samples():
    rng = np.random.default_rng(0)
    found = jacobian_ranks(rng.standard_normal((3, 8)), rng.standard_normal((3, 8)))
    assert set(found.expected.tolist()) == {2}
    assert set(found.ranks.tolist()) == {2}
    same = jacobian_ranks(np.ones((3, 2)), np.ones((3, 2)))
    assert (set(same.expected.tolist()), set(same.ranks.tolist())) == ({0}, {0})


def exact_rank(rows):
    """Return the rank of a matrix of fractions, by elimination."""
    rows, rank = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] / rows[rank][column]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


def exact_jacobian(x, y, ridge, point):
    """Return the Jacobian of a ridge regression with k(r) = 1 / (1 + r^2), in fractions, up to a factor."""
    k = [[1 / (1 + sum((a - b) ** 2 for a, b in zip(u, v, strict=True))) for v in x] for u in x]
    table = [row + list(target) for row, target in zip(k, y, strict=True)]
    for i in range(len(x)):
        table[i][i] += ridge
    for i, row in enumerate(table):  # positive definite: no pivoting
        table[i] = row = [a / row[i] for a in row]
        for j, other in enumerate(table):
            if j != i:
                table[j] = [a - other[i] * b for a, b in zip(other, row, strict=True)]
    alpha = [row[len(x) :] for row in table]
    slopes = [
        [
            (p - a) / (1 + sum((q - b) ** 2 for q, b in zip(point, u, strict=True))) ** 2
            for p, a in zip(point, u, strict=True)
        ]
        for u in x
    ]
    columns = range(len(point))
    return [[sum(alpha[i][o] * slopes[i][c] for i in range(len(x))) for c in columns] for o in range(len(y[0]))]


@pytest.mark.parametrize(
    ("n", "d", "outputs", "rank", "offset", "on", "off"),
    [
        (3, 5, 4, 3, 0, 2, 3),  # N bounds it
        (6, 5, 4, 2, 0, 2, 3),  # rank X + 1, in a plane through the origin
        (6, 5, 4, 2, 1, 2, 3),  # rank X, which is 3 in a plane that misses the origin, and not rank X + 1
        (6, 5, 2, 3, 0, 2, 2),  # d_out
        (6, 3, 4, 3, 0, 3, 3),  # d_in: every point is in the span
        (4, 3, 3, 0, 1, 0, 1),  # one point, four times
    ],
)
def test_the_rank_is_that_of_exact_arithmetic(n, d, outputs, rank, offset, on, off):
    rng = np.random.default_rng(n * d)
    whole = rng.integers(-3, 4, (n, rank)) @ rng.integers(-3, 4, (rank, d)) + offset * rng.integers(1, 4, d)
    y, places = rng.integers(-9, 10, (n, outputs)), np.stack([whole[:2].mean(0), rng.integers(-3, 4, d) + 0.5])
    fractions = [[[Fraction(v) for v in row] for row in table.tolist()] for table in (whole, y, places)]
    exact = [exact_rank(exact_jacobian(*fractions[:2], Fraction(1, 8), point)) for point in fractions[2]]
    assert exact == [on, off]
    found = jacobian_ranks(whole.astype(float), y.astype(float), "rational", 1 / 8, length_scale=1.0, points=places)
    assert found.expected.tolist() == found.ranks.tolist() == exact


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 0.1, 1e6, 1e30])
def test_rounding_errors_are_not_dimensions(scale):
    """The mean of equal numbers is not exactly that number."""
    rng, y = np.random.default_rng(0), np.random.default_rng(1).standard_normal((7, 3))
    for x, rank in ((np.full((7, 3), scale), 0), (scale * (0.1 + np.outer(rng.standard_normal(7), [1, 2, 0.3])), 1)):
        found = jacobian_ranks(x, y)
        assert (found.x_rank, set(found.expected.tolist())) == (rank, {rank})


def test_the_fit_is_sklearns_and_nothing_is_changed():
    x, y = data()
    copies = x.copy(), y.copy()
    found = jacobian_ranks(torch.from_numpy(x).float(), torch.from_numpy(y).float(), ridge=0.5)
    assert found.regression.alpha == 0.5
    assert found.regression.dual_coef_.shape == (40, 4)
    assert np.array_equal(x, copies[0])
    assert np.array_equal(y, copies[1])
    between = np.linalg.norm(x[:, None] - x, axis=2)[np.triu_indices(40, 1)]
    assert found.length_scale == pytest.approx(np.median(between), rel=1e-5)


def test_bad_input_is_named():
    x, y = data()
    with pytest.raises(ValueError, match=r"kernel: got 'rbff'.*did you mean 'rbf'"):
        jacobian_ranks(x, y, "rbff")
    with pytest.raises(ValueError, match="ridge: got 0"):
        jacobian_ranks(x, y, ridge=0)
    with pytest.raises(ValueError, match="length_scale: got 0"):
        jacobian_ranks(x, y, length_scale=0)
    with pytest.raises(ValueError, match="y: got 39 samples"):
        jacobian_ranks(x, y[:39])
    with pytest.raises(ValueError, match="x: got 1 sample"):
        jacobian_ranks(x[:1], y[:1])
    with pytest.raises(ValueError, match=r"points: got shape \(2, 5\)"):
        jacobian_ranks(x, y, points=np.ones((2, 5)))
    with pytest.raises(ValueError, match=r"rtol: got 1\.5"):
        jacobian_ranks(x, y, data_rtol=1.5)


def folds_error(x, y, kernel, ridge, folds=4, seed=0):
    """Cross-validation by hand: mean over the folds of the mean squared error, summed over outputs."""
    errors = []
    for kept, left in KFold(folds, shuffle=True, random_state=seed).split(x):
        gram = kernel(x[kept]) + ridge * np.eye(len(kept))
        weights = np.linalg.solve(gram, y[kept] - y.mean(0))
        errors.append(((kernel(x[left], x[kept]) @ weights + y.mean(0) - y[left]) ** 2).sum(1).mean())
    return np.mean(errors)


def test_selected_is_the_best_of_a_loop():
    x, y = data(n=48, noise=0.2)
    ridges, scales = (1e-3, 0.1, 10.0), (0.5, 1.0, 3.0)
    typical = np.median([np.linalg.norm(a - b) for i, a in enumerate(x) for b in x[:i]])
    found = select(x, y, ["rbf", "laplace", "matern32"], ridges=ridges, scales=scales, folds=4)
    tried = {
        (name, scale, ridge): folds_error(x, y, SKLEARN[name](scale * typical), ridge)
        for name in ("rbf", "laplace", "matern32")
        for scale in scales
        for ridge in ridges
    }
    name, scale, ridge = min(tried, key=tried.get)
    assert (found.kernel, found.ridge) == (name, ridge)
    assert found.length_scale == pytest.approx(scale * typical)
    assert found.error == pytest.approx(min(tried.values()), rel=1e-8)
    edges = {"length_scale": scale != 1.0, "ridge": ridge != 0.1}
    assert found.at_edge == tuple(key for key, edge in edges.items() if edge)
    kernel = SKLEARN[name](found.length_scale)
    weights = np.linalg.solve(kernel(x) + ridge * np.eye(48), y - y.mean(0))
    points = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 3)))
    assert np.allclose(found.predict(points), kernel(points.numpy(), x) @ weights + y.mean(0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_selected_has_the_jacobians_of_jacobian_ranks(kernel):
    """Without centering, both are the same regression."""
    x, y = data()
    best = select(x, y + 5, [kernel], ridges=[0.1], scales=[1.0], folds=2, center=False)
    found = jacobian_ranks(x, y + 5, kernel, best.ridge, length_scale=best.length_scale)
    assert np.allclose(best.model.dual_coef_, found.regression.dual_coef_, rtol=1e-8)
    assert best.at_edge == ()
    assert not np.any(best.mean)
    assert found.length_scale == jacobian_ranks(x, y, kernel).length_scale


def test_outputs_far_from_zero_are_centered():
    x, y = data()
    near, far = (select(x, y + shift, ["rbf"]) for shift in (0.0, 1e3))
    assert (near.ridge, near.length_scale) == (far.ridge, far.length_scale)
    assert np.allclose(near.predict(x) + 1e3, far.predict(x))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kernels": ()}, TypeError, "kernels: got"),
        ({"kernels": "rbf"}, TypeError, "kernels: got 'rbf'"),
        ({"kernels": ["gauss"]}, ValueError, r"kernels\[0\]: got 'gauss'"),
        ({"ridges": (1.0, 0.0)}, ValueError, r"ridges\[1\]: got 0"),
        ({"scales": (-1.0,)}, ValueError, r"scales\[0\]: got -1"),
        ({"folds": 41}, ValueError, "folds: got 41, expected at most the number of samples, 40"),
        ({"folds": 1}, ValueError, "folds: got 1"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"y": np.ones((39, 2))}, ValueError, "y: got 39 samples"),
    ],
)
def test_bad_arguments_of_select(arguments, error, message):
    x, y = data()
    with pytest.raises(error, match=message):
        select(**{"x": x, "y": y, **arguments})
