"""Tables of real relations whose rows depend on each other: the truth is the planted number of latent variables.

The next state of a dissipative system, such as Lorenz's, is not among them: after a transient its states lie nearly on
a surface, and whether the map needs two numbers or three is a matter of accuracy. Next states are those of systems that
preserve volume, started anywhere in a region.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.against.counting_cases import smooth_map
from benchmarks.dependence.flows import FLOWS, Flow, bundle, trajectory
from benchmarks.dependence.table import Table

__all__ = ["DYSTS", "KINDS"]

THIN = 1, 2  # latent variables on attractors that are nearly surfaces
FULL = 1, 2, 3  # and where the states fill three dimensions
FAINT = 0.3  # of the mean variance: no latent variable is taken from principal components below
FILLING = "labyrinth", "Nose-Hoover", "Arnold-Beltrami-Childress"  # they preserve volume
CHAOTIC = "Lorenz", "Roessler", "Halvorsen", "Chua", "Thomas", "Nose-Hoover"
DYSTS = (
    "Aizawa", "Arneodo", "Bouali2", "BurkeShaw", "Chen", "Dadras", "Finance", "GenesioTesi", "Hadley",
    "NewtonLiepnik", "QiChen", "RabinovichFabrikant", "Rucklidge", "ShimizuMorioka", "SprottB", "VallisElNino",
    "WangSun",
)  # fmt: skip


def planted(
    x: np.ndarray, counts: tuple[int, ...], generator: np.random.Generator, parts: np.ndarray | None = None
) -> Table:
    """Return x and y = h(g(x)): g takes k directions of x, in the span of its strong principal components."""
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    _, values, axes = np.linalg.svd(standard, full_matrices=False)
    strong = axes[values**2 >= FAINT * (values**2).mean()]
    k = min(int(generator.choice(counts)), len(strong))
    z = standard @ strong.T @ np.linalg.qr(generator.normal(size=(len(strong), k)))[0]
    return observed(x, z / z.std(axis=0), generator, parts)


def observed(x: np.ndarray, z: np.ndarray, generator: np.random.Generator, parts: np.ndarray | None = None) -> Table:
    """Return x and a random smooth map of z to k + 1 to 8 outputs, with independent noise of 2 to 10 percent.

    With ``parts``, y also has a random effect of every part, of 20 percent of its spread.
    """
    k = z.shape[1]
    y = smooth_map(k, generator, int(generator.integers(k + 1, 9)))(z)
    added = generator.uniform(0.02, 0.1) * generator.normal(size=y.shape)
    if parts is not None:
        added = added + 0.2 * generator.normal(size=(parts.max() + 1, y.shape[1]))[parts]
    return Table(x, y + np.sqrt(y.var(axis=0).mean()) * added, k, None, z)


def along(flow: Flow, counts: tuple[int, ...], generator: np.random.Generator) -> Table:
    """Return a planted map of the states along one trajectory; half of the tables also hold an unrelated trajectory."""
    n = int(generator.integers(200, 801))
    table = planted(flow.seen(trajectory(flow, n, generator)), counts, generator)
    if generator.random() < 0.5:
        table = replace(table, x=np.hstack([table.x, flow.seen(trajectory(flow, n, generator))]))
    return table


def along_dysts(generator: np.random.Generator) -> Table:
    """Return a planted map of the states along a trajectory of a system of ``dysts`` (ImportError without it)."""
    n, skipped = int(generator.integers(200, 801)), int(generator.integers(100, 201))
    density = int(generator.integers(12, 25))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on numba, which is not needed, and on an option that the solver ignores
        from dysts import flows

        system = getattr(flows, str(generator.choice(DYSTS)))()
        options = {"resample": True, "pts_per_period": density, "method": "RK45", "rtol": 1e-8, "atol": 1e-8}
        states = system.make_trajectory(n + skipped, **options)
    return planted(np.asarray(states)[skipped:], THIN, generator)


def next_state(generator: np.random.Generator) -> Table:
    """Return states of 20 to 40 short trajectories and the states one to three intervals later; groups tell them."""
    flow = FLOWS[str(generator.choice(FILLING))]
    count, length, later = (int(generator.integers(*ends)) for ends in ((20, 41), (10, 21), (1, 4)))
    states = bundle(flow, count, length + later, generator)
    x, y = states[:, :length].reshape(-1, 3), states[:, later:].reshape(-1, 3)
    noise = generator.uniform(0.02, 0.1) * np.sqrt(y.var(axis=0).mean()) * generator.normal(size=y.shape)
    return Table(x, y + noise, 3, np.repeat(np.arange(count), length), x)


def panel(effects: bool, generator: np.random.Generator) -> Table:
    """Return a planted map of 3 to 8 columns with random effects of 20 to 40 subjects, of 10 to 20 rows each.

    With ``effects``, y also has random effects of the subjects, which x does not tell.
    """
    count, length, d = (int(generator.integers(*ends)) for ends in ((20, 41), (10, 21), (3, 9)))
    parts = np.repeat(np.arange(count), length)
    x = generator.normal(size=(count, d))[parts]
    x += generator.uniform(0.3, 1.0) * generator.normal(size=x.shape)
    return replace(planted(x, FULL, generator, parts if effects else None), groups=parts)


KINDS: dict[str, Callable[[np.random.Generator], Table]] = {
    **{name: partial(along, FLOWS[name], THIN) for name in CHAOTIC},
    "double pendulum": partial(along, FLOWS["double pendulum"], FULL),
    "dysts": along_dysts,
    "next state": next_state,
    "panel": partial(panel, False),
    "panel with effects": partial(panel, True),
}
