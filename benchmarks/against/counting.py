"""How many numbers carry x to y: planted counts, one factor at a time around a center, and the peers' home grounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.against.counting_cases import Case, draw
from benchmarks.against.counting_peers import PEERS, Found, KernelFit
from benchmarks.against.counting_tables import KEPT, tables
from benchmarks.against.trials import attempt

__all__ = ["KEPT", "cells", "measure", "tables"]

SEEDS = range(100, 110)
QUICK_SEEDS = range(100, 102)
Center: dict[str, Any] = {"family": "smooth", "k": 3, "d": 20, "noise": 0.1, "n": 300}
CHANGES: list[dict[str, Any]] = [
    {},
    *({"k": k} for k in (1, 2, 4, 5, 6)),
    *({"d": d} for d in (10, 50)),
    *({"noise": noise} for noise in (0.0, 0.3)),
    *({"n": n} for n in (100, 1000, 3000)),
    *({"family": "low_rank_map", "noise": noise} for noise in (0.0, 0.1, 0.3)),
    {"family": "low_rank_map", "k": 1, "noise": 0.0, "n": 1000},
    *({"family": family} for family in ("linear", "directions", "surface")),
]
QUICK_CHANGES: list[dict[str, Any]] = [{"family": family, "n": 100} for family in ("smooth", "low_rank_map", "linear")]


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return the cases: seeds outside, so that a run that is cut short has all rows."""
    seeds, changes = (QUICK_SEEDS, QUICK_CHANGES) if quick else (SEEDS, CHANGES)
    rows = [Center | change for change in changes]
    return [row | {"seed": seed, "tuned": _tuned(row)} for seed in seeds for row in rows]


def _tuned(row: dict[str, Any]) -> bool:
    """Return whether rules of the estimator were chosen on such maps."""
    return row["family"] == "low_rank_map" and row["k"] == 1 and row["noise"] == 0 and row["n"] == 1000


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit bnrank and every peer to the case; judge count, coordinates, predictions and time."""
    return judge(draw(cell), {"bnrank": bottleneck, **PEERS})


def judge(case: Case, methods: dict[str, Callable[[Case], Found]]) -> list[dict[str, Any]]:
    """Return one result per method, ``ratio`` being its time over the first method's.

    ``prediction`` is the root of the squared error over that of the mean, against clean y of new rows.
    ``coordinates`` is R^2, on new rows and averaged over the true numbers, of kernel ridge regression from the found
    coordinates to the true ones; ``surplus`` 1 minus that from the true ones to the found ones: what they hold beside.
    """
    results = [attempt(name, partial(_judged, case, fit)) for name, fit in methods.items()]
    if "seconds" in results[0]:
        for result in results:
            if "seconds" in result:
                result["ratio"] = result["seconds"] / results[0]["seconds"]
    return results


def _judged(case: Case, fit: Callable[[Case], Found]) -> dict[str, Any]:
    began = time.process_time()
    found = fit(case)
    result: dict[str, Any] = {"seconds": time.process_time() - began, **found.extra}
    if found.count is not None:
        result["count"] = int(found.count)
    if found.predict is not None:
        residual = ((found.predict(case.x_test) - case.y_test) ** 2).sum()
        result["prediction"] = float(np.sqrt(residual / ((case.y_test - case.y_test.mean(0)) ** 2).sum()))
    if found.transform is not None and found.count:
        z, z_test = found.transform(case.x), found.transform(case.x_test)
        result["coordinates"] = explained(z, case.z, z_test, case.z_test)
        result["surplus"] = 1 - explained(case.z, z, case.z_test, z_test)
    elif found.predict is not None and found.count == 0:
        result["coordinates"] = 0.0
    return result


def explained(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Return R^2 on the test rows of the best kernel ridge regression x -> y, averaged over the columns of y."""
    scale = y.std(0) + 1e-12
    predicted = KernelFit(x, y / scale)(x_test)
    residual = ((predicted - y_test / scale) ** 2).sum(0)
    return float((1 - residual / ((y_test / scale - (y_test / scale).mean(0)) ** 2).sum(0)).mean())


def bottleneck(case: Case) -> Found:
    """Fit `bnrank.discovery.BottleneckRegressor` as it comes."""
    from bnrank.discovery import BottleneckRegressor

    fitted = BottleneckRegressor(progress=False, random_state=case.seed).fit(case.x, case.y)
    low, high = fitted.n_components_interval_
    extra = {"low": low, "high": high, "undetermined": bool(fitted.undetermined_), "model": fitted.model_}
    return Found(fitted.n_components_, fitted.transform, fitted.predict, extra)
