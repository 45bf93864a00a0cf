"""The splits of a cross-validation: which rows train and which are held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bnrank._core import validation
from bnrank.discovery.estimators.counts import by_group
from bnrank.discovery.estimators.dependence import near

Array = np.ndarray


@dataclass(frozen=True)
class Splits:
    """Training rows and held-out rows of every split, (S, N), bool.

    A row may be held out once, several times, or not at all: its held-out loss is the mean over the splits that hold it
    out, and rows that none holds out are not counted.
    """

    known: Array
    out: Array

    @classmethod
    def of(cls, folds: Array, gap: int = 0) -> Splits:
        """Return the splits that hold out one fold each, (N,); the rows up to ``gap`` from it do not train.

        Examples
        --------
        >>> Splits.of(np.array([0, 0, 1, 1]), gap=1).known.tolist()
        [[False, False, False, True], [True, False, False, False]]
        """
        out = np.array([folds == fold for fold in np.unique(folds)])
        return cls(np.array([~near(row, gap) for row in out]), out)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Array, Array]], rows: int) -> Splits:
        """Return the splits of a splitter of scikit-learn, pairs of the indices of training and held-out rows.

        Raises
        ------
        ValueError
            If there are none, or one trains on fewer than two rows, holds out none, or trains on a row that it holds
            out, or an index is no row.

        Examples
        --------
        >>> made = Splits.from_pairs([(np.array([0, 1]), np.array([2]))], 4)
        >>> made.tested.tolist()
        [False, False, True, False]
        """
        made = [(_mask(known, rows), _mask(out, rows)) for known, out in pairs]
        validation.expect(made, "cv", "no split", "at least one")
        for number, (known, out) in enumerate(made):
            both = int((known & out).sum())
            validation.expect(not both, "cv", f"{both} rows that train and are held out in split {number}", "none")
            sizes = f"{known.sum()} training rows and {out.sum()} held-out ones in split {number}"
            validation.expect(known.sum() >= 2 and out.any(), "cv", sizes, "at least 2 and 1")
        known, out = (np.array(part) for part in zip(*made, strict=True))
        return cls(known, out)

    def __len__(self) -> int:
        """Return the number of splits."""
        return len(self.out)

    @property
    def tested(self) -> Array:
        """Which rows are held out by a split, (N,), bool."""
        return np.array(self.out.any(axis=0))

    def rows(self, chosen: Array) -> Splits:
        """Return the splits of some of the rows; splits that hold out none of them are left out."""
        known, out = self.known[:, chosen], self.out[:, chosen]
        used = out.any(axis=1) & (known.sum(axis=1) >= 2)
        return Splits(known[used], out[used])

    def mean(self, sums: Array) -> Array:
        """Return mean losses of the rows that are held out, from sums over the splits, (..., N)."""
        return np.array(sums[..., self.tested] / self.out.sum(axis=0)[self.tested])

    def by_group(self, sums: Array, groups: Array, weights: Array | None = None) -> Array:
        """Return mean losses by group (:func:`~bnrank.discovery.estimators.counts.by_group`), (..., G), from sums."""
        units = np.unique(groups[self.tested], return_inverse=True)[1].reshape(-1)
        return by_group(self.mean(sums), units, None if weights is None else weights[self.tested])


def _mask(indices: Array, rows: int) -> Array:
    mask = np.zeros(rows, dtype=bool)
    try:
        mask[np.asarray(indices)] = True
    except IndexError as error:
        raise ValueError(f"cv: {error}; expected indices of {rows} rows") from None
    return mask
