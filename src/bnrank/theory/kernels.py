"""Kernel ridge regression: chosen by cross-validation, and its Jacobians, which overestimate the rank (T16)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from sklearn.gaussian_process.kernels import RBF, Kernel, Matern, RationalQuadratic
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold
from torch import Tensor

from bnrank._core import validation

__all__ = ["KERNELS", "KernelJacobians", "Selected", "jacobian_ranks", "select"]

Array = NDArray[np.float64]
Radial = tuple[Callable[[Array], Array], Callable[[Array], Array]]

_ROOT3, _ROOT5 = math.sqrt(3), math.sqrt(5)


def _inverse(r: Array) -> Array:
    """Return 1 / r, and 0 at 0."""
    return np.divide(1.0, r, out=np.zeros_like(r), where=r > 0)


# k(r) and k'(r) / r, r the distance over the length scale
RADIAL: dict[str, Radial] = {
    "rbf": (lambda r: np.exp(-(r**2) / 2), lambda r: -np.exp(-(r**2) / 2)),
    "laplace": (lambda r: np.exp(-r), lambda r: -np.exp(-r) * _inverse(r)),
    "matern32": (lambda r: (1 + _ROOT3 * r) * np.exp(-_ROOT3 * r), lambda r: -3 * np.exp(-_ROOT3 * r)),
    "matern52": (
        lambda r: (1 + _ROOT5 * r + 5 / 3 * r**2) * np.exp(-_ROOT5 * r),
        lambda r: -5 / 3 * (1 + _ROOT5 * r) * np.exp(-_ROOT5 * r),
    ),
    "rational": (lambda r: 1 / (1 + r**2), lambda r: -2 / (1 + r**2) ** 2),
}
KERNELS = tuple(RADIAL)
FITTED: dict[str, Callable[[float], Kernel]] = {
    "rbf": lambda h: RBF(h),
    "laplace": lambda h: Matern(h, nu=0.5),
    "matern32": lambda h: Matern(h, nu=1.5),
    "matern52": lambda h: Matern(h, nu=2.5),
    "rational": lambda h: RationalQuadratic(h / math.sqrt(2), alpha=1.0),
}
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class KernelJacobians:
    """Jacobians of a kernel ridge regression.

    Attributes
    ----------
    singular_values : Tensor
        Of Jf(x) at the points, (P, min(d_in, d_out)), descending.
    ranks : Tensor
        How many of them exceed ``rtol`` times the largest, (P,).
    expected : int
        min(affine rank of X, rank of Y): the rank at almost every point of the affine span of X, for almost every Y.
    x_rank, y_rank : int
        Those two ranks; d_in and min(N, d_out) where inputs and noise are generic and N > d_in.
    kernel : str
        Its name.
    length_scale, ridge : float
        In k(||x - x'|| / length_scale) and K + ridge I.
    rtol, data_rtol : float
        As given.
    regression : sklearn.kernel_ridge.KernelRidge
        The fit, on the precomputed kernel.
    """

    singular_values: Tensor
    ranks: Tensor
    expected: int
    x_rank: int
    y_rank: int
    kernel: str
    length_scale: float
    ridge: float
    rtol: float
    data_rtol: float
    regression: KernelRidge


def jacobian_ranks(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    kernel: str = "rbf",
    ridge: float = 1e-3,
    *,
    length_scale: float | None = None,
    points: Tensor | np.ndarray | None = None,
    rtol: float = 1e-10,
    data_rtol: float = 1e-6,
) -> KernelJacobians:
    r"""Fit a kernel ridge regression and return the ranks of its Jacobian (T16; Jacot2023a appendix D.1).

    f(x) = K(x, X) (K(X, X) + ridge I)^{-1} Y with K(x, x') = k(||x - x'|| / h), so
    Jf(x) = sum_i alpha_i k'(r_i) / (r_i h^2) (x - x_i)^T, alpha = (K + ridge I)^{-1} Y. For inputs that span the space
    and noise in Y, its rank is min(d_in, d_out) almost everywhere, whatever the rank of the true function.

    Parameters
    ----------
    x : Tensor or ndarray
        Inputs, (N, d_in), at least 2.
    y : Tensor or ndarray
        Outputs, (N, d_out).
    kernel : str
        "rbf" exp(-r^2 / 2), "laplace" exp(-r), "matern32", "matern52" or "rational" 1 / (1 + r^2).
    ridge : float
        Positive, added to the diagonal of K.
    length_scale : float, optional
        h; by default the median distance between inputs.
    points : Tensor or ndarray, optional
        Where the Jacobian is taken, (P, d_in); by default the midpoints of neighboring rows of x, at most 100 of them.
        A Laplace kernel has no derivative at the inputs themselves.
    rtol : float
        Singular values of Jacobians above ``rtol`` times the largest count.
    data_rtol : float
        The same for the ranks of X and Y.

    Returns
    -------
    KernelJacobians
        Singular values and ranks.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the shapes do not fit.

    Examples
    --------
    >>> import torch
    >>> draw = torch.Generator().manual_seed(0)
    >>> x = torch.randn(40, 3, generator=draw)
    >>> y = torch.stack([x[:, 0].sin(), x[:, 0] ** 2], 1) + 0.1 * torch.randn(40, 2, generator=draw)
    >>> int(jacobian_ranks(x, y).ranks.min())                     # the true function has rank 1
    2
    """
    shape = RADIAL[validation.choice(kernel, "kernel", KERNELS)]
    inputs = validation.samples(x, "x", minimum=2).detach().double().cpu().numpy()
    outputs = validation.samples(y, "y").detach().double().cpu().numpy()
    if len(inputs) != len(outputs):
        raise ValueError(f"y: got {len(outputs)} samples, expected as many as x has, {len(inputs)}")
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    rtol, data_rtol = validation.rtol(rtol), validation.rtol(data_rtol)
    distances = cdist(inputs, inputs)
    if length_scale is None:
        length_scale = _typical_distance(inputs)
    length_scale = validation.number(length_scale, "length_scale", 0.0, strict=True)
    if points is None:
        rows = np.linspace(0, len(inputs) - 2, min(100, len(inputs) - 1)).round().astype(int)
        places = (inputs[rows] + inputs[rows + 1]) / 2
    else:
        places = validation.samples(points, "points", features=inputs.shape[1]).detach().double().cpu().numpy()

    regression = KernelRidge(alpha=ridge, kernel="precomputed")
    regression.fit(shape[0](distances / length_scale), outputs)
    factors = shape[1](cdist(places, inputs) / length_scale) / length_scale**2  # (P, N)
    jacobians = np.stack(
        [regression.dual_coef_.T @ (f[:, None] * (p - inputs)) for f, p in zip(factors, places, strict=True)]
    )
    values = torch.from_numpy(np.linalg.svd(jacobians, compute_uv=False))
    ranks = (values > rtol * values[:, :1]).sum(1)
    x_rank, y_rank = _rank(inputs - inputs.mean(0), data_rtol), _rank(outputs, data_rtol)
    expected = min(x_rank, y_rank)
    return KernelJacobians(
        values, ranks, expected, x_rank, y_rank, kernel, length_scale, ridge, rtol, data_rtol, regression
    )


@dataclass(frozen=True)
class Selected:
    """A kernel ridge regression chosen by cross-validation.

    Attributes
    ----------
    kernel : str
        Its name.
    length_scale, ridge : float
        In k(||x - x'|| / length_scale) and K + ridge I.
    error : float
        Mean over the folds of the mean squared error on the samples left out, summed over outputs.
    at_edge : tuple of str
        Which of "length_scale" and "ridge" are the least or the largest that were tried: something beyond might be
        better.
    model : sklearn.kernel_ridge.KernelRidge
        The fit to all samples, outputs less ``mean``.
    mean : ndarray
        Mean of the outputs, (d_out,), or 0 where they were not centered.
    """

    kernel: str
    length_scale: float
    ridge: float
    error: float
    at_edge: tuple[str, ...]
    model: KernelRidge
    mean: Array

    def predict(self, x: Tensor | np.ndarray) -> Array:
        """Return the outputs at inputs (P, d_in), (P, d_out), float64."""
        inputs = validation.samples(x, "x", features=self.model.n_features_in_).detach().double().cpu().numpy()
        return np.asarray(self.model.predict(inputs) + self.mean)


def select(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    kernels: Sequence[str] = ("rbf", "laplace"),
    *,
    ridges: Sequence[float] = RIDGES,
    scales: Sequence[float] = SCALES,
    folds: int = 5,
    seed: int = 0,
    center: bool = True,
) -> Selected:
    """Choose kernel, length scale and ridge by cross-validation on the samples, and fit them all.

    scikit-learn's KernelRidge in its GridSearchCV, on shuffled folds, scored by the mean squared error.

    Parameters
    ----------
    x : Tensor or ndarray
        Inputs, (N, d_in).
    y : Tensor or ndarray
        Outputs, (N, d_out).
    kernels : sequence of str
        Those to choose from, as in :func:`jacobian_ranks`.
    ridges : sequence of float
        Positive numbers added to the diagonal of K.
    scales : sequence of float
        Length scales in units of the median distance between inputs.
    folds : int
        From 2 to N.
    seed : int
        Of the folds.
    center : bool
        Whether the mean of the outputs is taken off before and added after; not so in :func:`jacobian_ranks`.

    Returns
    -------
    Selected
        The best, fitted to all samples.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the shapes do not fit.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(-3, 3, 40)[:, None]
    >>> best = select(x, torch.sin(x), ["rbf"])
    >>> bool(abs(best.predict(torch.tensor([[0.5]]))[0, 0] - torch.sin(torch.tensor(0.5))) < 1e-3)
    True
    """
    inputs = validation.samples(x, "x", minimum=2).detach().double().cpu().numpy()
    outputs = validation.samples(y, "y").detach().double().cpu().numpy()
    if len(inputs) != len(outputs):
        raise ValueError(f"y: got {len(outputs)} samples, expected as many as x has, {len(inputs)}")
    lists = {"kernels": kernels, "ridges": ridges, "scales": scales}
    for name, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise TypeError(f"{name}: got {validation.describe(values)}, expected a sequence with something in it")
    names = [validation.choice(name, f"kernels[{i}]", KERNELS) for i, name in enumerate(kernels)]
    alphas = [validation.number(ridge, f"ridges[{i}]", 0.0, strict=True) for i, ridge in enumerate(ridges)]
    factors = [validation.number(scale, f"scales[{i}]", 0.0, strict=True) for i, scale in enumerate(scales)]
    if (folds := validation.integer(folds, "folds", 2)) > len(inputs):
        raise ValueError(f"folds: got {folds}, expected at most the number of samples, {len(inputs)}")
    lengths = [factor * _typical_distance(inputs) for factor in factors]
    tried = [(FITTED[name](length), name, length) for name in names for length in lengths]
    mean = outputs.mean(0) * center
    search = GridSearchCV(
        KernelRidge(),
        {"kernel": [kernel for kernel, _, _ in tried], "alpha": alphas},
        scoring="neg_mean_squared_error",
        cv=KFold(folds, shuffle=True, random_state=validation.integer(seed, "seed", 0)),
    ).fit(inputs, outputs - mean)
    ridge = search.best_params_["alpha"]
    name, length = next((n, h) for kernel, n, h in tried if kernel is search.best_params_["kernel"])
    chosen = {"length_scale": (length, lengths), "ridge": (ridge, alphas)}
    at_edge = tuple(
        key for key, (value, values) in chosen.items() if len(values) > 1 and value in (min(values), max(values))
    )
    error = -float(search.best_score_) * outputs.shape[1]
    return Selected(name, length, ridge, error, at_edge, search.best_estimator_, mean)


def _typical_distance(inputs: Array) -> float:
    """Return the median distance between inputs, the largest where it is 0, and 1 where all are the same."""
    between = pdist(inputs)
    return float(np.median(between)) or float(between.max()) or 1.0


def _rank(matrix: Array, rtol: float) -> int:
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > max(rtol, 1e-15 * max(matrix.shape)) * values[0]).sum()) if values[0] > 0 else 0
