"""The search for power products: fits with logarithms of the inputs beside fits with the inputs as they are."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_consistent_length

from bnrank._core import validation
from bnrank.discovery.columns import columns_of, texts
from bnrank.discovery.estimators import BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators.tables import (
    checked_by_scikit,
    constant_columns,
    in_memory,
    read_samples,
    refuse_tables_by_name,
)
from bnrank.discovery.power_products.dimensional import search_by_units, without_units
from bnrank.discovery.power_products.exponents import Table
from bnrank.discovery.power_products.fits import drawn_together, exponents_of, fitted, log_is_closer_to_normal, seed_of
from bnrank.discovery.power_products.result import DimensionlessGroups, Factor, PowerProduct, products_of
from bnrank.discovery.power_products.rows import fitted_rows
from bnrank.discovery.power_products.units import quantities

CLEARLY = 2.0  # standard errors by which one fit must predict better than the other


def dimensionless_groups(
    X: Any,
    y: Any,
    *,
    units: Any = None,
    y_unit: str | None = None,
    groups: Any = None,
    estimator: BottleneckRegressor | None = None,
) -> DimensionlessGroups:
    """Find the power products of positive inputs, such as rho v L / mu, that one output depends on.

    Two models are fitted: with the inputs as they are, and with the logarithms of those that are positive, in which
    power products are linear combinations. Power products are found if the logarithms need fewer combinations and
    predict held-out rows no worse (by one standard error), or need no more and predict better by two standard errors.
    Their exponents and 99 percent intervals are those of least squares for power laws, and otherwise of a Gaussian
    process on the combinations, with half-samples of the rows; an exponent becomes a fraction with a denominator of at
    most 4 if exactly one lies in its interval. Inputs whose exponents cannot be told from 0 are left out.

    A positive y is replaced by its logarithm unless y itself is closer to normal (if std(log y) exp(mean(log y)) >
    1.1 std(y), the profile likelihood of Box and Cox 1964); the number of combinations does not depend on this.

    With ``units``, only dimensionless groups are searched, and y is divided by a product of inputs with its unit
    (Buckingham 1914). Constant inputs, such as the acceleration of gravity, count for the units. If no product of
    powers of the inputs has the unit of y, units are not used, and the reason says so.

    Parameters
    ----------
    X : array-like or DataFrame
        Inputs, (N, d_in).
    y : array-like
        One output, (N,) or (N, 1).
    units : mapping or sequence of str, optional
        The unit of every input, by name or in order, such as "kg/m^3", "degC", or "" for a number; read by pint (the
        extra ``units``).
    y_unit : str, optional
        The unit of y, such as "s", or "" for a number; required with ``units``.
    groups : array-like, optional
        What is held out together, (N,), as in :meth:`BottleneckRegressor.fit`.
    estimator : BottleneckRegressor, optional
        Settings of the two fits; it is not changed. If it is robust (the default), gross outliers are looked for once,
        in the values as given and in their logarithms, and all fits are to the rows that are left.

    Returns
    -------
    DimensionlessGroups
        The result, which prints itself.

    Raises
    ------
    TypeError, ValueError
        If X or y is refused by :class:`BottleneckRegressor`, y has several columns, ``estimator`` is another object, or
        a unit is missing or unknown.
    ImportError
        If units are given and pint is not installed.

    Warns
    -----
    NothingFoundWarning
        If no function predicts held-out rows better than the mean, or y is constant.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = pd.DataFrame(np.exp(rng.normal(size=(80, 3))), columns=["L", "g", "m"])
    >>> y = 6.28 * np.sqrt(x.L / x.g) * (1 + 0.02 * rng.normal(size=80))
    >>> found = dimensionless_groups(x, y)
    >>> print(*found.groups)
    L^(1/2) / g^(1/2)
    """
    model = validation.kind(estimator, "estimator", BottleneckRegressor) if estimator is not None else None
    model = BottleneckRegressor() if model is None else clone(model)
    x = read_samples(model, X, reset=True)
    output = _output(y, len(x))
    names = texts(columns_of(X, "x", x.shape[1]), "x")
    validation.expect(len(set(names)) == len(names), "X", f"columns {names}", "different names")
    validation.expect(units is not None or y_unit is None, "y_unit", f"{y_unit!r} without units", "both, or none")
    measured = None if units is None else quantities(x, output, names, units, y_unit)
    table = None
    if measured is not None:
        rows = fitted_rows(model, measured.x, measured.y, groups)
        table = without_units(replace(measured, x=rows.x, y=rows.y), names)
    if measured is not None and table is not None:
        found = replace(search_by_units(rows.model, table, rows.groups), units=measured.units)
    else:
        rows = fitted_rows(model, x, output, groups)
        found = _search(rows.model, rows.x, rows.y, names, rows.groups)
        if units is not None:
            missing = f"no product of powers of the inputs has the unit of y ({y_unit}), so that units were not used"
            found = replace(found, reason=f"{missing}; {found.reason}")
    if found.verdict == "nothing found":
        warnings.warn(f"dimensionless_groups: {found.reason}", NothingFoundWarning, stacklevel=2)
    return replace(found, outliers=rows.outliers, notes=rows.notes)


def _search(
    model: BottleneckRegressor,
    x: np.ndarray,
    output: np.ndarray,
    names: list[str],
    groups: Any,
) -> DimensionlessGroups:
    """Return the power products found without units."""
    use_log = bool((output > 0).all()) and log_is_closer_to_normal(output)
    target = np.log(output) if use_log else output
    varies = ~constant_columns(x)
    positive = varies & (x > 0).all(axis=0)
    given = fitted(model, pd.DataFrame(x, columns=names), target, groups)
    if not positive.any():
        return _without_logarithms(given, "no input that varies is positive")
    z = np.where(positive, np.log(np.where(positive, x, 1.0)), x)[:, varies]
    used = [name for name, kept in zip(names, varies, strict=True) if kept]
    logs = fitted(model, pd.DataFrame(z, columns=used), target, groups)
    logarithms = tuple(name for name, kept in zip(names, positive, strict=True) if kept)
    verdict, reason = _compared(given, logs, len(used))
    about = (logs.n_input_directions_interval_, logarithms, given, logs)
    if verdict not in ("power products", "undetermined number"):
        return _result(verdict, reason, (), None, (), *about)
    law = logs.model_ == "linear" and use_log
    table = Table(z, target, drawn_together(x, output, groups), seed_of(model))
    found, kept, left = exponents_of(table, logs, law, used, positive[varies])
    made = products_of(found, [used[i] for i in kept], list(positive[varies][kept]))
    coefficient = None
    if law:
        frame = pd.DataFrame(x, columns=names)
        coefficient = float(np.exp((target - made[0].logarithm(frame)).mean()))
    verdict = "undetermined" if verdict == "undetermined number" else verdict
    return _result(verdict, reason, made, coefficient, left, *about)


def _result(
    verdict: str,
    reason: str,
    made: tuple[PowerProduct, ...],
    coefficient: float | None,
    left: tuple[Factor, ...],
    interval: tuple[int, int],
    logarithms: tuple[str, ...],
    given: BottleneckRegressor,
    logs: BottleneckRegressor,
) -> DimensionlessGroups:
    fits = given.summary(), logs.summary()
    return DimensionlessGroups(verdict, reason, made, interval, coefficient, logarithms, left, *fits)


def _without_logarithms(given: BottleneckRegressor, reason: str) -> DimensionlessGroups:
    verdict = "linear combinations" if given.n_input_directions_ else "nothing found"
    return DimensionlessGroups(verdict, reason, (), (0, 0), None, (), (), given.summary(), None)


def _output(y: Any, rows: int) -> np.ndarray:
    validation.expect(y is not None, "y", "None", "one output, (N,)")
    y = in_memory(y, "y")
    with checked_by_scikit("y"):
        refuse_tables_by_name(y, "y")
        values = column_or_1d(check_array(y, ensure_2d=False, dtype=np.float64, input_name="y"))
        check_consistent_length(np.zeros(rows), values)
    return np.asarray(values)


def _compared(given: BottleneckRegressor, logs: BottleneckRegressor, inputs: int) -> tuple[str, str]:
    """Return the verdict, and the evidence in words."""
    (n, loss, error), (m, other, spread) = (_held_out(fit) for fit in (logs, given))
    said = f"held-out loss {loss:.3g} +- {error:.2g} with {n} combination(s) of logarithms, {other:.3g} +- {spread:.2g}"
    said += f" with {m} of the inputs as they are"
    if not n and not m:
        return "nothing found", given.reason_.removeprefix("nothing was found: ")
    clear = CLEARLY * np.hypot(error, spread)
    fewer = n < given.n_input_directions_interval_[0] and loss <= other + spread
    if n and (fewer or (n <= max(m, 1) and loss < other - clear)):
        if n == inputs > 1:
            return "linear combinations", f"each input counts by itself: {said}"
        if logs.input_directions_undetermined_:
            return "undetermined number", f"{logs.input_directions_reason_.removeprefix('undetermined: ')}; {said}"
        return "power products", said
    if n > m or other < loss - clear or not n:
        return "linear combinations", said
    return "undetermined", f"neither power products nor linear combinations are excluded: {said}"


def _held_out(fit: BottleneckRegressor) -> tuple[int, float, float]:
    n = fit.n_input_directions_
    return n, float(fit.input_held_out_[n]), float(fit.input_held_out_error_[n])
