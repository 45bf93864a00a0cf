"""The number of components supported by held-out rows, with its uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

SURE = 2.0  # standard errors by which a function must improve on the mean
NEGLIGIBLE = 1e-6  # relative to the loss of the mean; smaller differences are round-off
RESAMPLES = 200
AGREE = 0.5  # smallest fraction of the trials that must agree with the count


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
        Smallest k for which truncation to k dimensions (T5: f = h o g, inner dimension k) changes the outputs by no
        more than one standard error of the held-out loss (or by ``rtol``, if larger).
    weight_rank : int or None
        Number of singular values near 1 shared by a run of layers (T27); None where no layer has a clear gap.
    loss : float
        C + lambda ||theta||^2 after training.
    held_out : float
        Mean loss on the held-out rows of its fold; NaN without a fold.
    considered : bool
        Whether its ridge has a held-out loss within one standard error of the best, and its depth is the selected one.
    directions : int or None
        Smallest number of linear combinations of the inputs that leaves the outputs unchanged to the same accuracy;
        None where it was not counted.

    Examples
    --------
    >>> import numpy as np, bnrank
    >>> x = np.random.default_rng(0).uniform(size=(40, 2))
    >>> regressor = bnrank.discovery.BottleneckRegressor(ridges=[0.01], depth=3, width=6, steps=20)
    >>> trials = regressor.fit(x, np.sin(6 * x[:, :1])).summary().stability     # a Trial for every network
    >>> [(trial.ridge, trial.depth, trial.fold) for trial in trials]
    [(0.01, 3, 0), (0.01, 3, 1)]
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
    directions: int | None = None


@dataclass(frozen=True)
class Count:
    """A number of components with its uncertainty.

    Attributes
    ----------
    number : int
        The count.
    interval : tuple of int
        Smallest and largest of: the number, the counts of the trials within one standard error of the best, and the
        central 95 percent of the counts on 200 resamples of the held-out rows. Where nothing was found: from 0 to the
        largest of these, ignoring the requirement of two standard errors.
    agreement : float
        Fraction of these trials that agree with the number; NaN without trials.
    undetermined : bool
        Whether the data do not settle the count.
    reason : str
        The evidence for the count, or why it is undetermined.
    """

    number: int
    interval: tuple[int, int]
    agreement: float
    undetermined: bool
    reason: str


def smallest_within_error(errors: np.ndarray, *, paired: bool, rtol: float = 0.0) -> int:
    """Return the smallest k whose mean loss is within one standard error of the best (Breiman et al. 1984, 3.4.3).

    Parameters
    ----------
    errors : ndarray
        Held-out loss of every row at k = 0, 1, ..., shape (K + 1, N).
    paired : bool
        Whether the standard error is that of the difference of two losses, row by row, or of the best loss itself.
        Linear maps are compared in pairs, which detects weak components best. Networks are not: an unneeded dimension
        adds a little curvature and predicts slightly better (of 12 planted maps of 300 rows, pairs recovered the
        planted number for 7, the error of the best loss for all 12).
    rtol : float
        Differences up to this fraction of what all components explain (the loss at k = 0 minus the lowest) are ignored,
        as are those below 1e-6 of the loss at k = 0.

    Examples
    --------
    >>> smallest_within_error(np.array([[4.0, 6.0, 5.0], [1.0, 2.0, 1.5], [1.1, 1.9, 1.5]]), paired=True)
    1
    """
    means = errors.mean(axis=1)
    best = int(means.argmin())
    for k, row in enumerate(errors):
        error = standard_error(row - errors[best] if paired else errors[best])
        if means[k] - means[best] <= max(error, NEGLIGIBLE * means[0], rtol * (means[0] - means[best])):
            return k
    return best


def standard_error(rows: np.ndarray) -> float:
    """Return the standard error of the mean of rows, sqrt(sum_i (r_i - mean)^2) / N.

    The variance uses N, not N - 1: too low by a factor of sqrt(1 - 1/N), 2 percent for 25 rows.

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


