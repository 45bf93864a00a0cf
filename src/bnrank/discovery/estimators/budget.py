"""How much work a table deserves: sizes of networks, numbers of steps, folds and seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnrank.training import Adam

__all__ = ["FEW", "Budget", "budget", "folds_of"]

FEW = 30  # rows, below which only linear maps are fitted
ROWS = 4000  # all that the path over ridges looks at
DEEP, SHALLOW = 12, 4  # depths
STEPS = 500  # evaluations in which a network of depth 12 on a few hundred rows settles


@dataclass(frozen=True)
class Budget:
    """What is trained.

    Attributes
    ----------
    depth, width : int
        L and the width of the hidden layers.
    steps : int
        Evaluations of cost and gradient per network.
    folds, seeds : int
        Of the cross-validation; and networks per ridge that are trained on all rows.
    ridges : tuple of float
        The ridges to begin with.
    grow : bool
        Whether the path goes on to larger and smaller ridges where the best one is at its end.
    tolerance : float
        Share of what is explained that a component must add to count.
    shallow : int
        Depth of other networks, kept where they predict clearly better; 0 for none.
    """

    depth: int
    width: int
    steps: int
    folds: int
    seeds: int
    ridges: tuple[float, ...]
    grow: bool
    tolerance: float = 0.01
    shallow: int = 0

    @property
    def optimizer(self) -> str | Adam:
        """Arguments of the trainer: few steps are best spent on Adam alone, with larger and then falling steps."""
        if self.steps <= 200:
            return Adam(1e-2, "cosine")
        return "adam+kfac-lbfgs"


def budget(n: int, d_in: int, d_out: int, most: int) -> Budget:
    """Return what n rows that differ deserve.

    A count needs a deep network: the ridge charges lambda L for each dimension, and only at L about 12 does a network
    give up a dimension in exchange for bending more (at depth 8 it keeps one too many on the task of F4 with noise).
    What a table can tell grows with its rows, and so do the steps, two per row up to 500. Below 100 rows a count
    would mean little whatever the work, and the networks are small and shallow; below 30 no network could show that it
    predicts better than a linear map, and only linear maps are looked at (``ridges`` is empty). Networks are shallow
    too where no more than one component can be seen (``most`` is 1: one output or two classes): there is nothing to
    count, and depth is not needed to predict. Beside networks of depth 12 shallow ones are tried (``shallow``): a deep
    network can stay at a saddle that a shallow one leaves, as on products of inputs.

    Examples
    --------
    >>> made = budget(300, 20, 20, 20)
    >>> made.depth, made.width, made.steps, made.folds
    (12, 40, 500, 3)
    >>> made = budget(40, 3, 1, 1)
    >>> made.depth, made.width, made.steps, made.folds
    (4, 16, 80, 2)
    """
    d = max(d_in, d_out)
    if n < FEW:
        return Budget(4, 16, 0, 2, 1, (), False)
    if n < 100:
        return Budget(4, 16, 2 * n, 2 if n < 50 else 3, 1, (3e-2, 3e-3), False)
    width = int(np.clip(2 * min(d, n // 6), 16, 64))
    steps = min(STEPS, 2 * n)
    shape = {"depth": SHALLOW} if most == 1 else {"depth": DEEP, "shallow": SHALLOW}
    return Budget(width=width, steps=steps, folds=3, seeds=2, ridges=(3e-2, 10**-2.0, 3e-3), grow=n >= 200, **shape)


def folds_of(groups: np.ndarray, count: int, seed: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the fold of every row, (N,); rows of a group are in the same fold, folds of about the same size.

    With ``labels``, (N,), every class is spread evenly over the folds.

    Raises
    ------
    ValueError
        If there are fewer groups than folds.

    Examples
    --------
    >>> folds_of(np.array([0, 0, 1, 2]), 3, seed=0).tolist()
    [1, 1, 2, 0]
    """
    generator = np.random.default_rng(seed)
    number = int(groups.max()) + 1
    if number < count:
        raise ValueError(f"X: got {number} row(s) that differ, expected at least {count}")
    assigned = np.empty(number, dtype=int)
    order = generator.permutation(number)
    if labels is not None:
        first = np.unique(groups, return_index=True)[1]
        order = order[np.argsort(labels[first][order], kind="stable")]
    assigned[order] = np.arange(number) % count
    return assigned[groups]
