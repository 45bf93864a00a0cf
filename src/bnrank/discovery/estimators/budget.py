"""The settings of a fit, and their defaults for a table."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bnrank.training import Adam

FEW = 30  # with fewer rows, only linear maps are fitted
MANY = 100  # with fewer rows, networks are small, and a fit takes about as long as the start of a process
MAX_PROCESSES = 16  # more would have nothing to do
DEEP, SHALLOW = 12, 4  # depths
DEEPER = 4  # additional layers of the networks that test whether the count depends on depth
MAX_STEPS = 500  # evaluations after which a network of depth 12 on a few hundred rows has converged


def _nobody(text: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True)
class Budget:
    """The settings of a fit: the amount of training, the seed, and the display of progress.

    Attributes
    ----------
    depth, width : int
        L and the width of the hidden layers.
    steps : int
        Evaluations of cost and gradient per network.
    folds, n_networks : int
        Folds of the cross-validation; networks per ridge trained on all rows.
    ridges : tuple of float
        Initial ridges.
    grow : bool
        Whether the path is extended to larger or smaller ridges while the best one is at an end.
    rtol : float
        Fraction of the total explained loss that a component must add to count.
    shallow : int
        Depth of additional networks, selected if they predict clearly better; 0 for none.
    seed : int
        Random seed of folds and networks.
    tell : callable
        Receives progress messages.
    processes : int
        How many processes share the trainings.
    """

    depth: int
    width: int
    steps: int
    folds: int
    n_networks: int
    ridges: tuple[float, ...]
    grow: bool
    rtol: float = 0.01
    shallow: int = 0
    seed: int = 0
    tell: Callable[[str], None] = _nobody
    processes: int = 1

    @property
    def work(self) -> float:
        """Evaluations of single networks, times their depth, to be expected for a fit, without further training."""
        folds = self.folds * len(self.ridges) * (self.depth + self.shallow)
        whole = min(len(self.ridges), 3) * self.n_networks * self.depth + self.grow * (self.depth + DEEPER)
        return float(self.steps * (folds + whole))

    @property
    def alone(self) -> "Budget":
        """The settings of one training, which another process can read."""
        return replace(self, tell=_nobody, processes=1)

    @property
    def optimizer(self) -> str | Adam:
        """The optimizer: with few steps, Adam alone, with larger and then decaying step sizes."""
        return Adam(1e-2, "cosine") if self.steps <= 200 else "adam+kfac-lbfgs"


def budget_for(n: int, d_in: int, d_out: int, bound: int) -> Budget:
    """Return the budget for n distinct rows.

    A count needs a deep network: the ridge penalizes each dimension by lambda L, and only near L = 12 does a network
    drop a dimension at the price of more curvature (at depth 8 it keeps one too many on the noisy task of F4). The
    number of steps grows with the number of rows: two per row, up to 500. Below 100 rows networks are small and
    shallow. Below 30 rows no network could be shown to be better than a linear map, and only linear maps are fitted
    (``ridges`` is empty). Networks are also shallow where at most one component can be detected (``bound`` is 1: one
    output or two classes), since prediction needs no depth. In addition to networks of depth 12, shallow ones
    (``shallow``) are trained: deep ones can remain at a saddle that shallow ones leave, as for products of inputs.

    Examples
    --------
    >>> made = budget_for(300, 20, 20, 20)
    >>> made.depth, made.width, made.steps, made.folds
    (12, 40, 500, 3)
    >>> made = budget_for(40, 3, 1, 1)
    >>> made.depth, made.width, made.steps, made.folds
    (4, 16, 80, 2)
    """
    d = max(d_in, d_out)
    if n < FEW:
        return Budget(4, 16, 0, 2, 1, (), False)
    if n < MANY:
        return Budget(4, 16, 2 * n, 2 if n < 50 else 3, 1, (3e-2, 3e-3), False)
    width = int(np.clip(2 * min(d, n // 6), 16, 64))
    depth, shallow = (SHALLOW, 0) if bound == 1 else (DEEP, SHALLOW)
    ridges = (3e-2, 10**-2.0, 3e-3)
    return Budget(depth, width, min(MAX_STEPS, 2 * n), 3, 2, ridges, n >= 200, shallow=shallow)
