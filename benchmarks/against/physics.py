"""How many state variables a film shows: physical systems for which the number is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.random_projection import GaussianRandomProjection

from benchmarks.against.physics_peers import formula, principal_components, train_autoencoders
from benchmarks.against.physics_systems import SYSTEMS, Frames, film
from benchmarks.against.trials import Kept, Result, attempt, by_system, failures, interval, markdown, wilson
from bnrank.discovery import BottleneckRegressor

__all__ = ["KEPT", "METHODS", "cells", "columns", "counts", "measure", "own", "tables"]

ROWS = 500
COLUMNS = 24
SEEDS = 10
NOISES = (0.0, 0.02)
BNRANK, SWEEP = "bnrank", "encoder-decoder sweep"
MAPS = (BNRANK, SWEEP)  # these count coordinates that a map can pass through; the others dimensions of a cloud
METHODS = (BNRANK, SWEEP, "MLE, latent", "TwoNN, latent", "MLE, pixels", "TwoNN, pixels", "PCA 99 percent")
OWN = ("count", "low", "high", "undetermined", "model", "unexplained", "unexplained_at_truth", "seconds")
KEPT = Kept(OWN, METHODS, group="system")
KNOWN = ("system", "noise", "seeds", "state variables", "least coordinates")


def cells(quick: bool = False) -> list[Result]:
    """Return the cells, seed by seed: system, noise, rows."""
    names = ("pendulum", "falling ball") if quick else tuple(SYSTEMS)
    return [
        {"seed": seed, "tuned": False, "system": name, "noise": noise, "rows": 200 if quick else ROWS}
        for seed in range(2 if quick else SEEDS)
        for noise in (NOISES[:1] if quick else NOISES)
        for name in names
    ]


def columns(frames: Frames, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames in 24 random projections each: fewer columns than pixels, distances nearly as they were.

    Principal components would not do: inputs are scaled each by itself, which blows the small ones up.
    """
    made = [
        GaussianRandomProjection(COLUMNS, random_state=2 * seed + i).fit_transform(table)
        for i, table in enumerate((frames.x, frames.y))
    ]
    return made[0], made[1]


def measure(cell: Result) -> list[Result]:
    """Let every method count what is in one film."""
    seed, name = cell["seed"], cell["system"]
    frames = film(name, cell["rows"], seed, cell["noise"])
    x, y = columns(frames, seed)
    latent: dict[str, np.ndarray] = {}

    def sweep() -> Result:
        count, latent["values"] = train_autoencoders(x, y, seed)
        return {"count": count}

    def of_latent(which: str) -> Result:
        return {"count": formula(which, latent["values"])}

    counters: dict[str, Callable[[], Result]] = {
        BNRANK: lambda: _bottleneck(x, y, SYSTEMS[name].coordinates),
        SWEEP: sweep,
        "MLE, latent": lambda: of_latent("MLE"),
        "TwoNN, latent": lambda: of_latent("TwoNN"),
        "MLE, pixels": lambda: {"count": formula("MLE", frames.x)},
        "TwoNN, pixels": lambda: {"count": formula("TwoNN", frames.x)},
        "PCA 99 percent": lambda: {"count": principal_components(frames.x)},
    }
    return [_timed(method, counters[method]) for method in METHODS]


def counts(results: Sequence[Result]) -> str:
    """Return the table of counts."""
    rows = by_system(results, SYSTEMS)
    table = [[*_known(row, some), *(_mean(_of(some, m)) for m in METHODS)] for row, some in rows.items()]
    failed = failures(results)
    return markdown([*KNOWN, *METHODS], table) + (f"\n\n{failed}" if failed else "")


def own(results: Sequence[Result]) -> str:
    """Return the table of what bnrank says of its own counts."""
    headings = ["wrong counts flagged undetermined", "interval covers least coordinates", "linear map kept"]
    headings += ["unexplained at the least coordinates", "unexplained at the count", "CPU time (s)"]
    rows = [[*_known(row, some), *_own(_of(some, BNRANK))] for row, some in by_system(results, SYSTEMS).items()]
    return markdown([*KNOWN, *headings], rows)


def tables(results: list[Result]) -> str:
    """Return the tables: counts, share of right ones, and what bnrank says of its own."""
    shares = [
        [*_known(row, some), *(_share(_of(some, m)) for m in METHODS)]
        for row, some in by_system(results, SYSTEMS).items()
    ]
    return "\n\n".join(
        [
            "Two frames in, the next two out. Means over seeds with 95 percent bootstrap intervals; no case was used "
            "to choose the library's rules. *State variables* is the dimension of the set of states, which the "
            "formulas estimate; *least coordinates* is the least number of continuous coordinates that a map can carry "
            "them by, which bnrank and the sweep count (they differ for a circle, which does not fit into a line). A "
            "map that carries every full turn by cosine and sine uses one more for circular motion.",
            "## Counts",
            counts(results),
            "## Share of right counts (formulas rounded), with Wilson intervals",
            markdown([*KNOWN, *METHODS], shares),
            "## bnrank on its own count",
            own(results),
        ]
    )


def _bottleneck(x: np.ndarray, y: np.ndarray, coordinates: int) -> Result:
    found = BottleneckRegressor(progress=False).fit(x, y)
    low, high = found.n_components_interval_
    share = found.held_out_ / found.held_out_[0]
    return {
        "count": int(found.n_components_),
        "low": int(low),
        "high": int(high),
        "undetermined": bool(found.undetermined_),
        "model": found.model_,
        "unexplained": float(share[min(found.n_components_, len(share) - 1)]),
        "unexplained_at_truth": float(share[min(coordinates, len(share) - 1)]),
    }


def _timed(method: str, count: Callable[[], Result]) -> Result:
    began = time.process_time()
    result = attempt(method, count)
    return result | {"seconds": time.process_time() - began}


def _of(results: Iterable[Result], method: str) -> list[Result]:
    return [r for r in results if r["method"] == method]


def _truth(result: Result) -> int:
    system = SYSTEMS[result["system"]]
    return system.coordinates if result["method"] in MAPS else system.variables


def _known(row: tuple[str, float], results: list[Result]) -> list[Any]:
    system = SYSTEMS[row[0]]
    return [row[0], f"{row[1]:.0%}", len({r["seed"] for r in results}), system.variables, system.coordinates]


def _mean(results: list[Result]) -> str:
    counted = [r["count"] for r in results if "failed" not in r]
    return f"{interval(counted):.2f}" if counted else "failed"


def _share(results: list[Result]) -> str:
    right = sum("failed" not in r and round(r["count"]) == _truth(r) for r in results)
    return f"{wilson(right, len(results)):.2f}"


def _own(results: list[Result]) -> list[str]:
    there = [r for r in results if "failed" not in r]
    if not there:
        return ["failed"] * 6
    wrong = [r for r in there if r["count"] != _truth(r)]
    return [
        f"{sum(r['undetermined'] for r in wrong)} of {len(wrong)}",
        f"{wilson(sum(r['low'] <= _truth(r) <= r['high'] for r in there), len(there)):.2f}",
        f"{wilson(sum(r['model'] == 'linear' for r in there), len(there)):.2f}",
        *(f"{interval([r[key] for r in there]):.3f}" for key in ("unexplained_at_truth", "unexplained")),
        f"{interval([r['seconds'] for r in there]):.0f}",
    ]
