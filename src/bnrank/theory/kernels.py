"""Kernel ridge regression: selection by cross-validation, and its Jacobians, which overestimate the rank (T16)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank._core.results import Printed
from bnrank._core.sampling import evenly_spaced

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel
    from sklearn.kernel_ridge import KernelRidge

__all__ = ["KERNELS", "KernelJacobians", "Selected", "jacobian_ranks", "select"]

Array = NDArray[np.float64]

ROOT3, ROOT5 = math.sqrt(3), math.sqrt(5)

# k'(r) / r, where r is the distance over the length scale
SLOPES: dict[str, Callable[[Array], Array]] = {
    "rbf": lambda r: -np.exp(-(r**2) / 2),
    "laplace": lambda r: -np.exp(-r) * np.divide(1, r, out=0 * r, where=r > 0),
    "matern32": lambda r: -3 * np.exp(-ROOT3 * r),
    "matern52": lambda r: -5 / 3 * (1 + ROOT5 * r) * np.exp(-ROOT5 * r),
    "rational": lambda r: -2 / (1 + r**2) ** 2,
}
KERNELS = tuple(SLOPES)
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
EPS = 1e-15  # rounding error, relative
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class KernelJacobians(Printed):
    """Jacobians of a kernel ridge regression.

    Attributes
    ----------
    singular_values : Tensor
        Singular values of Jf(x) at the points, (P, min(d_in, d_out)), descending.
    ranks : Tensor
        Number of them above ``rtol`` times the largest, (P,).
    expected : Tensor
        min(rank(X - x), rank Y), the rank for almost every Y and almost every x with this rank(X - x), (P,): ``x_rank``
        on the affine span of X (closer to it than ``data_rtol``), and ``x_rank`` + 1 off it.
    x_rank, y_rank : int
        The affine rank of X and the rank of Y; d_in and min(N, d_out) where inputs and noise are generic and N > d_in.
    kernel : str
        Its name.
    length_scale, ridge : float
        In k(||x - x'|| / length_scale) and K + ridge I.
    rtol, data_rtol : float
        As given.
    regression : sklearn.kernel_ridge.KernelRidge
        The fit.
    """

    singular_values: Tensor
    ranks: Tensor
    expected: Tensor
    x_rank: int
    y_rank: int
    kernel: str
    length_scale: float
    ridge: float
    rtol: float
    data_rtol: float
    regression: KernelRidge

    def __str__(self) -> str:
        ranks = f"rank up to {int(self.ranks.max())}, expected {int(self.expected.max())}"
        return f"{self.kernel} kernel ridge regression: {ranks}"


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
    r"""Return the ranks of the Jacobian of a kernel ridge regression (T16; Jacot2023a appendix D.1).

    f(x) = K(x, X) (K(X, X) + ridge I)^{-1} Y with K(x, x') = k(||x - x'|| / h), so
    Jf(x) = sum_i alpha_i k'(r_i) / (r_i h^2) (x - x_i)^T, alpha = (K + ridge I)^{-1} Y. For inputs that span the space
    and noise in Y, its rank is min(d_in, d_out) almost everywhere, whatever the rank of the true function. In general
    it is min(rank(X - x), rank Y), where X - x has one row per sample: for inputs of affine rank r < d_in, rank(X - x)
    is r at points of their affine span, and r + 1 <= min(N, d_in) elsewhere. The source writes min(rank X + 1, N) for
    r + 1, which is right if the affine span contains the origin (E24).

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
        Points of the Jacobians, (P, d_in); by default the midpoints of neighboring rows of x, at most 100 of them. A
        Laplace kernel has no derivative at the inputs themselves.
    rtol : float
        Singular values of Jacobians above ``rtol`` times the largest count.
    data_rtol : float
        Tolerance of the ranks of X and Y, relative to their largest singular values, and of the distance of a point
        from the affine span of X, relative to the sizes of the point and of X around the center.

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
    from sklearn.kernel_ridge import KernelRidge  # here, as it takes a second to import

    kernel = validation.choice(kernel, "kernel", KERNELS)
    inputs, outputs = _pair(x, y)
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    rtol, data_rtol = validation.rtol(rtol), validation.rtol(data_rtol, "data_rtol")
    length_scale = _typical_distance(inputs) if length_scale is None else length_scale
    length_scale = validation.number(length_scale, "length_scale", 0.0, strict=True)
    if points is None:
        rows = evenly_spaced(len(inputs) - 1, 100).numpy()
        places = (inputs[rows] + inputs[rows + 1]) / 2
    else:
        places = validation.samples(points, "points", features=inputs.shape[1]).detach().double().cpu().numpy()

    between = _covariance(kernel, length_scale)(inputs)
    regression = KernelRidge(alpha=ridge, kernel="precomputed").fit(between, outputs)
    factors = SLOPES[kernel](cdist(places, inputs) / length_scale) / length_scale**2  # (P, N)
    jacobians = np.stack(
        [regression.dual_coef_.T @ (f[:, None] * (p - inputs)) for f, p in zip(factors, places, strict=True)]
    )
    values = torch.from_numpy(np.linalg.svd(jacobians, compute_uv=False))
    x_rank, off = _affine_rank(inputs, places, data_rtol)
    y_rank = int(linalg.rank(np.linalg.svd(outputs, compute_uv=False), max(data_rtol, EPS * max(outputs.shape))))
    expected, ranks = (x_rank + off).clamp(max=y_rank), linalg.rank(values, rtol)
    return KernelJacobians(
        values, ranks, expected, x_rank, y_rank, kernel, length_scale, ridge, rtol, data_rtol, regression
    )


@dataclass(frozen=True)
class Selected(Printed):
    """A kernel ridge regression selected by cross-validation.

    Attributes
    ----------
    kernel : str
        Its name.
    length_scale, ridge : float
        In k(||x - x'|| / length_scale) and K + ridge I.
    error : float
        Mean over the folds of the mean squared error on held-out samples, summed over outputs.
    at_edge : tuple of str
        Which of "length_scale" and "ridge" are the smallest or the largest that were tried: values beyond may be
        better.
    model : sklearn.kernel_ridge.KernelRidge
        The fit to all samples, of outputs minus ``mean``.
    mean : ndarray
        Mean of the outputs, (d_out,); 0 if they were not centered.
    """

    kernel: str
    length_scale: float
    ridge: float
    error: float
    at_edge: tuple[str, ...]
    model: KernelRidge
    mean: Array

    def __str__(self) -> str:
        edge = f" ({' and '.join(self.at_edge)} at the edge of the grid)" if self.at_edge else ""
        scale = f"length scale {self.length_scale:.4g}, ridge {self.ridge:g}"
        return f"{self.kernel} kernel, {scale}{edge}: held-out error {self.error:.4g}"

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
    """Return the kernel ridge regression whose kernel, length scale and ridge win a cross-validation.

    scikit-learn's KernelRidge in its GridSearchCV, on shuffled folds, scored by the mean squared error.

    Parameters
    ----------
    x : Tensor or ndarray
        Inputs, (N, d_in).
    y : Tensor or ndarray
        Outputs, (N, d_out).
    kernels : sequence of str
        Candidates, as in :func:`jacobian_ranks`.
    ridges : sequence of float
        Candidates: positive numbers added to the diagonal of K.
    scales : sequence of float
        Candidates for the length scale, in units of the median distance between inputs.
    folds : int
        Number of folds, from 2 to N.
    seed : int
        Random seed of the folds.
    center : bool
        Whether to fit the outputs minus their mean; :func:`jacobian_ranks` does not.

    Returns
    -------
    Selected
        The best one, fitted to all samples.

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
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV, KFold

    inputs, outputs = _pair(x, y)
    lists = {"kernels": kernels, "ridges": ridges, "scales": scales}
    for name, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise TypeError(f"{name}: got {validation.describe(values)}, expected a sequence with something in it")
    names = [validation.choice(name, f"kernels[{i}]", KERNELS) for i, name in enumerate(kernels)]
    alphas = [validation.number(ridge, f"ridges[{i}]", 0.0, strict=True) for i, ridge in enumerate(ridges)]
    factors = [validation.number(scale, f"scales[{i}]", 0.0, strict=True) for i, scale in enumerate(scales)]
    folds, count = validation.integer(folds, "folds", 2), len(inputs)
    validation.expect(folds <= count, "folds", f"{folds}", f"at most the number of samples, {count}")
    lengths = [factor * _typical_distance(inputs) for factor in factors]
    tried = [(_covariance(name, length), name, length) for name in names for length in lengths]
    mean = outputs.mean(0) * validation.flag(center, "center")
    search = GridSearchCV(
        KernelRidge(),
        {"kernel": [kernel for kernel, _, _ in tried], "alpha": alphas},
        scoring="neg_mean_squared_error",
        cv=KFold(folds, shuffle=True, random_state=validation.seed(seed, bits=32)),
    ).fit(inputs, outputs - mean)
    ridge = search.best_params_["alpha"]
    name, length = next((n, h) for kernel, n, h in tried if kernel is search.best_params_["kernel"])
    chosen = {"length_scale": (length, lengths), "ridge": (ridge, alphas)}
    at_edge = tuple(
        key for key, (value, values) in chosen.items() if len(values) > 1 and value in (min(values), max(values))
    )
    error = -float(search.best_score_) * outputs.shape[1]
    return Selected(name, length, ridge, error, at_edge, search.best_estimator_, mean)


def _covariance(kernel: str, length_scale: float) -> Kernel:
    """Return scikit-learn's kernel of a name and a length scale."""
    from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic

    if kernel == "rbf":
        return RBF(length_scale)
    if kernel == "rational":
        return RationalQuadratic(length_scale / math.sqrt(2), alpha=1.0)
    return Matern(length_scale, nu={"laplace": 0.5, "matern32": 1.5, "matern52": 2.5}[kernel])


def _pair(x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> tuple[Array, Array]:
    inputs = validation.samples(x, "x", minimum=2).detach().double().cpu().numpy()
    outputs = validation.samples(y, "y").detach().double().cpu().numpy()
    validation.expect(len(inputs) == len(outputs), "y", f"{len(outputs)} samples", f"as many as x has, {len(inputs)}")
    return inputs, outputs


def _affine_rank(inputs: Array, places: Array, rtol: float) -> tuple[int, Tensor]:
    """Return the affine rank of inputs, and for each place 1 if it is off their affine span, else 0."""
    center = inputs.mean(0)
    _, values, directions = np.linalg.svd(inputs - center, full_matrices=False)
    rounding = EPS * sum(inputs.shape) * float(np.abs(inputs).max(initial=0.0)) * math.sqrt(inputs.size)
    rank = int(linalg.rank(values, max(rtol, EPS * max(inputs.shape)), rounding))
    rest = places - center
    size = np.linalg.norm(rest, axis=1) + float(values[:1].sum())
    distance = np.linalg.norm(rest - rest @ directions[:rank].T @ directions[:rank], axis=1)
    return rank, torch.from_numpy(distance > np.maximum(rtol * size, rounding)).long()


def _typical_distance(inputs: Array) -> float:
    """Return the median distance between inputs, the largest one if it is 0, or 1 if all inputs are equal."""
    between = pdist(inputs)
    return float(np.median(between)) or float(between.max()) or 1.0
