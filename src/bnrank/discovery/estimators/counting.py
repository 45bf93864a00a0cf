"""The number of components, by what held-out rows support, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "SURE",
    "Count",
    "Trial",
    "by_group",
    "count_of",
    "is_better",
    "least_within_error",
    "resampled",
    "standard_error",
]

SURE = 2.0  # standard errors by which something must be better than nothing
NEGLIGIBLE = 1e-6  # share of the loss of the mean that counts as no difference
RESAMPLES = 200
AGREE = 0.5  # share of the trials that must give the count, or it is undetermined


@dataclass(frozen=True)
class Trial:
    """One trained network and its count.

    Attributes
    ----------
    ridge : float
        lambda of C + lambda ||theta||^2, in the scale of training.
    depth, seed : int
        L, and the seed of the initial draw.
    fold : int or None
        The fold that was held out; None for a network trained on all rows.
    count : int
        Least k for which the network cut to k dimensions (T5: f = h o g, inner dimension k) does what it did,
        to within one standard error of the held-out loss (or the tolerance, where that is more).
    weight_rank : int or None
        Number of singular values near 1 in the run of layers that has the same number of them (T27); None where no
        layer has a clear gap.
    loss : float
        C + lambda ||theta||^2 in the end.
    held_out : float
        Mean loss on the held-out rows of its fold; NaN without any.
    considered : bool
        Whether its ridge is in the running: held-out loss within one standard error of the best. Networks of a depth
        that is not kept are not.
    """

    ridge: float
    depth: int
    seed: int
    fold: int | None
    count: int
    weight_rank: int | None
    loss: float
    held_out: float
    considered: bool


@dataclass(frozen=True)
class Count:
    """A number of components with its uncertainty.

    Attributes
    ----------
    number : int
        The count.
    interval : tuple of int
        Least and largest of: the number, the counts of the trials in the running, and the number that the rule gives
        on 200 resamples of the held-out rows, less 2.5 percent on either side. Where nothing was found: from 0 to
        the largest of these, for which nothing need be better than the mean by two standard errors.
    agreement : float
        Share of these trials that give the number; NaN without trials.
    undetermined : bool
        Whether fewer than half do.
    reason : str
        What the count rests on, or why it is undetermined.
    """

    number: int
    interval: tuple[int, int]
    agreement: float
    undetermined: bool
    reason: str


def least_within_error(errors: np.ndarray, *, paired: bool, tolerance: float = 0.0) -> int:
    """Return the least k whose mean loss is within one standard error of the least (Breiman et al. 1984, 3.4.3).

    Parameters
    ----------
    errors : ndarray
        Held-out loss of every row at k = 0, 1, ..., shape (K + 1, N).
    paired : bool
        Whether the standard error is that of the difference of two losses, row by row, or of the least loss itself.
        Linear maps are compared in pairs, for which a weak component is seen best. Networks are not: one with a
        dimension too many bends it a little and so predicts a little better than the same network without it, which
        is seen in pairs although the dimension is not needed (of 12 planted maps of 300 rows pairs gave the planted
        number for 7, the error of the least loss for all).
    tolerance : float
        Share of what all components explain, the loss at k = 0 less the least, that is no difference either.

    Notes
    -----
    A difference below 1e-6 of the loss at k = 0 is none.

    Examples
    --------
    >>> least_within_error(np.array([[4.0, 6.0, 5.0], [1.0, 2.0, 1.5], [1.1, 1.9, 1.5]]), paired=True)
    1
    """
    means = errors.mean(axis=1)
    best = int(means.argmin())
    for k, row in enumerate(errors):
        error = standard_error(row - errors[best] if paired else errors[best])
        if means[k] - means[best] <= max(error, NEGLIGIBLE * means[0], tolerance * (means[0] - means[best])):
            return k
    return best


def standard_error(rows: np.ndarray) -> float:
    """Return the standard error of the mean of rows, sqrt(sum_i (r_i - mean)^2) / N.

    Of N rows, with N and not N - 1 in the variance: it is low by a factor of sqrt(1 - 1/N), 2 percent for 25 rows.

    Examples
    --------
    >>> standard_error(np.array([1.0, 3.0, 1.0, 3.0]))
    0.5
    """
    return float(rows.std() / np.sqrt(len(rows)))


def is_better(errors: np.ndarray, than: np.ndarray, sure: float = SURE) -> bool:
    """Return whether one held-out loss, (N,), is less than another by ``sure`` standard errors of the difference.

    Examples
    --------
    >>> is_better(np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.2, 2.1]))
    True
    """
    gain = than - errors
    return bool(gain.mean() > max(sure * standard_error(gain), NEGLIGIBLE * than.mean()))


def by_group(errors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return one entry per group of rows, of the same mean, so that copies of a row do not pass for more evidence.

    The standard error over the entries is that of a mean of clusters: an entry is the mean plus what its group deviates
    from it, summed over the group, times groups per row. Without copies nothing changes.

    Parameters
    ----------
    errors : ndarray
        Loss of every row, (..., N).
    groups : ndarray
        The group of every row, (N,), counted from 0.

    Examples
    --------
    >>> by_group(np.array([1.0, 1.0, 4.0, 4.0]), np.array([1, 1, 0, 0])).tolist()
    [4.0, 1.0]
    """
    number = int(groups.max()) + 1
    if number == len(groups):
        return errors
    mean = errors.mean(axis=-1, keepdims=True)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(number))
    return mean + np.add.reduceat((errors - mean)[..., order], starts, axis=-1) * (number / len(groups))


def resampled(errors: np.ndarray, tolerance: float, seed: int, *, paired: bool = False) -> tuple[int, int]:
    """Return the 95 percent interval of the rule's number when the held-out rows are drawn again with replacement.

    Examples
    --------
    >>> resampled(np.array([[4.0, 6.0, 5.0, 5.0], [1.0, 2.0, 1.5, 1.0], [1.0, 1.9, 1.5, 1.1]]), 0.0, 0)
    (1, 1)
    """
    generator = np.random.default_rng(seed)
    n = errors.shape[1]
    numbers = [
        least_within_error(errors[:, generator.integers(n, size=n)], paired=paired, tolerance=tolerance)
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(numbers, [0.025, 0.975], method="nearest")
    return int(low), int(high)


def count_of(number: int, trials: Sequence[Trial], bound: int, resamples: tuple[int, int]) -> Count:
    """Put the number that held-out rows support together with the counts of single networks.

    Parameters
    ----------
    number : int
        Least inner dimension whose held-out loss is within one standard error of the best.
    trials : sequence of Trial
        All networks; only those whose ridge is in the running are looked at.
    bound : int
        min(d_in, d_out), which no count can exceed.
    resamples : tuple of int
        The interval of :func:`resampled`.

    Examples
    --------
    >>> trial = Trial(1e-2, 12, 0, None, 2, 2, 0.5, float("nan"), True)
    >>> count_of(2, [trial], 5, (2, 3)).interval
    (2, 3)
    """
    running = [trial.count for trial in trials if trial.considered]
    interval = (min(number, *running, *resamples), max(number, *running, *resamples))
    agreement = sum(count == number for count in running) / len(running)
    reason = f"{sum(count == number for count in running)} of {len(running)} networks in the running have {number}"
    if agreement < AGREE:
        return Count(number, interval, agreement, True, f"undetermined: only {reason}, others {interval}")
    if number == bound:
        reason += f"; more than {bound} could not be seen"
    return Count(number, interval, agreement, False, reason)
