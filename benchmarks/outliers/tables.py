"""Planted tables with outliers in x or y, and tables without outliers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import datasets

from benchmarks.against.counting_cases import draw

__all__ = ["CLEAN", "KINDS", "PLANTED", "clean", "planted"]

Array = np.ndarray
Draw = Callable[[np.random.Generator], tuple[Array, Array]]
Columns = Callable[[np.random.Generator, int], Array]

SHARE = 0.05  # of the rows, or of the values
NEAREST, FARTHEST = 10.0, 100.0  # spreads
PLANTED: list[dict[str, Any]] = [
    *({"family": "smooth", "k": k, "d": 20, "noise": 0.1, "n": 300} for k in (1, 2, 3, 4)),
    {"family": "smooth", "k": 2, "d": 10, "noise": 0.3, "n": 200},
    *({"family": "low_rank_map", "k": k, "d": 20, "noise": 0.1, "n": 300} for k in (1, 3)),
    {"family": "directions", "k": 3, "d": 20, "noise": 0.1, "n": 300},
    {"family": "linear", "k": 3, "d": 20, "noise": 0.1, "n": 300},
    {"family": "linear", "k": 2, "d": 10, "noise": 0.3, "n": 100},
]


def rows_of_y(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant 5 percent of rows whose outputs are 10 to 100 spreads from the mean, each to either side."""
    rows = chosen(len(y), generator)
    y[rows] = far(y, y[rows].shape, generator)


