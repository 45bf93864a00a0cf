"""Fits of the estimators to logarithms, and the exponents of the combinations that they find."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from bnrank.discovery.estimators import BottleneckRegressor
from bnrank.discovery.estimators.tables import groups_of_rows
from bnrank.discovery.power_products.exponents import Exponents, Table, exponents, power_law
from bnrank.discovery.power_products.result import Factor

SAME = 1.1  # ratio of the scaled spreads of y and log y up to which the logarithm is preferred
ALIKE = 0.7  # correlation above which inputs are left out one by one


def log_is_closer_to_normal(y: np.ndarray) -> bool:
    """Return whether log y is about as close to normal as y, by the profile likelihood of Box and Cox (1964).

    Examples
    --------
    >>> log_is_closer_to_normal(np.array([1.0, 10.0, 100.0])), log_is_closer_to_normal(np.array([1.0, 4.0, 5.0, 6.0]))
    (True, False)
    """
    logarithms = np.log(y)
    return bool(logarithms.std() * np.exp(logarithms.mean()) <= SAME * y.std())


def fitted(model: BottleneckRegressor, x: pd.DataFrame, y: np.ndarray, groups: Any) -> BottleneckRegressor:
    """Return a copy of an estimator, fitted; that nothing was found is no warning here."""
    copy = clone(model)
    copy._warns = False
    return copy.fit(x, y, groups)


def drawn_together(x: np.ndarray, y: np.ndarray, groups: Any) -> np.ndarray:
    """Return what is resampled together, by number, (N,): given groups (checked by a fit), or copies of a row."""
    return groups_of_rows(x, y[:, None]) if groups is None else np.asarray(pd.factorize(np.asarray(groups))[0])


def seed_of(model: BottleneckRegressor) -> int:
    """Return the seed of an estimator; 0 where it is no number."""
    return int(model.random_state) if isinstance(model.random_state, int | np.integer) else 0


def exponents_of(
    table: Table, logs: BottleneckRegressor, law: bool, names: Sequence[str], positive: np.ndarray
) -> tuple[Exponents, np.ndarray, tuple[Factor, ...]]:
    """Return the exponents, the inputs that they belong to, and those left out.

    Parameters
    ----------
    table : Table
        Logarithms of the inputs (others as they are), and the output.
    logs : BottleneckRegressor
        Fitted to it.
    law : bool
        Whether the output is a logarithm and linear in the table: a power law.
    names : sequence of str
        Of the inputs.
    positive : ndarray
        Which inputs are logarithms, (d,), bool.
    """
    kept, left = np.arange(len(names)), list[Factor]()
    directions, linear = logs.input_directions_, logs.model_ == "linear"
    while True:
        some = Table(table.z[:, kept], table.y, table.units, table.seed)
        found = power_law(some) if law else exponents(some, directions[:, kept], linear)
        if not found.absent.any() or len(kept) - 1 < max(len(directions), 1):
            return found, kept, tuple(left)
        drop = _weakest(found, some.z)[: len(kept) - len(directions)]
        for i in drop:
            j = np.abs(found.values[:, i]).argmax()
            ends = float(found.low[j, i]), float(found.high[j, i])
            place = kept[i]
            left.append(Factor(names[place], float(found.values[j, i]), *ends, None, bool(positive[place])))
        kept = np.delete(kept, drop)


def _weakest(found: Exponents, z: np.ndarray) -> np.ndarray:
    """Return the inputs not told from 0, the weakest first; only the weakest where one is like another input."""
    strength = (np.abs(found.values) * z.std(axis=0)).max(axis=0)
    absent = np.flatnonzero(found.absent)
    absent = absent[np.argsort(strength[absent], kind="stable")]
    alike = np.abs(np.corrcoef(z.T).reshape(z.shape[1], -1) - np.eye(z.shape[1]))[absent]
    return absent[:1] if alike.max(initial=0) > ALIKE else absent
