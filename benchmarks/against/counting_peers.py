"""What else counts variables: reduced-rank regression, PLS, SIR, SAVE, intrinsic dimension, and a sweep of networks."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.against.counting_cases import Case

__all__ = ["PEERS", "Found", "KernelFit", "one_standard_error", "permutation_count"]

FOLDS = 5
RIDGES = np.logspace(-4, 3, 15)
SLICES = 10
PROJECTIONS = 5
PERMUTATIONS = 49
LARGEST = 10
ROWS = 1000  # of a kernel fit

Function = Callable[[np.ndarray], np.ndarray]
Kernel = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Found:
    """A count, and where the method gives them, coordinates x -> z and predictions x -> y."""

    count: int | None
    transform: Function | None = None
    predict: Function | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def one_standard_error(errors: np.ndarray, paired: bool = False) -> int:
    """Return the least k whose mean loss is within one standard error of the least one.

    Parameters
    ----------
    errors : ndarray
        Held-out loss at k = 0, 1, ... of every row, (K + 1, N).
    paired : bool
        Whether the error is that of the difference, row by row, or of the least loss (Breiman et al. 1984).
    """
    means = errors.mean(axis=1)
    best = int(means.argmin())
    for k, row in enumerate(errors):
        compared = row - errors[best] if paired else errors[best]
        if means[k] - means[best] <= compared.std() / np.sqrt(len(row)):
            return k
    return best


class KernelFit:
    """Ridge regression with a Gaussian kernel; width and ridge by the leave-one-out error, on at most 1,000 rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        x, y = x[:ROWS], y[:ROWS]
        self.center, self.scale, self.mean = x.mean(0), x.std(0) + 1e-12, y.mean(0)
        self.x = (x - self.center) / self.scale
        least = np.inf
        for gamma in np.array([0.01, 0.03, 0.1, 0.3, 1.0]) / max(1, x.shape[1]):
            values, vectors = np.linalg.eigh(self._kernel(self.x, gamma))
            rotated = vectors.T @ (y - self.mean)
            for ridge in np.logspace(-7, 2, 10):
                inverse = 1 / (np.maximum(values, 0) + ridge)
                weights = vectors @ (inverse[:, None] * rotated)
                left_out = weights / (vectors**2 @ inverse)[:, None]
                if (error := float((left_out**2).mean())) < least:
                    least, self.gamma, self.weights = error, gamma, weights

    def _kernel(self, x: np.ndarray, gamma: float) -> np.ndarray:
        squares = (x**2).sum(1)[:, None] + (self.x**2).sum(1) - 2 * x @ self.x.T
        return np.exp(-gamma * np.maximum(squares, 0))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the predictions, (rows, outputs)."""
        return self.mean + self._kernel((x - self.center) / self.scale, self.gamma) @ self.weights


def reduced_rank(case: Case, paired: bool = False) -> Found:
    """Cut ridge regression (ridge by leave-one-out) to the leading directions of its fitted values, rank by 1 SE."""
    errors = []
    for train, test in _folds(case):
        center, maps = _reduced_rank_maps(case.x[train], case.y[train])
        moved = case.x[test] - center
        errors.append([((case.y[test] - mean - moved @ b @ v @ v.T) ** 2).sum(1) for b, v, mean in maps])
    count = one_standard_error(np.concatenate(errors, axis=1), paired)
    center, maps = _reduced_rank_maps(case.x, case.y)
    b, v, mean = maps[count]
    return Found(count, lambda x: (x - center) @ b @ v, lambda x: mean + (x - center) @ b @ v @ v.T)


def _reduced_rank_maps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, ...]]]:
    from sklearn.linear_model import RidgeCV

    fitted = RidgeCV(RIDGES).fit(x, y)
    b = fitted.coef_.T
    directions = np.linalg.svd((x - x.mean(0)) @ b, full_matrices=False)[2].T
    most = min(x.shape[1], y.shape[1])
    return x.mean(0), [(b, directions[:, :k], y.mean(0)) for k in range(most + 1)]


def partial_least_squares(case: Case) -> Found:
    """Fit scikit-learn's PLSRegression with the number of components by 1 SE."""
    from sklearn.cross_decomposition import PLSRegression

    most = min(case.x.shape[1], case.y.shape[1])
    errors: list[list[np.ndarray]] = []
    for train, test in _folds(case):
        rows = [((case.y[test] - case.y[train].mean(0)) ** 2).sum(1)]
        for k in range(1, most + 1):
            predicted = PLSRegression(k, scale=False).fit(case.x[train], case.y[train]).predict(case.x[test])
            rows.append(((case.y[test] - predicted) ** 2).sum(1))
        errors.append(rows)
    count = one_standard_error(np.concatenate(errors, axis=1))
    if not count:
        return Found(0, None, lambda x: np.broadcast_to(case.y.mean(0), (len(x), case.y.shape[1])))
    fitted = PLSRegression(count, scale=False).fit(case.x, case.y)
    return Found(count, fitted.transform, fitted.predict)


