"""Tables without a relation between x and y, whose rows depend on each other: the truth is 0.

A kind is a layout of the rows, which x and y share, and a family of columns. x and y are drawn from the family with
two independent streams of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.signal import lfilter

from benchmarks.dependence.table import Table

__all__ = ["KINDS"]

ROWS = 8, 12  # wells down and across a plate


@dataclass(frozen=True)
class Layout:
    """How the rows of a table are arranged.

    Attributes
    ----------
    n : int
        Number of rows.
    parts : ndarray or None
        The subject, plate or batch of every row, (n,).
    told : bool
        Whether the table gives the parts as groups.
    periods : tuple of float
        Of the seasons of x and y, in rows.
    """

    n: int
    parts: np.ndarray | None = None
    told: bool = False
    periods: tuple[float, float] = (0.0, 0.0)


Columns = Callable[[np.random.Generator, Layout, int], np.ndarray]


def unrelated(
    layout: Callable[[np.random.Generator], Layout], columns: Columns, generator: np.random.Generator
) -> Table:
    """Return a table of 2 to 8 columns of x and of y, from independent streams."""
    rows = layout(generator)
    d_in, d_out = generator.integers(2, 9, size=2)
    first, second = generator.spawn(2)
    x = columns(first, rows, d_in)
    y = columns(second, replace(rows, periods=rows.periods[::-1]), d_out)
    return Table(x, y, 0, rows.parts if rows.told else None)


def series(generator: np.random.Generator) -> Layout:
    """Return a layout of 100 to 800 rows, one after the other in time."""
    return Layout(int(generator.integers(100, 801)))


def seasons(generator: np.random.Generator) -> Layout:
    """Return a series and two periods, between 6 rows and a fifth of the rows, that have nothing in common.

    Seasons of the same period, or of periods in a ratio of small whole numbers, would be a common cause of x and y. The
    phase of any of the first three harmonics of one season therefore slips by at least three turns against the other.
    """
    n = series(generator).n
    orders = np.arange(1, 4)
    while True:
        periods = np.exp(generator.uniform(np.log(6), np.log(n / 5), size=2))
        if (n * np.abs(orders[:, None] / periods[0] - orders / periods[1])).min() >= 3:
            return Layout(n, periods=(float(periods[0]), float(periods[1])))


def subjects(generator: np.random.Generator) -> Layout:
    """Return 30 subjects with 15 rows each, as groups."""
    return Layout(450, np.repeat(np.arange(30), 15), told=True)


def plates(generator: np.random.Generator) -> Layout:
    """Return 2 to 8 plates with 96 wells, in order and without groups."""
    count = int(generator.integers(2, 9))
    return Layout(96 * count, np.repeat(np.arange(count), 96))


def batches(generator: np.random.Generator) -> Layout:
    """Return 6 to 15 batches of unequal size, as groups, with the rows in random order."""
    count = int(generator.integers(6, 16))
    n = int(generator.integers(150, 801))
    shares = generator.dirichlet(np.full(count, 5.0))
    return Layout(n, generator.choice(count, size=n, p=shares), told=True)


def random_walk(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return sums of independent normal steps."""
    return np.cumsum(stream.normal(size=(rows.n, d)), axis=0)


def ar1(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return stationary AR(1) series with one coefficient between 0.5 and 0.99."""
    return autoregressive(stream, rows.n, d, float(stream.uniform(0.5, 0.99)))


def autoregressive(stream: np.random.Generator, n: int, d: int, coefficient: float) -> np.ndarray:
    """Return stationary AR(1) series of variance 1."""
    steps = stream.normal(size=(n, d)) * np.sqrt(1 - coefficient**2)
    steps[0] /= np.sqrt(1 - coefficient**2)
    return lfilter([1.0], [1.0, -coefficient], steps, axis=0)


def seasonal(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return two harmonics of the first period, with their own phases in every column, plus AR(1) noise."""
    phases, amplitudes = stream.uniform(0, 2 * np.pi, size=(2, d)), stream.uniform(0.5, 1.5, size=(2, d))
    time = 2 * np.pi * np.arange(rows.n)[:, None] / rows.periods[0]
    season = amplitudes[0] * np.sin(time + phases[0]) + 0.5 * amplitudes[1] * np.sin(2 * time + phases[1])
    return season + stream.uniform(0.1, 0.6) * autoregressive(stream, rows.n, d, 0.5)


def effects(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return a random effect of every part plus independent noise of 0.2 to 1 times its spread."""
    assert rows.parts is not None
    levels = stream.normal(size=(rows.parts.max() + 1, d))
    return levels[rows.parts] + stream.uniform(0.2, 1.0) * stream.normal(size=(rows.n, d))


def wells(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return the effect of every plate plus a smooth field over its wells, which differs from plate to plate."""
    across, down = np.meshgrid(np.linspace(-1, 1, ROWS[1]), np.linspace(-1, 1, ROWS[0]))
    shapes = np.stack([across, down, across * down, across**2 - 0.4, down**2 - 0.4]).reshape(5, -1)
    fields = np.einsum("psd,sw->pwd", stream.normal(size=(rows.n // 96, 5, d)), shapes).reshape(rows.n, d)
    return effects(stream, rows, d) + 0.7 * fields


def shifts(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return a random effect of every part plus noise, whose scale also differs from part to part."""
    assert rows.parts is not None
    scales = np.exp(stream.normal(scale=0.3, size=(rows.parts.max() + 1, 1)))
    return effects(stream, rows, d) * scales[rows.parts]


def drift(stream: np.random.Generator, rows: Layout, d: int) -> np.ndarray:
    """Return random polynomials of degree 1 to 3 in time, of spread 1, plus noise of 0.1 to 0.6."""
    time = np.linspace(-1, 1, rows.n)[:, None]
    powers = np.concatenate([time, time**2, time**3], axis=1)[:, : stream.integers(1, 4)]
    trends = powers @ stream.normal(size=(powers.shape[1], d))
    return trends / trends.std(axis=0) + stream.uniform(0.1, 0.6) * stream.normal(size=(rows.n, d))


KINDS: dict[str, Callable[[np.random.Generator], Table]] = {
    "random walks": partial(unrelated, series, random_walk),
    "AR(1)": partial(unrelated, series, ar1),
    "seasons": partial(unrelated, seasons, seasonal),
    "subjects": partial(unrelated, subjects, effects),
    "plates": partial(unrelated, plates, wells),
    "batches": partial(unrelated, batches, shifts),
    "drifts": partial(unrelated, series, drift),
}
