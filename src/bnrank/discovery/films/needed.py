"""The number of coordinates that predict the next frames nearly as well as the whole bottleneck, with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

Array = NDArray[np.float64]

RTOL = 0.01  # share of what is explained that coordinates may lose
ERRORS = 2.0  # standard errors within which a share counts as equal, if there are many independent films


@dataclass(frozen=True)
class Tried:
    """Networks through k coordinates, one for each seed.

    Attributes
    ----------
    k : int
        Number of coordinates.
    left : float
        Share of the next frames' variance that the network of the first seed leaves unexplained.
    excess, margin : ndarray
        By how much the share of each network exceeds what is allowed, and the margin of chance, (seeds,).
    """

    k: int
    left: float
    excess: Array
    margin: Array

    @property
    def enough(self) -> bool:
        """Whether the network of the first seed predicts nearly as well as the whole bottleneck."""
        return bool(self.excess[0] <= 0)

    @property
    def possible(self) -> bool:
        """Whether some network may, within the margin of chance."""
        return bool((self.excess - self.margin <= 0).any())

    @property
    def certain(self) -> bool:
        """Whether every network does, by more than the margin of chance."""
        return bool((self.excess + self.margin <= 0).all())


def standard_errors(groups: int) -> float:
    """Return how many standard errors a mean over independent groups may be off by chance, at the level of two.

    The quantile of Student's t with ``groups`` - 1 degrees of freedom at the probability Phi(2), 0.977.

    Examples
    --------
    >>> [round(standard_errors(groups), 2) for groups in (2, 5, 50, 10_000)]
    [13.97, 2.87, 2.05, 2.0]
    """
    return float(t.ppf(norm.cdf(ERRORS), groups - 1))


def tried(k: int, errors: Array, whole: Array, of_mean: Array, unit: NDArray[np.int64]) -> Tried:
    """Return how well networks through k coordinates predict.

    Parameters
    ----------
    k : int
        Number of coordinates.
    errors : ndarray
        Squared errors of held-out windows, (seeds, windows).
    whole, of_mean : ndarray
        Those of the network with the whole bottleneck, and of a constant prediction, (windows,).
    unit : ndarray
        The film or block of every window, (windows,): what is independent.

    Examples
    --------
    >>> found = tried(1, np.full((1, 6), 0.105), np.full(6, 0.1), np.ones(6), np.repeat([0, 1, 2], 2))
    >>> found.enough, round(found.left, 3), found.excess.round(3).tolist()
    (True, 0.105, [-0.004])
    """
    total = max(float(of_mean.sum()), 1e-300)
    beyond = errors - whole - RTOL * (of_mean - whole)
    _, number = np.unique(unit, return_inverse=True)
    groups = int(number.max()) + 1
    sums = np.array([np.bincount(number, row) for row in beyond])
    margin = np.full(len(errors), np.inf)
    if groups > 1:
        margin = standard_errors(groups) * sums.std(axis=1, ddof=1) * np.sqrt(groups) / total
    return Tried(k, float(errors[0].sum() / total), sums.sum(axis=1) / total, margin)


def interval_of(found: list[Tried], state_low: int, latent: int) -> tuple[int, int]:
    """Return the smallest and the largest number of coordinates that the evidence allows.

    The least k at which some network may predict nearly as well as the whole bottleneck, and the least at which all
    do; numbers below the first that was tried are not excluded if the state dimension may be as low. The bottleneck
    itself has ``latent`` coordinates.
    """
    if not found:
        return 0, latent
    low = next((entry.k for entry in found if entry.possible), min(found[-1].k + 1, latent))
    high = next((entry.k for entry in found if entry.certain), latent)
    return (min(low, state_low) if low == found[0].k else low), max(high, low)
