"""The number of linear combinations of the inputs that the outputs depend on, with its uncertainty."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators import counts
from bnrank.discovery.estimators.bottleneck import InputDirections, changes
from bnrank.discovery.estimators.counts import Count, Trial, sample_losses, standard_error
from bnrank.discovery.estimators.learning import Evidence, Model
from bnrank.discovery.estimators.path import Fit, Path
from bnrank.discovery.estimators.tables import Data, apart
from bnrank.discovery.estimators.weights import as_factors, mean_of, spread
from bnrank.networks.mlp import MLP


@dataclass(frozen=True)
class Directions:
    """The linear combinations of the inputs that the outputs depend on.

    Attributes
    ----------
    count : Count
        Their number, with its interval and the evidence.
    vectors : ndarray
        (n, d_in), one combination v . x per row, most important first, in the scale of training: uncorrelated, of
        variance 1 on the rows. Their span is what the data determine (the central mean subspace).
    spectrum : ndarray
        Root mean square derivative of f along every direction, (d_in,).
    held_out, held_out_error : ndarray
        Held-out loss of networks that receive only their first j = 0, 1, ... directions, and its standard error.
    trials : tuple of Trial
        All networks, those within one standard error of the best with their number of directions.
    """

    count: Count
    vectors: np.ndarray
    spectrum: np.ndarray
    held_out: np.ndarray
    held_out_error: np.ndarray
    trials: tuple[Trial, ...]


def directions_of(found: Evidence, model: Model, data: Data, count: Count) -> Directions:
    """Return the directions of a fitted model.

    On every fold the network receives only its first j directions (:class:`~bnrank.discovery.estimators.bottleneck.
    InputDirections`); their number is the smallest j whose held-out loss is within one standard error of the best. It
    is compared with the numbers of single networks, and with those on resamples of the held-out rows, as the number of
    components is. If the component count (``count``) is undetermined, so is this one.
    """
    inputs = torch.from_numpy(data.x)
    every = InputDirections(model.network, inputs, data.weights)
    trials, path, errors = found.trials(), found.path, found.errors
    own = Count(found.number, count.interval, count.agreement, count.undetermined, count.reason)
    if path is not None and found.kind != "constant":
        if found.kind == "network":
            errors = held_out_by_number(path, model.ridge)
            numbers = {id(fit): _number(fit, path, trial) for fit, trial in zip(path.fits, path.trials(), strict=True)}
            told = tuple(
                replace(t, directions=numbers[id(fit)]) for fit, t in zip(path.fits, path.trials(), strict=True)
            )
            trials = told + trials[len(told) :]
            own = _count(errors, path, told)
        else:
            own = _beside_a_network(own, path, errors)
    if count.undetermined:
        low, high = own.interval
        reason = count.reason
        if not nothing_found(found):
            reason = f"undetermined: so is the number of components ({reason.removeprefix('undetermined: ')})"
        own = replace(own, interval=(min(low, count.interval[0]), high), undetermined=True, reason=reason)
    vectors = every.down[:, : own.number].T.numpy()
    largest = np.abs(vectors * spread(data.x, data.weights)).argmax(axis=1)
    vectors = vectors * np.where(vectors[np.arange(len(vectors)), largest] < 0, -1.0, 1.0)[:, None]
    error = np.array([standard_error(rows) for rows in errors])
    return Directions(own, vectors, every.spectrum, errors.mean(axis=1), error, trials)


def nothing_found(found: Evidence) -> bool:
    """Return whether nothing predicts held-out rows better than the mean, components that were requested included."""
    return found.number == 0 or not counts.is_better(found.errors[found.number], found.errors[0])


def held_out_by_number(path: Path, ridge: float) -> np.ndarray:
    """Return the held-out loss of every row for networks that receive their first j directions, (d_in + 1, N)."""
    data = path.data
    errors = np.zeros((data.x.shape[1] + 1, len(data.x)))
    for fit in path.at(ridge):
        out = path.splits.out[fit.fold]
        known, held_out = apart(data, path.splits.known[fit.fold], out)
        net, x = fit.network.double(), torch.from_numpy(held_out.x).double()
        found = InputDirections(net, torch.from_numpy(known.x), known.weights)
        with torch.no_grad():
            for j in range(len(errors)):
                errors[j, out] += sample_losses(net(found.project(x, j)).numpy(), held_out.y, data.classes)
    return path.splits.by_group(errors, path.groups, data.weights)


def sufficient_number(
    net: MLP, x: Tensor, negligible: float, classes: int = 0, weights: np.ndarray | None = None
) -> int:
    """Return the smallest number of a network's directions with which its outputs on x change by no more than this.

    Examples
    --------
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3)[:2], torch.tensor([[1.0, 0.1]])], [torch.zeros(2), torch.zeros(1)])
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> sufficient_number(net, x, 1e-9), sufficient_number(net, x, 100.0)
    (2, 0)
    """
    net, x, factors = net.double(), x.double(), as_factors(weights)
    found = InputDirections(net, x, weights)
    with torch.no_grad():
        full = net(x)
        for j in range(x.shape[1]):
            if float(mean_of(changes(full, net(found.project(x, j)), classes), factors)) <= negligible:
                return j
    return x.shape[1]


def _number(fit: Fit, path: Path, trial: Trial) -> int | None:
    """Return the number of directions of a network within one standard error of the best; None for others."""
    if not trial.considered:
        return None
    data = path.data if fit.fold is None else path.data.rows(path.splits.known[fit.fold])
    return sufficient_number(fit.network, torch.from_numpy(data.x), path.negligible, data.classes, data.weights)


def _count(errors: np.ndarray, path: Path, trials: tuple[Trial, ...]) -> Count:
    number = max(counts.smallest_within_error(errors, paired=False, rtol=path.rtol), 1)
    low, high = counts.resampled(errors, path.rtol)
    single = [replace(trial, count=trial.directions) for trial in trials if trial.directions is not None]
    return counts.count_of(number, single, -1, (max(low, 1), max(high, 1)))


def _beside_a_network(count: Count, path: Path, errors: np.ndarray) -> Count:
    """Return the count of a linear map, undetermined if a network of more directions predicts equally well."""
    other = max(
        counts.smallest_within_error(held := held_out_by_number(path, path.best), paired=False, rtol=path.rtol), 1
    )
    if count.undetermined or other <= count.number or counts.is_worse(held[other], errors[count.number]):
        return count
    reason = f"a linear model of {count.number} and a network of {other} combinations predict equally well"
    interval = (count.interval[0], max(count.interval[1], other))
    return Count(count.number, interval, count.agreement, True, f"undetermined: {reason}")
