"""How many state variables films show: ten physical systems at 32 x 32 pixels, for which the number is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.against.films_systems import SYSTEMS, films
from benchmarks.against.physics_peers import formula, principal_components
from benchmarks.against.trials import Kept, Result, attempt, by_system, failures, interval, markdown, wilson
from bnrank.discovery import StateVariables

__all__ = ["KEPT", "METHODS", "cells", "measure", "shown", "tables"]

FILMS, FRAMES = 500, 8
SEEDS = range(2000, 2020)  # of the draws; rules were chosen on others, from 100
NOISES = (0.0, 0.02)
BNRANK = "bnrank"
METHODS = (BNRANK, "TwoNN, pixels", "MLE, pixels", "PCA 99 percent")
OWN = ("count", "low", "high", "undetermined", "coordinates", "unexplained", "seconds")
KEPT = Kept(OWN, METHODS[:3], group="system")
KNOWN = ("system", "noise", "draws", "state variables")


def cells(quick: bool = False) -> list[Result]:
    """Return the cells, seed by seed: system, noise, number of films."""
    names = ("circular motion, one speed", "pendulum") if quick else tuple(SYSTEMS)
    return [
        {"seed": seed, "tuned": False, "system": name, "noise": noise, "films": 100 if quick else FILMS}
        for seed in (SEEDS[:2] if quick else SEEDS)
        for noise in (NOISES[:1] if quick else NOISES)
        for name in names
    ]


def measure(cell: Result) -> list[Result]:
    """Let every method count what the films of one draw show; the formulas see pairs of frames."""
    shown = films(cell["system"], cell["films"], FRAMES, cell["seed"], cell["noise"])[1]
    pairs = np.concatenate([shown[:, :-1], shown[:, 1:]], axis=2).reshape(-1, 2 * shown[0, 0].size)
    pairs = pairs[np.random.default_rng(cell["seed"]).permutation(len(pairs))[:1500]].astype(float)
    counters: dict[str, Callable[[], Result]] = {
        BNRANK: lambda: _state_variables(shown),
        "TwoNN, pixels": lambda: {"count": formula("TwoNN", pairs)},
        "MLE, pixels": lambda: {"count": formula("MLE", pairs)},
        "PCA 99 percent": lambda: {"count": principal_components(pairs)},
    }
    return [_timed(method, counters[method]) for method in METHODS]


def shown(results: Sequence[Result]) -> str:
    """Return the table of the page, with ranges over draws, and how often the state dimension is right."""
    rows = []
    for (name, noise), some in by_system(results, SYSTEMS).items():
        of = {method: [r for r in some if r["method"] == method and "failed" not in r] for method in METHODS}
        own = of[BNRANK]
        ends = f"{min(r['low'] for r in own)} to {max(r['high'] for r in own)}" if own else "failed"
        ranges = [
            _range([r["coordinates"] for r in own], "d"),
            _range([100 * r["unexplained"] for r in own], ".1f"),
            _range([r["seconds"] for r in own], ".0f"),
            *(_range([r["count"] for r in of[method]], ".1f") for method in METHODS[1:3]),
        ]
        published = SYSTEMS[name].published or "–"
        rows.append([*_known((name, noise), some), _hits(some, BNRANK), ends, *ranges, published])
    headings = ["right", "interval", "coordinates needed", "unexplained (%)", "CPU time (s)", "TwoNN", "MLE"]
    own = [r for r in results if r["method"] == BNRANK]
    covered = sum("low" in r and r["low"] <= SYSTEMS[r["system"]].variables <= r["high"] for r in own)
    levels = sorted({r["noise"] for r in results})
    formulas = [
        f"{method.partition(',')[0]} in "
        + " and ".join(f"{_hits([r for r in results if r['noise'] == n], method)} at noise {n:.0%}" for n in levels)
        for method in METHODS[1:3]
    ]
    said = (
        f"The state dimension is right in {_hits(results, BNRANK)} draws; {covered} intervals contain it, and "
        f"{sum(r.get('undetermined', False) for r in own)} are `undetermined`. The formulas, rounded, are right for "
        f"{', for '.join(formulas)}."
    )
    parts = markdown([*KNOWN, *headings, "published"], rows), said, failures(results)
    return "\n\n".join(part for part in parts if part)


def _range(values: Sequence[float], spec: str) -> str:
    """Return the least and the greatest value, one of them where they look alike."""
    return " to ".join(dict.fromkeys(f"{end:{spec}}" for end in (min(values), max(values)))) if values else "failed"


def _hits(results: Sequence[Result], method: str) -> str:
    """Return in how many results of a method the rounded count is the number of state variables."""
    own = [r for r in results if r["method"] == method]
    right = sum("count" in r and round(r["count"]) == SYSTEMS[r["system"]].variables for r in own)
    return f"{right} of {len(own)}"


def tables(results: list[Result]) -> str:
    """Return the tables: dimensions beside the published ones, and what bnrank says of its own."""
    rows = by_system(results, SYSTEMS)
    right = [[*_known(row, some), *_right(some, row[0])] for row, some in rows.items()]
    own = [[*_known(row, some), *_own([r for r in some if r["method"] == BNRANK])] for row, some in rows.items()]
    headings = ["wrong but undetermined", "undetermined", "interval covers", "coordinates needed"]
    headings += ["unexplained", "CPU time (s)"]
    return "\n\n".join(
        [
            f"Each draw has its own camera, states and noise: {FILMS} films of {FRAMES} frames. Means over draws with "
            "95 percent bootstrap intervals. *Published*: estimates of Chen et al. (2022) for systems of the same "
            "name, from other films, as remembered.",
            "## State dimension",
            markdown([*KNOWN, "bnrank right", *METHODS, "published"], right),
            "## bnrank on its own result",
            markdown([*KNOWN, *headings], own),
        ]
    )


def _state_variables(shown: np.ndarray) -> Result:
    found = StateVariables(progress=False).fit(shown)
    low, high = found.state_dimension_interval_
    return {
        "count": found.state_dimension_,
        "low": low,
        "high": high,
        "undetermined": found.undetermined_,
        "coordinates": found.coordinates_needed_,
        "unexplained": found.unexplained_,
    }


def _timed(method: str, count: Callable[[], Result]) -> Result:
    began = time.process_time()
    result = attempt(method, count)
    return result | {"seconds": time.process_time() - began}


def _known(row: tuple[str, float], results: list[Result]) -> list[Any]:
    return [row[0], f"{row[1]:.0%}", len({r["seed"] for r in results}), SYSTEMS[row[0]].variables]


def _right(results: list[Result], name: str) -> list[str]:
    counted = {m: [r["count"] for r in results if r["method"] == m and "failed" not in r] for m in METHODS}
    means = [f"{interval(counted[m]):.2f}" if counted[m] else "failed" for m in METHODS]
    return [_hits(results, BNRANK), *means, SYSTEMS[name].published or "–"]


def _own(results: list[Result]) -> list[str]:
    there = [r for r in results if "failed" not in r]
    if not there:
        return ["failed"] * 6
    truth = SYSTEMS[there[0]["system"]].variables
    wrong = [r for r in there if r["count"] != truth]
    covered = sum(r["low"] <= truth <= r["high"] for r in there)
    return [
        f"{sum(r['undetermined'] for r in wrong)} of {len(wrong)}",
        f"{sum(r['undetermined'] for r in there)} of {len(there)}",
        f"{wilson(covered, len(there)):.2f}",
        f"{interval([r['coordinates'] for r in there]):.1f}",
        f"{interval([r['unexplained'] for r in there]):.3f}",
        f"{interval([r['seconds'] for r in there]):.0f}",
    ]