def rows_of_y_above(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant 5 percent of rows whose outputs are all 10 to 100 spreads above the mean."""
    rows = chosen(len(y), generator)
    y[rows] = y.mean(axis=0) + np.abs(far(y, y[rows].shape, generator) - y.mean(axis=0))


def values_of_y(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant 5 percent of the single outputs, 10 to 100 spreads from the mean, to either side."""
    away = generator.random(y.shape) < SHARE
    y[away] = far(y, y.shape, generator)[away]


def rows_of_x(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant 5 percent of rows whose inputs are 10 to 100 spreads from the mean, each to either side."""
    rows = chosen(len(x), generator)
    x[rows] = far(x, x[rows].shape, generator)


def typos_in_x(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant one input in 5 percent of the rows: 1,000 times too large, or the code -999."""
    for row in chosen(len(x), generator):
        column = generator.integers(x.shape[1])
        x[row, column] = -999 if generator.random() < 0.5 else 1000 * x[row, column]


def values_of_x(x: Array, y: Array, generator: np.random.Generator) -> None:
    """Plant 5 percent of the single inputs, 10 to 100 spreads from the mean, to either side."""
    away = generator.random(x.shape) < SHARE
    x[away] = far(x, x.shape, generator)[away]


KINDS = {
    "rows of y": rows_of_y,
    "rows of y, above": rows_of_y_above,
    "values of y": values_of_y,
    "rows of x": rows_of_x,
    "typos in x": typos_in_x,
    "values of x": values_of_x,
}


def chosen(rows: int, generator: np.random.Generator) -> Array:
    """Return 5 percent of the rows."""
    return generator.choice(rows, max(round(SHARE * rows), 1), replace=False)


def far(table: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return values 10 to 100 spreads from the means, logarithmically uniform, of a table of this many columns."""
    size = np.exp(generator.uniform(np.log(NEAREST), np.log(FARTHEST), size=shape))
    return table.mean(axis=0) + table.std(axis=0) * size * generator.choice([-1, 1], size=shape)


def planted(kind: str, number: int, seed: int) -> tuple[Array, Array, Array, Array, int]:
    """Return x and y without outliers, x and y with outliers, and the planted count."""
    setting = PLANTED[number % len(PLANTED)]
    case = draw(setting | {"seed": seed + number})
    x, y = case.x.copy(), case.y.copy()
    KINDS[kind](x, y, np.random.default_rng([seed, zlib.crc32(kind.encode()), number]))
    return case.x, case.y, x, y, setting["k"]


def _function(x: Array, generator: np.random.Generator) -> Array:
    """Return three noisy functions of the first two columns, in standard units."""
    z = (x[:, :2] - x[:, :2].mean(axis=0)) / x[:, :2].std(axis=0)
    return np.sin(z) @ generator.normal(size=(2, 3)) + 0.1 * generator.normal(size=(len(x), 3))


def _table(columns: Columns) -> Draw:
    def drawn(generator: np.random.Generator) -> tuple[Array, Array]:
        x = columns(generator, 300 * 6).reshape(300, 6)
        return x, _function(x, generator)

    return drawn


def _noise(columns: Columns) -> Draw:
    def drawn(generator: np.random.Generator) -> tuple[Array, Array]:
        x = generator.normal(size=(300, 6))
        return x, _function(x, generator) + columns(generator, 900).reshape(300, 3)

    return drawn


def _growth(generator: np.random.Generator) -> tuple[Array, Array]:
    x = generator.normal(size=(300, 6))
    return x, np.exp(2 * x @ generator.normal(size=(6, 3)) / np.sqrt(6) + 0.1 * generator.normal(size=(300, 3)))


def _rare_class(generator: np.random.Generator) -> tuple[Array, Array]:
    x, rare = generator.normal(size=(300, 6)), np.zeros((300, 1))
    rare[generator.choice(300, 15, replace=False)] = 1
    x = x + 30 * rare * generator.normal(size=6)
    return x, _function(x * (1 - rare), generator) + 30 * rare * generator.normal(size=3)


def _indicators(generator: np.random.Generator) -> tuple[Array, Array]:
    x = generator.normal(size=(300, 6))
    x[:, 0] = generator.random(300) < 0.01
    x[:, 1] = generator.poisson(3, 300) * (generator.random(300) < 0.5)
    x[:, 2] = generator.normal(size=300) * (generator.random(300) < 0.05)
    x[:, 3] = generator.poisson(4, 300)
    return x, x[:, :4] @ generator.normal(size=(4, 3)) + 0.1 * generator.normal(size=(300, 3))


def _bundled(load: Callable[..., Any]) -> Draw:
    """Return half of the rows of a data set of scikit-learn."""

    def drawn(generator: np.random.Generator) -> tuple[Array, Array]:
        x, y = load(return_X_y=True)
        rows = generator.permutation(len(x))[: max(len(x) // 2, 20)]
        return np.asarray(x, dtype=float)[rows], np.asarray(y, dtype=float).reshape(len(y), -1)[rows]

    return drawn


def _treatment(generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw a treatment that 3 of 200 rows have, with a large effect on y."""
    x = np.column_stack([generator.normal(size=(200, 3)), np.zeros(200)])
    x[generator.permutation(200)[:3], 3] = 1
    return x, x[:, :1] + 50 * x[:, 3:] + 0.1 * generator.normal(size=(200, 1))


def _regime(generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw a large step of y where two inputs are large, in about 8 of 300 rows."""
    x = generator.normal(size=(300, 3))
    step = (x[:, 1:2] > 1) & (x[:, 2:] > 1)
    return x, x[:, :1] + 20 * step + 0.1 * generator.normal(size=(300, 1))


def _saturation(generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw an input 15 times larger in 4 of 100 rows, where y saturates."""
    x = generator.normal(size=(100, 3))
    x[:, 0] = generator.uniform(0, 1, 100)
    x[generator.permutation(100)[:4], 0] *= 15
    return x, x[:, :1] / (1 + x[:, :1]) + 0.2 * x[:, 1:2] + 0.02 * generator.normal(size=(100, 1))


def _sessions(generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw times of two sessions, the second of 12 rows, which y does not depend on."""
    x = generator.normal(size=(200, 3))
    times = [generator.uniform(0, 100, 188), generator.uniform(5000, 5010, 12)]
    x[:, 2] = np.concatenate([np.sort(part) for part in times])
    return x, x[:, :2] @ generator.normal(size=(2, 2))


CLEAN: dict[str, Draw] = {
    "normal": _table(lambda g, n: g.normal(size=n)),
    "uniform": _table(lambda g, n: g.uniform(size=n)),
    "lognormal": _table(lambda g, n: np.exp(g.normal(size=n))),
    "exponential": _table(lambda g, n: g.exponential(size=n)),
    "Student's t, 3 degrees of freedom": _table(lambda g, n: g.standard_t(3, size=n)),
    "t noise, 3 degrees of freedom": _noise(lambda g, n: g.standard_t(3, size=n)),
    "exponential growth": _growth,
    "rare class": _rare_class,
    "rare treatment": _treatment,
    "rare regime": _regime,
    "saturation at rare inputs": _saturation,
    "times of two sessions": _sessions,
    "indicators, counts, sparse columns": _indicators,
    "diabetes": _bundled(datasets.load_diabetes),
    "linnerud": _bundled(datasets.load_linnerud),
    "iris": _bundled(datasets.load_iris),
    "wine": _bundled(datasets.load_wine),
    "breast cancer": _bundled(datasets.load_breast_cancer),
    "digits": _bundled(datasets.load_digits),
}


def clean(kind: str, number: int, seed: int) -> tuple[Array, Array]:
    """Return a table without planted outliers."""
    return CLEAN[kind](np.random.default_rng([seed, zlib.crc32(kind.encode()), number]))