def _folds(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import KFold

    return list(KFold(FOLDS, shuffle=True, random_state=case.seed).split(case.x))


# sufficient dimension reduction ---------------------------------------------------------------------------------------


def sliced_peer(name: str, rule: str) -> Callable[[Case], Found]:
    """Return SIR or SAVE of `sliced` on slices of y: 10 clusters by k-means, as it takes no y of several columns.

    ``rule`` is its own, the largest gap between eigenvalues, or a permutation test.
    """

    def fit(case: Case) -> Found:
        from sklearn.cluster import KMeans

        slices = KMeans(SLICES, n_init=3, random_state=case.seed).fit_predict(case.y)
        with names_of_2019():
            model = getattr(importlib.import_module("sliced"), name)

            def kernel(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                fitted = model(n_directions=None, n_slices=SLICES).fit(x, slices)
                return fitted.eigenvalues_, fitted.directions_.T

            own = None
            if rule == "gap":
                own = len(model(n_slices=SLICES).fit(whitened(case.x)[0], slices).directions_)
            return _sufficient(case, kernel, own)

    return fit


def statsmodels_peer(name: str) -> Callable[[Case], Found]:
    """Return SIR or SAVE of statsmodels, which takes one column: the mean of its matrices over y's first components.

    Slices are ten, of equal size; the count is by a permutation test, as it has no rule of its own.
    """

    def fit(case: Case) -> Found:
        from statsmodels.regression import dimred

        centered = case.y - case.y.mean(0)
        columns = (centered @ np.linalg.svd(centered, full_matrices=False)[2][:PROJECTIONS].T).T
        model = getattr(dimred, name)

        def kernel(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            total = np.zeros((x.shape[1], x.shape[1]))
            for column in columns:
                fitted = model(column, x).fit(slice_n=len(x) // SLICES)
                total += (fitted.params * fitted.eigs) @ fitted.params.T / len(columns)
            values, vectors = np.linalg.eigh(total)
            return values[::-1], vectors[:, ::-1]

        return _sufficient(case, kernel, None)

    return fit


def _sufficient(case: Case, kernel: Kernel, count: int | None) -> Found:
    """Find directions of whitened x, count them by permutations where not known, and predict y from them."""
    z, center, whitening = whitened(case.x)
    _, vectors = kernel(z)
    if count is None:
        count = permutation_count(z, kernel, case.seed)
    if not count:
        return Found(0, None, lambda x: np.broadcast_to(case.y.mean(0), (len(x), case.y.shape[1])))
    directions = whitening @ vectors[:, :count]
    predict = KernelFit((case.x - center) @ directions, case.y)
    return Found(count, lambda x: (x - center) @ directions, lambda x: predict((x - center) @ directions))


def whitened(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x - mean) W with covariance I, the mean, and W; directions of variance below 1e-10 are left out."""
    center = x.mean(0)
    values, vectors = np.linalg.eigh((x - center).T @ (x - center) / len(x))
    kept = values > 1e-10 * values.max()
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    return (x - center) @ whitening, center, whitening


def permutation_count(z: np.ndarray, kernel: Kernel, seed: int) -> int:
    """Return the least m for which the directions after the m-th do no better than after permuting them (5 percent).

    Rows of the other directions are permuted together against y and the first m (Cook and Yin 2001); the statistic is
    the sum of the other eigenvalues. 49 permutations; m is at most 10.
    """
    generator = np.random.default_rng(seed)
    values, vectors = kernel(z)
    basis = np.linalg.qr(vectors)[0]
    for m in range(min(LARGEST, z.shape[1] - 1)):
        kept, rest = z @ basis[:, :m], z @ basis[:, m:]
        exceeded = 0
        for _ in range(PERMUTATIONS):
            drawn = kernel(np.hstack([kept, rest[generator.permutation(len(z))]]))[0]
            exceeded += drawn[m:].sum() >= values[m:].sum()
            if (1 + exceeded) / (1 + PERMUTATIONS) > 0.05:
                return m
    return min(LARGEST, z.shape[1] - 1)


@contextlib.contextmanager
def names_of_2019() -> Iterator[None]:
    """Give `sliced` 0.7, of 2019, what it imports and what is gone since: six, pkg_resources, np.int, and a warning."""
    from packaging.version import parse

    six, resources = types.ModuleType("six"), types.ModuleType("pkg_resources")
    setattr(six, "string_types", (str,))  # noqa: B010
    setattr(resources, "parse_version", parse)  # noqa: B010
    numeric = importlib.import_module("numpy.core.numeric")
    modules = [module for module in (six, resources) if module.__name__ not in sys.modules]
    names = [(np, "int", int), (numeric, "ComplexWarning", np.exceptions.ComplexWarning)]
    names = [(module, name, value) for module, name, value in names if not hasattr(module, name)]
    sys.modules.update({module.__name__: module for module in modules})
    for module, name, value in names:
        setattr(module, name, value)
    try:
        yield
    finally:
        for lent in modules:
            sys.modules.pop(lent.__name__, None)
        for module, name, _ in names:
            delattr(module, name)


# intrinsic dimension and networks -------------------------------------------------------------------------------------


def intrinsic(name: str, of: str) -> Callable[[Case], Found]:
    """Return an estimator of scikit-dimension on x, on y, or on (x, y) scaled to the same spread; rounded."""

    def fit(case: Case) -> Found:
        skdim = importlib.import_module("skdim")
        parts = {"x": [case.x], "y": [case.y], "(x, y)": [case.x, case.y]}[of]
        data = np.hstack([part / np.sqrt(part.var(0).sum()) for part in parts])
        dimension = float(getattr(skdim.id, name)().fit(data).dimension_)
        return Found(round(dimension), extra={"dimension": dimension})

    return fit


def network_sweep(case: Case) -> Found:
    """Train networks x -> k -> y for k = 1 to 8, count by 1 SE of the cross-validated loss."""
    from benchmarks.against.counting_networks import sweep

    count, transform, predict = sweep(case.x, case.y, case.seed, one_standard_error)
    return Found(count, transform, predict)


def kernel_ridge(case: Case) -> Found:
    """Fit kernel ridge regression x -> y: no count, but what prediction without one reaches."""
    return Found(None, None, KernelFit(case.x, case.y))


PEERS: dict[str, Callable[[Case], Found]] = {
    "reduced-rank regression, 1 SE": reduced_rank,
    "reduced-rank regression, 1 SE in pairs": partial(reduced_rank, paired=True),
    "PLS (scikit-learn)": partial_least_squares,
    "SIR (sliced), own rule": sliced_peer("SlicedInverseRegression", "gap"),
    "SIR (sliced), permutations": sliced_peer("SlicedInverseRegression", "permutations"),
    "SAVE (sliced), own rule": sliced_peer("SlicedAverageVarianceEstimation", "gap"),
    "SAVE (sliced), permutations": sliced_peer("SlicedAverageVarianceEstimation", "permutations"),
    "SIR (statsmodels), permutations": statsmodels_peer("SlicedInverseReg"),
    "SAVE (statsmodels), permutations": statsmodels_peer("SlicedAverageVarianceEstimation"),
    **{
        f"{name} (scikit-dimension) on {of}": intrinsic(name, of)
        for name in ("TwoNN", "MLE", "lPCA")
        for of in ("x", "y", "(x, y)")
    },
    "encoder-decoder sweep": network_sweep,
    "kernel ridge, no count": kernel_ridge,
}
