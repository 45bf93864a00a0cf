"""The choice of one formula: the simplest that predicts rows it was not fitted to as well as the best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sympy
from scipy.stats import norm, rankdata, t
from sklearn.isotonic import IsotonicRegression

from bnrank.discovery.symbolic.expressions import (
    Expr,
    complexity,
    concise,
    inner,
    linear,
    refined,
    scaled,
    values,
)

TRIED = 12  # formulas of an engine that are fitted
CLEARLY = 2.0  # standard errors by which a formula must predict better than a constant, if there are many units
FEWEST_UNITS, FEWEST_TESTED = 8, 3  # of a table, and of its test
NOTHING = 1e-9  # share of the spread below which a term of a plane is left out
RTOL = 0.01  # share of what is explained that a simpler coordinate may lose
LINK_ROUNDS = 2  # in turns: the increasing function of a coordinate, and the constants of its formula


@dataclass(frozen=True)
class Split:
    """Indices of rows: formulas are fitted to ``fit``, chosen by ``choose``, and reported for ``test``.

    ``unit`` has the number of what is held out together, (N,): standard errors are over units.
    """

    fit: np.ndarray
    choose: np.ndarray
    test: np.ndarray
    unit: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """All rows but those of the test."""
        return np.concatenate([self.fit, self.choose])


def split(unit: np.ndarray, seed: int, held_out: float = 0.25) -> Split:
    """Return a split of the rows: a quarter of the units for the test, a third of the others for the choice.

    At least three units are for the test.
    """
    units = np.random.default_rng(seed).permutation(np.unique(unit))
    tested = max(FEWEST_TESTED, round(held_out * len(units)))
    chosen = max(1, round((len(units) - tested) / 3))
    parts = units[tested + chosen :], units[tested : tested + chosen], units[:tested]
    fit, choose, test = (np.flatnonzero(np.isin(unit, part)) for part in parts)
    return Split(fit, choose, test, unit)


def r2(y: np.ndarray, predicted: np.ndarray, mean: float) -> float:
    """Return 1 - (squared error) / (squared error of a constant, the mean of other rows); -inf where one is NaN."""
    worst = float(np.square(y - mean).sum())
    left = float(np.square(y - predicted).sum())
    return 1 - left / worst if np.isfinite(left) and worst > 0 else -np.inf


def beats_constant(y: np.ndarray, predicted: np.ndarray, mean: float, unit: np.ndarray) -> bool:
    """Return whether R^2 is above 0 by two standard errors over units, by more if units are few (quantiles of t).

    The standard error is that of a ratio of means, so that it is 0 for predictions without an error.
    """
    worst, left = np.square(y - mean), np.square(y - predicted)
    units = len(np.unique(unit))
    if units < FEWEST_TESTED or not np.isfinite(left).all() or not left.sum() < worst.sum():
        return False
    average = float((worst - left).mean())
    _, error = over_units(left / worst.mean() - worst * (left.mean() / worst.mean() ** 2), unit)
    return average / worst.mean() > float(t.ppf(norm.cdf(CLEARLY), units - 1)) * error


def over_units(values: np.ndarray, unit: np.ndarray) -> tuple[float, float]:
    """Return the mean of values of rows, and its standard error, where rows of a unit are not independent."""
    _, number = np.unique(unit, return_inverse=True)
    size = np.bincount(number)
    sums = np.bincount(number, values - values.mean())
    groups = len(size)
    error = np.sqrt(np.square(sums).sum() * groups / max(groups - 1, 1)) / len(values) if groups > 1 else np.inf
    return float(values.mean()), float(error)


def least_squares_plane(table: np.ndarray, y: np.ndarray) -> Expr:
    """Return the linear formula of least squares, of least weights where columns are dependent."""
    spread = table.std(axis=0)
    spread = np.where(np.ptp(table, axis=0) > 0, spread, np.inf)  # constants have no weight
    center = table.mean(axis=0)
    standard = np.linalg.lstsq((table - center) / spread, y - y.mean(), rcond=1e-10)[0]
    weights = np.where(np.abs(standard) > NOTHING * y.std(), standard, 0.0) / spread
    return linear(weights, float(y.mean() - weights @ center))


def simplest(candidates: Sequence[Expr], losses: np.ndarray, unit: np.ndarray, rtol: float = 0.0) -> int:
    """Return the simplest candidate whose loss exceeds the least by no more than a standard error.

    Parameters
    ----------
    candidates : sequence of Expr
        The formulas.
    losses : ndarray
        Of every candidate on every row, (candidates, rows); the first is that of a constant.
    unit : ndarray
        What is held out together, (rows,).
    rtol : float
        Share of what the best explains that a simpler candidate may lose.
    """
    mean = losses.mean(axis=1)
    best = int(np.argmin(mean))
    allowed = rtol * (mean[0] - mean[best])
    order = sorted(range(len(candidates)), key=lambda i: (complexity(candidates[i]), mean[i]))
    for i in order:
        worse, error = over_units(losses[i] - losses[best], unit)
        if worse <= max(error, allowed):
            return i
    return best


def chosen(proposed: Sequence[Expr], table: np.ndarray, y: np.ndarray, rows: Split) -> tuple[Expr, np.ndarray]:
    """Return the formula for y, with few digits, and its squared errors on the rows of the choice.

    Among the candidates are a constant and a linear formula. Constants are fitted to ``rows.fit`` for the choice, and
    to all rows but the test's afterwards.
    """
    fit, choose = rows.fit, rows.choose
    constant = linear(np.zeros(table.shape[1]), float(y[fit].mean()))
    candidates = [constant, least_squares_plane(table[fit], y[fit])]
    candidates += [expr for form in spread_out(proposed) if (expr := fitted(form, table[fit], y[fit])) is not None]
    kept, losses = _losses(candidates, table[choose], y[choose])
    place = simplest(kept, losses, rows.unit[choose])
    known = rows.known
    if kept[place] is candidates[0]:
        return concise(linear(np.zeros(table.shape[1]), float(y[known].mean())), table[known], y[known]), losses[place]
    if kept[place] is candidates[1]:
        return concise(least_squares_plane(table[known], y[known]), table[known], y[known]), losses[place]
    return concise(refined(kept[place], table[known], y[known]), table[known], y[known]), losses[place]


def fitted(form: Expr, table: np.ndarray, y: np.ndarray) -> Expr | None:
    """Return a + b f, where the constants a, b and those of f fit y; None if f is constant or undefined on a row."""
    expr = scaled(inner(form), table, y)
    return None if expr is None else refined(expr, table, y)


def spread_out(proposed: Sequence[Expr]) -> list[Expr]:
    """Return at most so many proposals as are tried, of all lengths."""
    if len(proposed) <= TRIED:
        return list(proposed)
    return [proposed[i] for i in np.unique(np.linspace(0, len(proposed) - 1, TRIED).astype(int))]


def _losses(candidates: Sequence[Expr], table: np.ndarray, y: np.ndarray) -> tuple[list[Expr], np.ndarray]:
    """Return the candidates that are defined on all rows, with their squared errors."""
    errors = [np.square(values(expr, table) - y) for expr in candidates]
    kept = [i for i, error in enumerate(errors) if np.isfinite(error).all()]
    return [candidates[i] for i in kept], np.array([errors[i] for i in kept])


def link(s: np.ndarray, z: np.ndarray) -> IsotonicRegression:
    """Return the increasing or decreasing function of s that fits z best."""
    rises = bool(np.corrcoef(rankdata(s), rankdata(z))[0, 1] >= 0)
    return IsotonicRegression(increasing=rises, out_of_bounds="clip").fit(s, z)


def chosen_coordinate(
    proposed: Sequence[Expr], table: np.ndarray, z: np.ndarray, rows: Split
) -> tuple[Expr | None, float]:
    """Return a formula that a monotone function carries to z, and the R^2 of this function on the rows of the choice.

    None if the best is a constant.
    """
    fit, choose = rows.fit, rows.choose
    mean = float(z[fit].mean())
    forms = [least_squares_plane(table[fit], z[fit])]
    forms += [linked for form in spread_out(proposed) if (linked := _linked(form, table[fit], z[fit])) is not None]
    candidates, errors = [sympy.Integer(0)], [np.square(z[choose] - mean)]
    for form in forms:
        s, new = values(form, table[fit]), values(form, table[choose])
        if np.isfinite(s).all() and np.isfinite(new).all() and np.ptp(s) > 0:
            candidates.append(form)
            errors.append(np.square(link(s, z[fit]).predict(new) - z[choose]))
    losses = np.array(errors)
    place = simplest(candidates, losses, rows.unit[choose], RTOL)
    score = 1 - float(losses[place].sum() / max(losses[0].sum(), 1e-300))
    if not place:
        return None, 0.0
    known = rows.known
    if candidates[place] is forms[0]:
        return concise(least_squares_plane(table[known], z[known]), table[known], z[known]), score
    return concise(candidates[place], table[known], z[known]), score


def _linked(form: Expr, table: np.ndarray, z: np.ndarray) -> Expr | None:
    """Return a formula whose constants fit a monotone function of z; None if it is undefined on a row."""
    expr = inner(form)
    for _ in range(LINK_ROUNDS):
        s = values(expr, table)
        if not np.isfinite(s).all() or not np.ptp(s) > 0:
            return None
        target = link(z, s).predict(z)
        better = fitted(expr, table, target)
        if better is None:
            return expr
        expr = inner(better)
    return expr
