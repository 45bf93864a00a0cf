"""Exponents of power products with intervals, from half-samples of the rows, and as small fractions."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.stats import t

from bnrank.discovery.power_products import embedding

HALVES, LINEAR_HALVES = 24, 200  # half-samples, for a Gaussian process and for least squares
CONFIDENCE = 0.99
DENOMINATORS = (1, 2, 3, 4)
LARGEST = 6  # exponent that is rounded to a fraction
FRACTIONS = tuple(sorted({Fraction(p, q) for q in DENOMINATORS for p in range(-LARGEST * q, LARGEST * q + 1)}))
MAX_FORMS = 200  # choices of the inputs with exponent 1 that are compared
NEAR_SINGULAR = 0.1  # smallest singular value of these inputs' exponents, relative to that of the best choice


@dataclass(frozen=True)
class Exponents:
    """Estimates of exponents, one row for each power product, with intervals.

    Attributes
    ----------
    values, low, high : ndarray
        (n, d), with the ends of 99 percent intervals; both equal the value where it is fixed by convention.
    pivots : tuple of int
        The inputs whose exponents are 1 in one product and 0 in the others; empty for a power law.
    deviations : ndarray, optional
        Differences of the estimates of m half-samples and ``values``, (m, n, d).
    """

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    pivots: tuple[int, ...]
    deviations: np.ndarray | None = None

    @property
    def rounded(self) -> list[list[Fraction | None]]:
        """The only fraction in each interval; None where there is none, or several."""
        rows = zip(self.low, self.high, strict=True)
        return [[fraction_in(a, b) for a, b in zip(low, high, strict=True)] for low, high in rows]

    @property
    def absent(self) -> np.ndarray:
        """Which inputs have exponents that cannot be told from 0 in all products, (d,), bool."""
        return np.asarray(((self.low <= 0) & (self.high >= 0)).all(axis=0))


def fraction_in(low: float, high: float) -> Fraction | None:
    """Return the only fraction with a denominator of at most 4 in an interval; None if there is none, or several.

    Examples
    --------
    >>> fraction_in(0.48, 0.53), fraction_in(0.2, 0.4), fraction_in(0.38, 0.45)
    (Fraction(1, 2), None, None)
    """
    inside = [fraction for fraction in FRACTIONS if low <= fraction <= high]
    return inside[0] if len(inside) == 1 else None


@dataclass(frozen=True)
class Table:
    """Inputs (logarithms, where positive) and the output, for exponents.

    Attributes
    ----------
    z, y : ndarray
        (N, d) and (N,).
    units : ndarray
        What is drawn together, by number, (N,).
    seed : int
        Of the half-samples.
    """

    z: np.ndarray
    y: np.ndarray
    units: np.ndarray
    seed: int

    def halves(self, count: int) -> Iterator[np.ndarray]:
        """Yield the rows of random halves of the units."""
        generator = np.random.default_rng(self.seed)
        number = int(self.units.max()) + 1
        for _ in range(count):
            yield np.flatnonzero(np.isin(self.units, generator.permutation(number)[: max(number // 2, 1)]))


def power_law(table: Table) -> Exponents:
    """Return the exponents of y = c z_1^a_1 z_2^a_2 ..., by least squares of log y on log z."""
    values = _slopes(table.z, table.y)[None]
    draws = np.array([_slopes(table.z[rows], table.y[rows])[None] for rows in table.halves(LINEAR_HALVES)])
    return _estimated(values, draws, ())


def exponents(table: Table, directions: np.ndarray, linear: bool) -> Exponents:
    """Return the exponents of n power products that y depends on, from directions found by a network.

    The products are determined up to powers and products of each other. They are given in the form where each has the
    exponent 1 in one input, in which the others have 0; of all choices of these inputs, that with most exponents
    rounded to fractions is taken. The subspace is that of a linear map if ``linear``, and otherwise that of a Gaussian
    process (:func:`~bnrank.discovery.power_products.embedding.refined`). Its error is estimated from half-samples: the
    variance of an estimate from a random half of the rows, around that from all rows, is the variance of the latter.

    Parameters
    ----------
    table : Table
        Inputs and output.
    directions : ndarray
        (n, d), uncorrelated and of variance 1 on the rows.
    linear : bool
        Whether a linear map predicts y as well as any network.
    """
    spread, n = table.z.std(axis=0), len(directions)
    if linear:
        whole = _slopes(table.z, table.y)[None]
        draws = [_slopes(table.z[rows], table.y[rows])[None] for rows in table.halves(LINEAR_HALVES)]
    else:
        z, y = (table.z - table.z.mean(axis=0)) / spread, (table.y - table.y.mean()) / table.y.std()
        some = np.random.default_rng(table.seed).permutation(len(z))[: embedding.MAX_ROWS]
        best = embedding.refined(z[some], y[some], embedding.started(directions * spread))
        kept = np.isin(np.arange(len(z)), some)
        halves = [rows[kept[rows]] for rows in table.halves(HALVES)]
        draws = [embedding.again(z[rows], y[rows], best)[:-2].reshape(n, -1) / spread for rows in halves]
        whole = best[:-2].reshape(n, -1) / spread
    return _best_form(whole, np.array(draws), spread)


def normal_form(directions: np.ndarray, pivots: tuple[int, ...]) -> np.ndarray:
    """Return the basis of a row space, (..., n, d), that is the identity in the columns ``pivots``.

    Examples
    --------
    >>> normal_form(np.array([[2.0, 2.0, -2.0], [0.0, 3.0, 6.0]]), (0, 1)).tolist()
    [[1.0, 0.0, -3.0], [0.0, 1.0, 2.0]]
    """
    made = np.linalg.solve(directions[..., list(pivots)], directions)
    made[..., list(pivots)] = np.eye(len(pivots))  # without rounding
    return made


def _best_form(whole: np.ndarray, draws: np.ndarray, spread: np.ndarray) -> Exponents:
    n, d = whole.shape
    scaled = np.linalg.qr((whole * spread).T)[0].T  # orthonormal rows, per standard deviation of the inputs
    choices = list(itertools.islice(itertools.combinations(range(d), n), MAX_FORMS))
    smallest = {pivots: float(np.linalg.svd(scaled[:, list(pivots)])[1][-1]) for pivots in choices}
    limit = NEAR_SINGULAR * max(smallest.values())
    forms = []
    for pivots in (pivots for pivots in choices if smallest[pivots] >= limit):
        values = normal_form(whole, pivots)
        form = _estimated(values, normal_form(draws, pivots), pivots)
        known = sum(fraction is not None for row in form.rounded for fraction in row)
        size = sum(abs(fraction) for row in form.rounded for fraction in row if fraction is not None)
        forms.append((known, -size, smallest[pivots], form))
    return max(forms, key=lambda entry: entry[:3])[3]


def _estimated(values: np.ndarray, draws: np.ndarray, pivots: tuple[int, ...]) -> Exponents:
    width = half_widths(draws - values)
    return Exponents(values, values - width, values + width, pivots, draws - values)


def half_widths(deviations: np.ndarray) -> np.ndarray:
    """Return half the widths of 99 percent intervals, (...), from the deviations of m half-samples, (m, ...).

    Examples
    --------
    >>> half_widths(np.array([[0.1], [-0.1]] * 1000)).round(3).tolist()
    [0.258]
    """
    width = t.ppf((1 + CONFIDENCE) / 2, len(deviations)) * np.sqrt(np.square(deviations).mean(axis=0))
    return np.asarray(width)


def _slopes(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(z - z.mean(axis=0), y - y.mean(), rcond=None)[0]


def smallest_integers(row: list[Fraction]) -> list[Fraction]:
    """Return a row times the positive number that gives the smallest integers.

    Examples
    --------
    >>> [int(value) for value in smallest_integers([Fraction(1, 2), Fraction(-3, 4)])]
    [2, -3]
    """
    common = math.lcm(*(value.denominator for value in row))
    divisor = math.gcd(*(int(value * common) for value in row))
    return [value * common / max(divisor, 1) for value in row]
