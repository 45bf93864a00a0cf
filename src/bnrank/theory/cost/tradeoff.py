"""Rank against regularity: the minimum over k of lambda L k + C + lambda R1 over functions of rank k (T17b)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.theory.cost.expansion import Array, Expansion, expand
from bnrank.theory.cost.ladder import solve_depths

WHITE = 1e-9  # largest relative spread of the eigenvalues of X^T X / N for which the closed form is exact
COLLAPSED = 1e-6  # a singular value that shrinks below this, relative to the least-squares map, tends to 0
GRADIENT = 1e-7  # largest gradient of the objective at a minimum, relative to ridge, plus its scale
OPTIONS = {"gtol": 1e-10, "ftol": 1e-15, "maxiter": 5000, "maxfun": 20000, "maxcor": 30}
PERTURBED = 4  # number of further, perturbed starts per rank if the inputs are not white


@dataclass(frozen=True)
class RankTradeoff(Printed):
    """For each k, the cost C and the correction R1 of the best function of rank k that is found.

    The losses at large depth are lambda L k + C + lambda R1 (Jacot2023b section 3.1), up to lambda R2 / L.

    Attributes
    ----------
    ridge : float
        lambda.
    ranks : tuple of int
        R0 of each function: k = 0, 1, ... of a linear map; the fitted R0 of other functions.
    costs : tuple of float
        C of each function, infinite where no function of rank k is a local minimum.
    corrections : tuple of float
        R1 of each function, infinite where there is none.
    exact : bool
        Whether the functions are global minima of C + lambda R1 among local minima of their rank, by the closed form.
    maps : tuple of Tensor or None
        For linear maps: A of each rank, (d_out, d_in); None where there is none.
    fits : tuple of Expansion or None
        For other functions: the expansion of the norms over depths; None for the zero function.
    """

    ridge: float
    ranks: tuple[int, ...]
    costs: tuple[float, ...]
    corrections: tuple[float, ...]
    exact: bool
    maps: tuple[Tensor | None, ...] = field(default=(), repr=False)
    fits: tuple[Expansion | None, ...] = field(default=(), repr=False)

    def losses(self, depth: int) -> Array:
        """Return lambda L k + C + lambda R1 of each function, infinite where there is none, at L = ``depth``."""
        depth = validation.integer(depth, "depth")
        return np.array(self.costs) + self.ridge * (depth * np.array(self.ranks) + np.array(self.corrections))

    def rank(self, depth: int) -> int:
        """Return the rank of the function of least loss at this depth."""
        return self.ranks[int(np.argmin(self.losses(depth)))]

    def loss(self, depth: int) -> float:
        """Return the least loss at this depth, min over k of lambda L k + C + lambda R1."""
        return float(self.losses(depth).min())

    def _content(self) -> list[Part]:
        rows = [
            {"k": k, "C": c, "R1": r, "C + lambda R1": c + self.ridge * r}
            for k, c, r in zip(self.ranks, self.costs, self.corrections, strict=True)
        ]
        return [Table("Rank against regularity", rows)]


def linear_tradeoff(x: Tensor | np.ndarray, y: Tensor | np.ndarray, ridge: float, *, seed: int = 0) -> RankTradeoff:
    r"""Return the least C + lambda R1 of linear maps of every rank k, with R1(A) = 2 log |A|_+ (T3, T17b).

    C is the mean over samples of ||A x - y||^2. Over all maps of rank k the infimum is -infinity, since R1 does so as a
    singular value vanishes. The inner minimum of Jacot2023b section 3.1 is therefore a local one: one that keeps rank k
    (E28).

    If X^T X / N = c I, closed form: with the singular values m_1 >= m_2 >= ... of the least-squares map and the same
    singular vectors, s_i = (m_i + (m_i^2 - 4 lambda / c)^{1/2}) / 2 for i <= k, which exists if m_k^2 > 4 lambda / c,
    and s_i = 0 for i > k. Otherwise C + lambda R1 is minimized numerically from the reduced-rank regression and
    perturbations of it; the result is a local minimum and ``exact`` is False.

    Parameters
    ----------
    x, y : Tensor or ndarray
        Samples, (N, d_in), and targets, (N, d_out).
    ridge : float
        lambda > 0.
    seed : int
        Random seed of the perturbed starts.

    Returns
    -------
    RankTradeoff
        One entry for each k from 0 to the rank of the least-squares map.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> x = torch.eye(2) * 2**0.5                                           # X^T X / N = I
    >>> found = linear_tradeoff(x, x @ torch.diag(torch.tensor([3.0, 1.0])), ridge=0.05)
    >>> found.rank(depth=4), found.rank(depth=40), found.rank(depth=400)    # lambda L against m^2
    (2, 1, 0)
    """
    x, y = _data(x, y)
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    rng = np.random.default_rng(validation.seed(seed))
    problem = _Regression.of(x, y)
    scales = problem.eigenvalues
    white = bool(len(scales) == 0 or scales.max() - scales.min() <= WHITE * scales.max())
    costs, corrections, maps = [], [], []
    for k in range(len(problem.values) + 1):
        found = problem.white(k, ridge) if white else problem.searched(k, ridge, rng)
        costs.append(problem.cost(found) if found is not None else math.inf)
        corrections.append(2 * _log_volume(found, k) if found is not None else math.inf)
        maps.append(None if found is None else torch.from_numpy(found @ problem.basis.T))
    ranks = tuple(range(len(costs)))
    return RankTradeoff(ridge, ranks, tuple(costs), tuple(corrections), white, tuple(maps))


def solved_tradeoff(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    ridge: float,
    depths: Sequence[int],
    width: int,
    *,
    slope: float = 0.0,
    bias: bool = True,
    starts: int = 8,
    seed: int = 0,
    steps: int = 300,
    polish: int = 100,
) -> RankTradeoff:
    r"""Return C and R1 of interpolants of y truncated to k dimensions, by :func:`solve_depths` (T17b).

    For k = 0, 1, ..., rank y, the targets are replaced by the best approximation of rank k, sum_{i<=k} s_i u_i v_i^T, C
    is the rest, and :func:`expand` fits L R0 + R1 + R2 / L to the norms of the interpolants found. Both are upper
    bounds: the best function of rank k may fit other values, and :func:`solve` need not find the least norm. R0 is the
    fitted one, which can be below k, since a curve through k dimensions has rank 1.

    Parameters
    ----------
    x, y : Tensor or ndarray
        Samples, (N, d_in), and targets, (N, d_out).
    ridge : float
        lambda > 0.
    depths : sequence of int
        Depths of the interpolants, at least 3 different ones.
    width, slope, bias, starts, seed, steps, polish
        As in :func:`solve`.

    Returns
    -------
    RankTradeoff
        One entry for each k; ``fits`` has the expansions with their intervals.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or no start interpolates.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> found = solved_tradeoff(x, x * torch.tensor([1.0, 0.3]), 0.01, [2, 3, 4], width=4, starts=3, steps=60, polish=5)
    >>> found.ranks
    (0, 1, 2)
    """
    x, y = _data(x, y)
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    u, s, vt = torch.linalg.svd(y, full_matrices=False)
    ranks, costs, corrections = [0], [float((y**2).sum()) / len(y)], [0.0]
    fits: list[Expansion | None] = [None]
    options = {"slope": slope, "bias": bias, "starts": starts, "seed": seed, "steps": steps, "polish": polish}
    for k in range(1, int(linalg.rank(s, 1e-9)) + 1):
        found = solve_depths(x, (u[:, :k] * s[:k]) @ vt[:k], depths, width, **options)  # type: ignore[arg-type]
        lost = [str(depth) for depth, solution in zip(depths, found, strict=True) if not solution.interpolates]
        most = f"a larger one: no start interpolates y truncated to {k} dimensions at depth {', '.join(lost)}"
        validation.expect(not lost, "width", width, most)
        fit = expand(depths, [solution.norm for solution in found])
        ranks.append(fit.rank)
        costs.append(float((s[k:] ** 2).sum()) / len(y))
        corrections.append(fit.R1)
        fits.append(fit)
    return RankTradeoff(ridge, tuple(ranks), tuple(costs), tuple(corrections), False, fits=tuple(fits))


def least_linear_loss(x: Tensor | np.ndarray, y: Tensor | np.ndarray, ridge: float, depth: int) -> float:
    r"""Return a lower bound on C + lambda ||theta||^2 of linear networks of depth L without biases, exact for white x.

    C_0 + sum_i min_{s >= 0} (c (s - m_i)^2 + lambda L s^{2/L}), with C_0 and m_i the least cost and the singular values
    of the least-squares map, and c the smallest nonzero eigenvalue of X^T X / N: by T2, and since singular values of a
    difference are at least the differences of the sorted singular values. It is the minimum if X^T X / N = c I on the
    span of the samples.

    Parameters
    ----------
    x, y, ridge
        As in :func:`linear_tradeoff`.
    depth : int
        L.

    Returns
    -------
    float
        The bound.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> x = torch.eye(2) * 2**0.5
    >>> round(least_linear_loss(x, x @ torch.diag(torch.tensor([3.0, 1.0])), 0.05, depth=2), 6)    # soft threshold
    0.395
    """
    x, y = _data(x, y)
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    depth = validation.integer(depth, "depth")
    problem = _Regression.of(x, y)
    c, m = float(problem.eigenvalues.min(initial=math.inf)), problem.values
    return problem.least + sum(_least_scalar(c, float(v), ridge, depth) for v in m)


def linear_ranks(x: Tensor, y: Tensor, ridge: float, depth: int) -> int:
    """Return the k that minimizes lambda L k + C + lambda R1 with c for all eigenvalues of X^T X / N."""
    problem = _Regression.of(x, y)
    c, m = problem.eigenvalues.min(initial=math.inf), problem.values
    square = np.maximum(m**2 - 4 * ridge / c, 0.0)
    s = (m + np.sqrt(square)) / 2
    gains = c * (s - m) ** 2 + ridge * (depth + 2 * np.log(s)) - c * m**2
    return int(((square > 0) & (gains < 0)).sum())


def _least_scalar(c: float, m: float, ridge: float, depth: int) -> float:
    """Return min over s >= 0 of c (s - m)^2 + ridge L s^{2/L}, at 0 or at the largest root of the derivative."""

    def value(s: float) -> float:
        return c * (s - m) ** 2 + ridge * depth * s ** (2 / depth)

    if depth == 1:
        return value(c * m / (c + ridge))
    low = m * (depth - 2) / (2 * depth - 2)  # maximizes s^{1 - 2/L} (m - s), which is ridge / c at roots
    high = m
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if c * (m - middle) * middle ** (1 - 2 / depth) > ridge else (low, middle)
    return min(value(0.0), value(low), value(high))


def _data(x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
    x = validation.samples(x, "x").detach().cpu().double()
    y = validation.samples(y, "y").detach().cpu().double()
    validation.expect(len(x) == len(y), "x, y", f"{len(x)} and {len(y)} samples", "the same number in both")
    return x, y


def _log_volume(a: Array, k: int) -> float:
    return float(np.log(np.linalg.svd(a, compute_uv=False)[:k]).sum())


@dataclass(frozen=True)
class _Regression:
    """C(A) = least + Tr (A - map) diag(eigenvalues) (A - map)^T, in principal components of x with nonzero variance.

    ``basis`` is (d_in, r), ``map`` (d_out, r), ``values`` its nonzero singular values.
    """

    basis: Array
    eigenvalues: Array
    map: Array
    values: Array
    least: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> _Regression:
        u, s, vt = (v.numpy() for v in torch.linalg.svd(x, full_matrices=False))
        r = int(linalg.rank(torch.from_numpy(s), 1e-12))
        u, s, basis, targets = u[:, :r], s[:r], vt[:r].T, y.numpy()
        least_squares = (targets.T @ u) / s
        values = np.linalg.svd(least_squares, compute_uv=False)
        values = values[: int(linalg.rank(torch.from_numpy(values), 1e-12))]
        rest = float(((targets - u @ (u.T @ targets)) ** 2).sum()) / len(x)
        return cls(basis, s**2 / len(x), least_squares, values, rest)

    def cost(self, a: Array) -> float:
        """Return C(A)."""
        return self.least + float(((a - self.map) ** 2 * self.eigenvalues).sum())

    def white(self, k: int, ridge: float) -> Array | None:
        """Return the minimum of rank k in closed form, if all eigenvalues are equal."""
        u, m, vt = np.linalg.svd(self.map, full_matrices=False)
        square = m[:k] ** 2 - 4 * ridge / self.eigenvalues[:1] if k else np.zeros(0)
        if k and square.min() <= 0:
            return None
        return (u[:, :k] * ((m[:k] + np.sqrt(square)) / 2)) @ vt[:k]

    def searched(self, k: int, ridge: float, rng: np.random.Generator) -> Array | None:
        """Return the local minimum of rank k of least C + ridge R1 that is found, over factors A = G H."""
        from scipy.optimize import minimize

        if k == 0:
            return np.zeros_like(self.map)
        roots = np.sqrt(self.eigenvalues)
        u, m, vt = np.linalg.svd(self.map * roots, full_matrices=False)  # reduced-rank regression
        start = (u[:, :k] * np.sqrt(m[:k])), (np.sqrt(m[:k])[:, None] * vt[:k]) / roots
        shape, cut = (start[0].shape, start[1].shape), start[0].size
        best, least = None, math.inf

        def value(theta: Array) -> tuple[float, Array]:
            g, h = theta[:cut].reshape(shape[0]), theta[cut:].reshape(shape[1])
            gap = (g @ h - self.map) * self.eigenvalues
            gg, hh = g.T @ g, h @ h.T
            signs, logs = zip(*(np.linalg.slogdet(v) for v in (gg, hh)), strict=True)
            if min(signs) <= 0:
                return math.inf, np.zeros_like(theta)
            slopes = (
                2 * gap @ h.T + 2 * ridge * g @ np.linalg.inv(gg),
                2 * g.T @ gap + 2 * ridge * np.linalg.inv(hh) @ h,
            )
            return self.cost(g @ h) + ridge * sum(logs), np.concatenate([v.ravel() for v in slopes])

        for trial in range(PERTURBED + 1):
            noise = (1 + 0.3 * rng.normal(size=v.shape) if trial else 1.0 for v in start)
            theta = np.concatenate([(v * factor).ravel() for v, factor in zip(start, noise, strict=True)])
            end = minimize(value, theta, jac=True, method="L-BFGS-B", options=OPTIONS)
            a = end.x[:cut].reshape(shape[0]) @ end.x[cut:].reshape(shape[1])
            smallest = np.linalg.svd(a, compute_uv=False)[k - 1]
            settled = float(np.abs(end.jac).max()) <= GRADIENT * (1 + abs(end.fun))
            if settled and smallest > COLLAPSED * self.values[0] and end.fun < least:
                best, least = a, float(end.fun)
        return best
