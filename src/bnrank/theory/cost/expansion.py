"""Fit of the expansion of the norm in the depth to measured norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed

Array = NDArray[Any]  # float64
LEVEL = 0.95  # confidence level of the intervals
ALPHA = 0.01  # significance level
DRIFT = 0.25  # largest drift of the slope over the depths that the omitted terms may explain
SCATTER = 0.25  # largest residual relative to the depth; norms of neighboring ranks differ by about the depth
ROUNDING = 1e-10  # relative to the largest norm


@dataclass(frozen=True)
class Expansion(Printed):
    """Fit of L R0 + R1 + R2 / L to norms.

    Attributes
    ----------
    R0, R1, R2 : float
        Least-squares estimates.
    R0_interval, R1_interval, R2_interval : tuple of float
        95 percent confidence intervals; infinite if there are only as many norms as coefficients.
    residual : float
        Root mean square of the residuals, in units of the norm.
    p_value : float
        p-value of the misfit, by the test that ``reason`` names; NaN without a test.
    fits : bool or None
        Whether the expansion describes the norms; None if undetermined.
    reason : str
        Reason for ``fits``.
    rank : int
        R0 rounded.
    unique : bool
        Whether the interval of R0 contains exactly one integer; meaningful only if ``fits`` is True.

    Examples
    --------
    >>> import bnrank
    >>> depths = [4, 6, 8, 12]
    >>> found = bnrank.cost.expand(depths, [2 * depth + 3 for depth in depths])     # a bnrank.cost.Expansion
    >>> found.rank, round(found.R1, 6), round(float(found.predict(100)), 4)
    (2, 3.0, 203.0)
    """

    R0: float
    R1: float
    R2: float
    R0_interval: tuple[float, float]
    R1_interval: tuple[float, float]
    R2_interval: tuple[float, float]
    residual: float
    p_value: float
    fits: bool | None
    reason: str
    rank: int
    unique: bool

    def _content(self) -> list[Part]:
        word = {True: "fits", False: "does not fit", None: "undetermined"}[self.fits]
        several = "" if self.unique else ", not the only integer in its interval"
        rank = f"; R0 rounded is {self.rank}{several}" if self.fits else ""
        found = (("R0", self.R0_interval), ("R1", self.R1_interval), ("R2", self.R2_interval))
        rows = [
            {"coefficient": name, "estimate": getattr(self, name), "95 percent from": low, "to": high}
            for name, (low, high) in found
        ]
        misfit = "" if math.isnan(self.p_value) else f", p-value of the misfit {self.p_value:.2g}"
        return [
            f"norm = L R0 + R1 + R2 / L: {word} ({self.reason}){rank}",
            Table("Coefficients of the expansion", rows),
            f"root mean square of the residuals {self.residual:.3g}{misfit}",
        ]

    def predict(self, depth: ArrayLike) -> Any:
        """Return the fitted norm at a depth or at several, L R0 + R1 + R2 / L.

        Raises
        ------
        ValueError
            If a depth is not positive.
        """
        at = numbers(depth, "depth")
        validation.expect(bool((at > 0).all()), "depth", depth, "positive numbers")
        norm = at * self.R0 + self.R1 + self.R2 / at
        return float(norm) if norm.ndim == 0 else norm


def expand(
    depths: Sequence[int] | ArrayLike, norms: Sequence[float] | ArrayLike, *, sigma: float | None = None
) -> Expansion:
    r"""Return the least-squares fit of L R0 + R1 + R2 / L to norms of networks of different depths (T3).

    For the representation cost of one function (T1) R0 is a rank and R1 measures regularity (Jacot2023b); the omitted
    terms are O(1 / L^2).

    Intervals use the variance of the residuals and Student's t with n - 3 degrees of freedom, or ``sigma`` and the
    normal distribution. Without ``sigma``, if a further term c / L^2 is significant, they are widened by 1.5 times its
    effect on each coefficient.

    The fit is rejected (``fits`` is False)

    - with ``sigma``: if chi^2 = sum of squared residuals / sigma^2 is too large for n - 3 degrees of freedom;
    - without ``sigma``: if a residual exceeds L / 4. The norms of neighboring ranks differ by about L, so these norms
      do not belong to one rank: they are a mixture, or some networks collapsed. Also if the misfit is significant and
      large: over the depths, the slope, apart from R2 / L, drifts by more than 1/4. Significance is determined by an F
      test of lack of fit against the scatter at repeated depths, or, if no depth is repeated, by a test of a term in
      L^2.

    Significant means p < 0.01. The fit is undetermined (``fits`` is None) with fewer than 4 different depths; with 4
    depths that are not repeated and no ``sigma``, unless a residual is too large; and if the estimated drift of the
    slope exceeds 1/2, but the norms are too few or too noisy for significance.

    Parameters
    ----------
    depths : sequence of int
        L, one per norm; at least 3 different ones.
    norms : sequence of float
        ||theta||^2.
    sigma : float, optional
        Standard deviation of the norms about the expansion, if known.

    Returns
    -------
    Expansion
        Coefficients, intervals and verdict.

    Raises
    ------
    TypeError, ValueError
        If the arguments do not match, are not finite, or there are fewer than 3 different depths.

    Examples
    --------
    >>> depths = [4, 6, 8, 12, 16, 24]
    >>> found = expand(depths, [L * (2 ** (2 / L) + 0.5 ** (2 / L)) for L in depths])     # T2, singular values 2, 1/2
    >>> found.rank, found.unique, found.fits
    (2, True, True)
    >>> expand(depths, [L * L for L in depths]).fits
    False
    """
    L, y = _pairs(depths, norms)
    known = None if sigma is None else validation.number(sigma, "sigma", 0.0, strict=True)
    validation.expect(known is None or 1e-150 < known < 1e150, "sigma", sigma, "a number from 1e-150 to 1e150")
    columns = np.stack([L, np.ones_like(L), 1 / L], 1)
    estimate, gaps, inverse = least_squares(columns, y)
    freedom = len(y) - 3
    squares = float(gaps @ gaps)
    widths = half_widths(inverse, squares, freedom, known)
    further, p_further = with_term(columns, y, 1 / L**2)
    if known is None and p_further < ALPHA:
        widths = widths + 1.5 * np.abs(further[:3] - estimate)
    fits, p_value, reason = _verdict(L, y, columns, gaps, known)
    low, high = (estimate - widths).tolist(), (estimate + widths).tolist()
    R0, R1, R2 = estimate.tolist()
    R0_span, R1_span, R2_span = zip(low, high, strict=True)
    unique = bool(np.ceil(low[0]) == np.floor(high[0]))
    residual = math.sqrt(squares / len(y))
    return Expansion(R0, R1, R2, R0_span, R1_span, R2_span, residual, p_value, fits, reason, round(R0), unique)


def _verdict(L: Array, y: Array, columns: Array, gaps: Array, sigma: float | None) -> tuple[bool | None, float, str]:
    """Return fits, p-value and reason."""
    from scipy import stats

    different, group = np.unique(L, return_inverse=True)
    m, freedom = len(different), len(y) - 3
    if m < 4:
        return None, math.nan, f"{m} different depths, 4 are needed to tell a misfit from a fit"
    if sigma is not None:
        chi = float(gaps @ gaps) / sigma**2
        p = float(stats.chi2.sf(chi, freedom))
        return p >= ALPHA, p, f"chi^2 = {chi:.3g} with {freedom} degrees of freedom"
    worst = int(np.argmax(np.abs(gaps) / L))
    if abs(gaps[worst]) > SCATTER * L[worst]:
        return False, math.nan, f"the norm at depth {L[worst]:g} is off by {abs(gaps[worst]):.3g}, more than L / 4"
    if np.abs(gaps).max() <= ROUNDING * np.abs(y).max():
        return True, 1.0, "the residuals are rounding errors"
    means = np.bincount(group, y) / np.bincount(group)
    scatter = float(((y - means[group]) ** 2).sum())
    curved, p = with_term(columns, y, L**2)
    drift = abs(2 * curved[3] * (different[-1] - different[0]))
    test = "term in L^2"
    if m < len(y) and scatter > 0:
        F = (float(gaps @ gaps) - scatter) / (m - 3) / (scatter / (len(y) - m))
        p, test = float(stats.f.sf(F, m - 3, len(y) - m)), f"lack of fit, F = {F:.3g}"
    if math.isnan(p):
        return None, p, "4 depths, not repeated, without sigma: the residuals cannot be tested"
    reason = f"{test}: p = {p:.2g}; the slope drifts by {drift:.2g} over the depths"
    if p < ALPHA:
        return bool(drift <= DRIFT), p, reason
    return (True if drift <= 2 * DRIFT else None), p, reason


def _pairs(depths: Any, norms: Any) -> tuple[Array, Array]:
    L, y = numbers(depths, "depths"), numbers(norms, "norms")
    for values, name in ((L, "depths"), (y, "norms")):
        validation.expect(values.ndim == 1, name, values, "a sequence of numbers", TypeError)
    validation.expect(len(L) == len(y), "depths, norms", f"{len(L)} and {len(y)} numbers", "the same number")
    odd, different = L[(L < 1) | (np.rint(L) != L)], len(np.unique(L))
    validation.expect(not len(odd), "depths", ", ".join(f"{depth:g}" for depth in odd), "integers of at least 1")
    validation.expect(different >= 3, "depths", f"{different} different ones", "at least 3 for three coefficients")
    return L, y


def numbers(values: object, name: str) -> Array:
    """Return real numbers as a float64 array; errors name the argument."""
    return validation.real(values, name).double().cpu().numpy()


def least_squares(columns: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the coefficients, y minus the fit, and (X^T X)^{-1}."""
    scale = np.linalg.norm(columns, axis=0)
    q, r = np.linalg.qr(columns / scale)
    back = np.linalg.inv(r) / scale[:, None]
    return back @ (q.T @ y), y - q @ (q.T @ y), back @ back.T


def half_widths(inverse: Array, squares: float, freedom: int, sigma: float | None) -> Array:
    """Return half the widths of the intervals of coefficients; inf with neither sigma nor degrees of freedom."""
    from scipy import stats  # here, as it takes a second to import

    if sigma is None and not freedom:
        return np.full(len(inverse), math.inf)
    if sigma is not None:
        return stats.norm.ppf((1 + LEVEL) / 2) * sigma * np.sqrt(np.diag(inverse))
    return stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(squares / freedom * np.diag(inverse))


def with_term(columns: Array, y: Array, term: Array) -> tuple[Array, float]:
    """Return the coefficients with one more term, and the p-value of that term (NaN if unknown)."""
    from scipy import stats

    if len(np.unique(columns[:, 0])) < 4:
        return np.full(4, math.nan), math.nan
    estimate, gaps, inverse = least_squares(np.c_[columns, term], y)
    freedom = len(y) - 4
    if not freedom:
        return estimate, math.nan
    squares = max(float(gaps @ gaps), (ROUNDING * np.abs(y).max()) ** 2)
    deviation = math.sqrt(squares / freedom * inverse[3, 3])
    return estimate, float(2 * stats.t.sf(abs(estimate[3]) / deviation, freedom)) if deviation else 1.0
