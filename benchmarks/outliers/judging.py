"""Counts with and without planted outliers, tables that were changed without reason, and the tables of both."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from benchmarks.against.trials import markdown, wilson
from benchmarks.outliers.tables import CLEAN, KINDS, clean, planted

__all__ = ["count", "fit", "measure", "report"]

Result = dict[str, Any]
PREAMBLE = """\
`BottleneckRegressor` as it comes, and with `robust=False`, on planted tables without and with 5 percent outliers.
Changed: the count differs from that of the table without outliers. Right: it is the planted one. Score: R^2 on the
table without outliers (median)."""


def fit(x: np.ndarray, y: np.ndarray, clean_x: np.ndarray, clean_y: np.ndarray, robust: bool, seed: int) -> Result:
    """Return what the regressor finds on a table, and its R^2 on the table without outliers."""
    from bnrank.discovery import BottleneckRegressor

    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = BottleneckRegressor(progress=False, random_state=seed, robust=robust).fit(x, y)
    spread = ((clean_y - clean_y.mean(axis=0)) ** 2).sum()
    return {
        "count": int(fitted.n_components_),
        "undetermined": bool(fitted.undetermined_),
        "interval": [int(end) for end in fitted.n_components_interval_],
        "score": 1 - float(((fitted.predict(clean_x) - clean_y) ** 2).sum() / spread),
        "rows": [int(row) for row in fitted.outliers_],
        "seconds": time.process_time() - began,
    }


def measure(cell: Result) -> Result:
    """Fit the table of a cell (kind, number and seed), as it comes or with outliers of this kind."""
    kind, number, seed = cell["kind"], cell["number"], cell["seed"]
    x, y, far_x, far_y, k = planted("rows of y" if kind == "none" else kind, number, seed)
    if kind == "none":
        return fit(x, y, x, y, cell["robust"], seed) | {"truth": k}
    rows = [int(row) for row in np.flatnonzero((x != far_x).any(axis=1) | (y != far_y).any(axis=1))]
    return fit(far_x, far_y, x, y, cell["robust"], seed) | {"truth": k, "planted": rows}


def report(results: list[Result]) -> str:
    """Return a row per kind of outliers, from results together with their cells."""
    plain = {(r["number"], r["seed"]): r for r in results if r["kind"] == "none"}
    rows, total = [], {True: [0, 0], False: [0, 0]}
    for kind in ("none", *KINDS):
        for robust in (True, False):
            own = [r for r in results if r["kind"] == kind and r["robust"] == robust]
            own = [r for r in own if (r["number"], r["seed"]) in plain]
            if not own:
                continue
            changed = sum(r["count"] != plain[r["number"], r["seed"]]["count"] for r in own)
            if kind != "none":
                total[robust] = [total[robust][0] + changed, total[robust][1] + len(own)]
            right = sum(r["count"] == r["truth"] for r in own)
            flagged = sum(r["undetermined"] for r in own)
            missed = sum(len(set(r.get("planted", [])) - set(r["rows"])) for r in own)
            false = sum(len(set(r["rows"]) - set(r.get("planted", []))) for r in own)
            score = f"{np.median([r['score'] for r in own]):.2f}"
            rows.append([kind, str(robust), len(own), changed, right, flagged, missed, false, score])
    headings = [
        "outliers",
        "robust",
        "tables",
        "changed",
        "right",
        "undetermined",
        "rows missed",
        "other rows",
        "score",
    ]
    ends = [
        f"With robust={robust}: {changed} of {number} counts changed, share {wilson(changed, number):.2f}."
        for robust, (changed, number) in total.items()
        if number
    ]
    return "\n\n".join([PREAMBLE, markdown(headings, [[str(entry) for entry in row] for row in rows]), " ".join(ends)])


def count(tables: int, seed: int) -> str:
    """Return a row per kind of table without outliers: how many were changed, and how many of their rows."""
    from bnrank.discovery.estimators.outliers import cleaned

    rows = []
    for kind in CLEAN:
        found = [len(cleaned(*clean(kind, number, seed)).rows) for number in range(tables)]
        rows.append([kind, str(tables), str(sum(n > 0 for n in found)), str(sum(found))])
    return markdown(["table", "tables", "tables changed", "rows changed"], rows)
