"""Formulas of a fitted regressor: held-out rows, a copy that has not seen them, and what is searched."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone

from bnrank._core import validation
from bnrank.discovery.columns import texts
from bnrank.discovery.estimators.dependence import consecutive, near
from bnrank.discovery.estimators.tables import groups_of_rows
from bnrank.discovery.symbolic import Formula, Formulas
from bnrank.discovery.symbolic.choice import FEWEST_UNITS, Split, split
from bnrank.discovery.symbolic.engines import engine_of, expect_installed
from bnrank.discovery.symbolic.expressions import DIGITS, SAME, concise, linear, rounded, values
from bnrank.discovery.symbolic.search import Problem, of_combinations, searched
from bnrank.networks.mlp import MLP

FEWEST = 20  # rows that are no outliers
DROPPED = 1e-3  # share of the variance of a combination that is left out with its smallest terms, together
SHALLOW, RIDGE = 4, 0.01  # of the networks that a linear model is compared with
ANY = "coordinates are determined up to invertible maps: a formula for one replaces it by a monotone function of it"


def formulas_of(
    found: Any, x: np.ndarray, y: np.ndarray, kept: np.ndarray, units: np.ndarray | None, options: dict[str, Any]
) -> Formulas:
    """Return formulas for a fitted regressor and a table.

    Parameters
    ----------
    found : BottleneckRegressor
        Fitted.
    x, y : ndarray
        The table, (N, d_in) and (N, d_out).
    kept : ndarray
        Which rows are no outliers, (N,), bool.
    units : ndarray or None
        Given groups, (N,).
    options : dict
        ``engine``, ``max_outputs``, ``tell``.
    """
    engine, tell = engine_of(options["engine"]), options["tell"]
    max_outputs = validation.integer(options["max_outputs"], "max_outputs")
    x, y = x[kept], y[kept]
    units = None if units is None else units[kept]
    validation.expect(len(x) >= FEWEST, "X", f"{len(x)} rows that are no outliers", f"at least {FEWEST}")
    seed = int(found.random_state) if isinstance(found.random_state, int | np.integer) else 0
    together, gap, notes = _together(x, y, units)
    number, named = len(np.unique(together)), "X" if units is None else "groups"
    validation.expect(number >= FEWEST_UNITS, named, f"{number} independent rows", f"at least {FEWEST_UNITS}")
    rows = _apart(split(together, seed), gap)
    known = np.sort(rows.known)
    inputs, outputs = tuple(texts(found.input_columns_, "x")), tuple(texts(found.output_columns_, "y"))
    z, predicted = np.zeros((len(x), 0)), np.tile(y[known].mean(axis=0), (len(x), 1))
    copy = found
    if found.n_components_:
        if found.model_ == "network":
            expect_installed(engine)
        copy = _copy(found, x[known], y[known], None if units is None else units[known], tell)
        z, predicted = copy._coordinates(x), copy._outputs_of(x)
    problem = Problem(x, y, z, predicted, rows, inputs, outputs, engine, seed, tell)
    if not copy.n_components_:
        notes.append(copy.reason_)
        made: tuple[tuple[Formula, ...], tuple[Formula, ...]] = (), _constants(problem)
    elif copy.model_ == "linear":
        notes.append("the model is linear: its formulas are written down, nothing was searched")
        made = _exact(copy, problem)
    elif len(outputs) == 1:
        directions = copy.input_directions_
        made = of_combinations(problem, [_combination(w, x[known]) for w in directions], x @ directions.T)
    else:
        made = searched(problem, max_outputs)
    if any(formula.verdict != "linear" for formula in made[0]):
        notes.append(ANY)
    if found.undetermined_:
        notes.append(f"the number of components is {found.reason_}")
    name = engine if isinstance(engine, str) else type(engine).__name__
    return Formulas(name, *made, len(known), len(rows.test), tuple(notes), copy._coordinates, found._inputs)


def _together(x: np.ndarray, y: np.ndarray, units: np.ndarray | None) -> tuple[np.ndarray, int, list[str]]:
    """Return what is held out together (groups, dependent rows, or copies of a row), the gap, and a remark."""
    if units is not None:
        return units, 0, ["rows of a group were held out together"]
    if (found := consecutive(x, y)) is not None:
        remark = "consecutive rows depend on each other: blocks of rows were held out together"
        return found.blocks, found.gap, [f"{remark}, rows next to them left out"]
    return np.asarray(pd.factorize(groups_of_rows(x, y))[0]), 0, []  # numbered by place, whatever the values


def _apart(rows: Split, gap: int) -> Split:
    """Return a split whose rows for fit and choice are more than the gap away from those of the test."""
    tested = np.zeros(len(rows.unit), dtype=bool)
    tested[rows.test] = True
    close = near(tested, gap)
    return Split(rows.fit[~close[rows.fit]], rows.choose[~close[rows.choose]], rows.test, rows.unit)


def _copy(found: Any, x: np.ndarray, y: np.ndarray, units: np.ndarray | None, tell: Callable[[str], None]) -> Any:
    """Return a copy of the estimator, fitted to some rows: with the same count, depth and ridge."""
    tell("a copy without the held-out rows")
    copy = clone(found).set_params(n_components=found.n_components_, progress=False, robust=False, n_networks=1, cv=2)
    network = found.model_ == "network"
    depth, ridge = (len(found.network_.weights), found.ridge_) if network else (SHALLOW, RIDGE)
    copy.set_params(ridges=[ridge], depth=depth)
    copy._sklearn_output_config, copy._warns = {}, False
    return copy.fit(x, y, units)


def _constants(problem: Problem) -> tuple[Formula, ...]:
    mean = problem.y[problem.rows.known].mean(axis=0)
    empty = np.zeros((len(problem.x), 0))
    return tuple(problem.judged(j, _constant(m, problem, j), (), empty) for j, m in enumerate(mean))


def _constant(mean: float, problem: Problem, j: int) -> Any:
    y = problem.y[problem.rows.known, j]
    return concise(linear(np.zeros(0), mean), np.zeros((len(y), 0)), y)


def _exact(copy: Any, problem: Problem) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """Return the formulas of a linear model, with as few digits as leave all of its values nearly as they are."""
    x, rows = problem.x, problem.rows
    encoder, decoder = _affine(copy.encoder_), _affine(copy.decoder_)
    targets = [problem.z, problem.predicted]
    for digits in (*DIGITS, None):
        first, second = ([rounded(e, digits) if digits else e for e in part] for part in (encoder, decoder))
        z = np.column_stack([values(expr, x) for expr in first])
        made = [z, np.column_stack([values(expr, z) for expr in second])]
        pairs = [(m[rows.known], wanted[rows.known]) for m, wanted in zip(made, targets, strict=True)]
        if all((np.sqrt(np.square(m - w).mean(axis=0)) <= SAME * w.std(axis=0)).all() for m, w in pairs):
            break
    coordinates = tuple(problem.shown(j, expr, problem.z[:, j]) for j, expr in enumerate(first))
    names = [formula.name for formula in coordinates]
    return coordinates, tuple(problem.judged(j, expr, names, z) for j, expr in enumerate(second))


def _affine(net: MLP) -> list[Any]:
    """Return a linear network as formulas, one for each output."""
    width = net.weights[0].shape[1]
    with torch.no_grad():
        constant = net(torch.zeros(1, width, dtype=torch.float64))[0].numpy()
        slopes = net(torch.eye(width, dtype=torch.float64)).numpy().T - constant[:, None]
    return [linear(w, float(c)) for w, c in zip(slopes, constant, strict=True)]


def _combination(weights: np.ndarray, x: np.ndarray) -> Any:
    """Return a combination of the inputs as a formula: the largest weight is 1, and small terms are left out.

    The terms that are left out have a thousandth of its variance at most, together.
    """
    size = np.abs(weights * x.std(axis=0))
    ratios = weights / weights[size.argmax()]
    order = np.argsort(size, kind="stable")
    lost = np.cumsum((x - x.mean(axis=0))[:, order] * ratios[order], axis=1)
    small = np.flatnonzero(lost[:, :-1].var(axis=0) <= DROPPED * lost[:, -1].var())
    ratios[order[: small[-1] + 1 if len(small) else 0]] = 0.0
    return concise(linear(ratios, 0.0), x, x @ ratios)
