"""How many state variables films show: ten physical systems at 32 x 32 pixels, for which the number is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.against.films_systems import SYSTEMS, films
from benchmarks.against.physics_peers import formula, principal_components
from benchmarks.against.trials import Result, attempt, interval, markdown, wilson
from bnrank.discovery import StateVariables

__all__ = ["METHODS", "cells", "measure", "tables"]

FILMS, FRAMES = 500, 8
SEEDS = range(2000, 2020)  # of the draws; rules were chosen on others, from 100
NOISES = (0.0, 0.02)
BNRANK = "bnrank"
METHODS = (BNRANK, "TwoNN, pixels", "MLE, pixels", "PCA 99 percent")


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


def tables(results: list[Result]) -> str:
    """Return the tables: dimensions beside the published ones, and what bnrank says of its own."""
    rows = [(name, noise) for name in SYSTEMS for noise in sorted({r["noise"] for r in results})]
    chosen = {row: [r for r in results if (r["system"], r["noise"]) == row] for row in rows}
    rows = [row for row in rows if chosen[row]]
    known = ["system", "noise", "draws", "state variables"]
    right = [[*_known(row, chosen[row]), *_right(chosen[row], row[0])] for row in rows]
    own = [[*_known(row, chosen[row]), *_own([r for r in chosen[row] if r["method"] == BNRANK])] for row in rows]
    headings = ["wrong but undetermined", "undetermined", "interval covers", "coordinates needed"]
    headings += ["unexplained", "CPU time (s)"]
    return "\n\n".join(
        [
            f"Each draw has its own camera, states and noise: {FILMS} films of {FRAMES} frames. Means over draws with "
            "95 percent bootstrap intervals. *Published*: estimates of Chen et al. (2022) for systems of the same "
            "name, from other films, as remembered.",
            "## State dimension",
            markdown([*known, "bnrank right", *METHODS, "published"], right),
            "## bnrank on its own result",
            markdown([*known, *headings], own),
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
    draws = sum(r["method"] == BNRANK for r in results)
    right = sum(count == SYSTEMS[name].variables for count in counted[BNRANK])
    means = [f"{interval(counted[m]):.2f}" if counted[m] else "failed" for m in METHODS]
    return [f"{right} of {draws}", *means, SYSTEMS[name].published or "–"]


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
