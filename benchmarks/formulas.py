"""Formulas of planted tables: ``python -m benchmarks.formulas --seeds 0 1 2 3 4``."""

import argparse
import time
import warnings

import numpy as np

from bnrank._core import text
from bnrank.discovery import BottleneckRegressor

ROWS, NEW, NOISE = 500, 1000, 0.05
RIGHT = 0.99  # R^2 of the formulas for outputs without noise, on new rows

KINDS = {
    "sin(a), a^2 with a = x0 x1": lambda x: np.column_stack([np.sin(x[:, 0] * x[:, 1]), (x[:, 0] * x[:, 1]) ** 2]),
    "a + b, a - b, a b, sin a with a = x0 x1, b = x2 + x3^2": lambda x: _two(x[:, 0] * x[:, 1], x[:, 2] + x[:, 3] ** 2),
    "sin(2 x0 + x1 - x5)": lambda x: np.sin(2 * x[:, [0]] + x[:, [1]] - x[:, [5]]),
    "x0 x1 + x2": lambda x: x[:, [0]] * x[:, [1]] + x[:, [2]],
    "linear, 4 outputs of rank 2": lambda x: x @ np.array([[1, 0], [1, 1], [0, 1], [0, -1], [2, 0], [0, 0]]) @ _MIX,
    "nothing": lambda x: np.zeros((len(x), 3)),
}
_MIX = np.array([[1.0, 0.5, -1.0, 0.0], [0.0, 1.0, 1.0, 2.0]])


def _two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.column_stack([a + b, a - b, a * b, np.sin(a)])


def main() -> None:
    """Print, for every kind of table and seed, whether the formulas are right, and all formulas found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formulas", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--engine", default="gplearn", choices=["gplearn", "operon"])
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        for name, function in KINDS.items():
            rows.append({"table": name, "seed": seed, **_case(function, seed, options.engine)})
            print(text.render(rows[-1:]), flush=True)
    print(text.render(rows))
    print(f"right: {sum(row['right'] for row in rows)} of {len(rows)}")


def _case(function, seed: int, engine: str) -> dict:
    rng = np.random.default_rng(seed)
    x, new = rng.uniform(-1.5, 1.5, (ROWS, 6)), rng.uniform(-1.5, 1.5, (NEW, 6))
    truth = function(x)
    y = truth + NOISE * (truth.std(axis=0) if truth.any() else 1.0) * rng.normal(size=truth.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = BottleneckRegressor().fit(x, y)
        start = time.process_time()
        made = found.formulas(x, y, engine=engine)
    seconds = time.process_time() - start
    expected = function(new)
    if truth.any():
        error = np.square(made.predict(new) - expected).mean(axis=0) / expected.var(axis=0)
        score = 1 - float(error.max())
        right = score > RIGHT
    else:
        score, right = 0.0, all(formula.verdict == "none" for formula in made.outputs)
    formulas = "; ".join(map(str, (*made.coordinates, *made.outputs)))
    about = {"k": found.n_components_, "R^2 of the worst output, new rows": round(score, 4), "right": right}
    return about | {"CPU s": round(seconds, 1), "formulas": formulas}


if __name__ == "__main__":
    main()