def is_worse(errors: np.ndarray, than: np.ndarray, sure: float = 1.0) -> bool:
    """Return whether a held-out loss, (N,), exceeds another by more than ``sure`` of the other's standard errors.

    Examples
    --------
    >>> is_worse(np.array([3.0, 3.0]), np.array([1.0, 2.0]))
    True
    """
    return bool(errors.mean() > than.mean() + sure * standard_error(than))


def by_group(errors: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return one entry per group of rows, with the same mean, so that copies of a row do not count as evidence.

    The standard error over the entries is that of a mean of clusters: an entry is the mean plus the summed deviation of
    its group, times the ratio of groups to rows. Without copies nothing changes.

    With weights w_i, the mean of the entries is the weighted mean m = sum_i w_i l_i / sum_i w_i. The entry of group g
    is m + G sum_{i in g} w_i (l_i - m) / sum_i w_i, with G groups. Its standard error is therefore that of a ratio,
    linearized: sqrt(sum_g (sum_{i in g} w_i (l_i - m))^2) / sum_i w_i (Cochran 1977, 6.4). Where the losses of single
    rows have the same variance, it is that of the mean of n = (sum_i w_i)^2 / sum_i w_i^2 rows of equal weight, the
    effective number of rows. Entries are linear in the losses: the difference of two is the entry of the difference.

    Parameters
    ----------
    errors : ndarray
        Loss of every row, (..., N).
    groups : ndarray
        The group of every row, (N,), counted from 0.
    weights : ndarray, optional
        The weight of every row, (N,).

    Examples
    --------
    >>> by_group(np.array([1.0, 1.0, 4.0, 4.0]), np.array([1, 1, 0, 0])).tolist()
    [4.0, 1.0]
    >>> by_group(np.array([1.0, 4.0]), np.array([1, 0]), np.array([3.0, 1.0])).tolist()
    [2.875, 0.625]
    """
    number, total = int(groups.max()) + 1, len(groups) if weights is None else weights.sum()
    if number == len(groups) and weights is None:
        return errors
    mean = np.average(errors, axis=-1, weights=weights, keepdims=True)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(number))
    deviations = errors - mean if weights is None else weights * (errors - mean)
    return mean + np.add.reduceat(deviations[..., order], starts, axis=-1) * (number / total)


def resampled(errors: np.ndarray, rtol: float, *, paired: bool = False, seed: int = 0) -> tuple[int, int]:
    """Return the 95 percent bootstrap interval over held-out rows of :func:`smallest_within_error`.

    Examples
    --------
    >>> resampled(np.array([[4.0, 6.0, 5.0, 5.0], [1.0, 2.0, 1.5, 1.0], [1.0, 1.9, 1.5, 1.1]]), 0.0)
    (1, 1)
    """
    generator = np.random.default_rng(seed)
    n = errors.shape[1]
    numbers = [
        smallest_within_error(errors[:, generator.integers(n, size=n)], paired=paired, rtol=rtol)
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(numbers, [0.025, 0.975], method="nearest")
    return int(low), int(high)


def count_of(number: int, trials: Sequence[Trial], bound: int, resamples: tuple[int, int]) -> Count:
    """Return the count supported by held-out rows, with the counts of single networks as evidence.

    Parameters
    ----------
    number : int
        Smallest inner dimension whose held-out loss is within one standard error of the best.
    trials : sequence of Trial
        All networks; only those considered count.
    bound : int
        The largest count that can be detected.
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
    agree = running.count(number)
    reason = f"{agree} of {len(running)} networks within one standard error of the best have {number}"
    if undetermined := agree < AGREE * len(running):
        reason = f"undetermined: only {reason}, others {interval[0]} to {interval[1]}"
    elif number == bound:
        reason += f"; more than {bound} cannot be detected"
    return Count(number, interval, agree / len(running), undetermined, reason)


def sample_losses(values: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Return the loss of every row: the squared error summed over outputs, or -log softmax.

    Examples
    --------
    >>> sample_losses(np.array([[1.0, 2.0]]), np.array([[1.0, 0.0]]), 0).tolist()
    [4.0]
    """
    if not classes:
        return np.square(values - y).sum(axis=1)
    return -log_softmax(values, axis=1)[np.arange(len(y)), y]
