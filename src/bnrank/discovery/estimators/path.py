"""The path over ridges: ensembles on the folds of a cross-validation and on all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from bnrank.discovery.estimators.budget import Budget
from bnrank.discovery.estimators.checking import groups_of_rows
from bnrank.discovery.estimators.counting import Trial, by_group, is_better, least_within_error, standard_error
from bnrank.discovery.estimators.cutting import Truncation, truncate
from bnrank.measures import bottlenecks
from bnrank.measures.spectra import weight_singular_values
from bnrank.networks.mlp import MLP
from bnrank.tasks import Task
from bnrank.training import Record, Run, Stop, train

__all__ = ["Data", "Fit", "Path", "apart", "center_logits", "explore", "finished", "train_members"]

STEP = 10**0.5  # between ridges
LARGEST, SMALLEST = 1.0, 1e-5
MOST = 25  # dimensions looked at


@dataclass(frozen=True)
class Data:
    """A table in the scale of training.

    Attributes
    ----------
    x : ndarray
        (N, d_in).
    y : ndarray
        (N, d_out), or class numbers (N,).
    classes : int
        Number of classes; 0 for the squared error.
    limit : int
        Number of dimensions looked at, at most.
    """

    x: np.ndarray
    y: np.ndarray
    classes: int = 0
    limit: int = MOST

    @property
    def outputs(self) -> int:
        """d_out."""
        return self.classes or self.y.shape[1]

    @property
    def most(self) -> int:
        """Largest count that can be seen: of C logits only C - 1 differences matter."""
        return min(self.full, self.limit)

    @property
    def full(self) -> int:
        """Largest rank that a linear map can have."""
        return min(self.x.shape[1], self.classes - 1 if self.classes else self.y.shape[1])

    @cached_property
    def groups(self) -> np.ndarray:
        """The group of copies of every row, (N,)."""
        return groups_of_rows(self.x, self.y, labels=bool(self.classes))

    @cached_property
    def inputs(self) -> np.ndarray:
        """The number of every row's inputs among those that differ, (N,)."""
        return np.unique(self.x, axis=0, return_inverse=True)[1].reshape(-1)

    @property
    def different(self) -> int:
        """Number of rows that are no copies of another."""
        return int(self.groups.max()) + 1

    def rows(self, chosen: np.ndarray) -> Data:
        """Return some of the rows."""
        return Data(self.x[chosen], self.y[chosen], self.classes, self.limit)

    def task(self) -> Task:
        """Return the table as a task."""
        x, y = torch.from_numpy(np.ascontiguousarray(self.x)), torch.from_numpy(np.ascontiguousarray(self.y))
        if self.classes:
            return Task(x, y.long(), loss="cross_entropy", classes=self.classes, name="table")
        return Task(x, y, name="table")


@dataclass(frozen=True)
class Fit:
    """One trained network, and it cut to every number of dimensions."""

    ridge: float
    depth: int
    seed: int
    fold: int | None
    network: MLP
    loss: float
    weight_rank: int | None
    truncation: Truncation


@dataclass
class Path:
    """Everything trained, and the held-out loss of every row.

    Attributes
    ----------
    data : Data
        The rows it was trained on.
    folds, groups : ndarray
        The fold of every row, and its group of copies, (N,).
    fits : list of Fit
        All networks.
    errors : dict
        Ridge -> held-out loss of every row (or group of copies) of the network cut to k = 0, ..., K dimensions,
        (K + 1, N).
    tolerance : float
        Share of what is explained that more dimensions must add.
    """

    data: Data
    folds: np.ndarray
    groups: np.ndarray
    fits: list[Fit] = field(default_factory=list)
    errors: dict[float, np.ndarray] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def ridges(self) -> list[float]:
        """Ridges, largest first."""
        return sorted(self.errors, reverse=True)

    @property
    def best(self) -> float:
        """The ridge of least held-out loss."""
        return min(self.ridges, key=lambda ridge: float(self.errors[ridge][-1].mean()))

    @property
    def error(self) -> float:
        """Standard error of the least held-out loss."""
        return standard_error(self.errors[self.best][-1])

    @property
    def running(self) -> list[float]:
        """Ridges whose held-out loss is within one standard error of the least."""
        limit = self.errors[self.best][-1].mean() + self.error
        return [ridge for ridge in self.ridges if self.errors[ridge][-1].mean() <= limit]

    @property
    def by_number(self) -> np.ndarray:
        """Held-out loss of every row at k = 0, ..., K dimensions, each k with its best ridge, (K + 1, N)."""
        most = self.data.most + 1
        return np.array([self.errors[self.ridge_for(k)][k] for k in range(most)])

    @property
    def supported(self) -> int:
        """The least number of dimensions whose held-out loss is within one standard error of the best."""
        return least_within_error(self.by_number, paired=False, tolerance=self.tolerance)

    def ridge_for(self, k: int) -> float:
        """Return the ridge at which networks cut to k dimensions have the least held-out loss."""
        return min(self.ridges, key=lambda ridge: float(self.errors[ridge][k].mean()))

    def trials(self) -> tuple[Trial, ...]:
        """Return one row per network."""
        return tuple(self._trial(fit) for fit in self.fits)

    def _trial(self, fit: Fit) -> Trial:
        change, errors = fit.truncation.change, self.errors[self.best].mean(axis=1)
        negligible = max(self.error, self.tolerance * (errors[0] - errors[-1]), change.min())
        count = int(np.argmax(change <= negligible))
        rows = fit.truncation.errors
        held_out = float(rows[-1].mean()) if rows.size else float("nan")
        nominal = fit.ridge * fit.depth / self.fits[0].depth  # a dimension costs lambda L
        considered = min(abs(np.log(ridge / nominal)) for ridge in self.running) < 0.5 * np.log(STEP)
        return Trial(
            fit.ridge, fit.depth, fit.seed, fit.fold, count, fit.weight_rank, fit.loss, held_out, bool(considered)
        )


def explore(
    data: Data,
    folds: np.ndarray,
    groups: np.ndarray,
    level: np.ndarray,
    plan: Budget,
    seed: int,
    tell: Callable[[str], None],
) -> Path:
    """Train networks at a few ridges on every fold, and go on where the best ridge is the first or the last.

    All ridges of a fold are one ensemble. A larger ridge makes a larger error by shrinking (and in the end the network
    collapses to a constant, T17b), a smaller one by fitting noise; the held-out loss says where to stop.

    Parameters
    ----------
    data : Data
        The table.
    folds, groups : ndarray
        The fold of every row, and its group of copies, (N,).
    level : ndarray
        Held-out loss of the mean (of the frequencies of the classes), by group: that of 0 dimensions.
    plan : Budget
        Sizes and steps.
    seed : int
        Of the first fold.
    tell : callable
        Is told what is being done.
    """
    path = Path(data, folds, groups, tolerance=plan.tolerance)
    wanted: Sequence[float] = plan.ridges
    while wanted:
        collected = {ridge: np.zeros((data.most + 1, len(data.x))) for ridge in wanted}
        for number in np.unique(folds):
            out = folds == number
            tell(f"fold {number + 1} of {len(np.unique(folds))}, ridges {_listed(wanted)}")
            known, held_out = apart(data, out)
            fits = train_members(known, wanted, [seed + int(number)] * len(wanted), plan, held_out, int(number))
            for fit in fits:
                collected[fit.ridge][:, out] = fit.truncation.errors
            path.fits += fits
        for ridge, errors in collected.items():
            path.errors[ridge] = np.vstack([level, by_group(errors[1:], groups)])
        wanted = _next(path, plan)
    return path


def train_members(
    data: Data,
    ridges: Sequence[float],
    seeds: Sequence[int],
    plan: Budget,
    held_out: Data | None = None,
    fold: int | None = None,
) -> list[Fit]:
    """Train one ensemble, a member for each ridge and seed, and cut every member to every number of dimensions."""
    hidden = [plan.width] * (plan.depth - 1)
    net = MLP([data.x.shape[1], *hidden, data.outputs])
    task = data.task()
    run = train(
        net,
        task,
        ridge=list(ridges),
        steps=Stop(plan.steps, gradient_norm=1e-3),
        seed=list(seeds),
        record=Record(every=max(min(plan.steps, 100), 1), top_k=1),
        progress=False,
        optimizer=plan.optimizer,
    )
    fits = []
    for i, ridge in enumerate(ridges):
        network = finished(run, i)
        assert isinstance(network, MLP)
        if data.classes:
            center_logits(network)
        others = None if held_out is None else (torch.from_numpy(held_out.x), held_out.y)
        found = bottlenecks.detect(weight_singular_values(network))
        fits.append(
            Fit(
                ridge,
                plan.depth,
                seeds[i],
                fold,
                network,
                float(run.summary.loss[i]),
                found.rank,
                truncate(network, task.x, data.most, others, data.classes),
            )
        )
    return fits


def apart(data: Data, out: np.ndarray) -> tuple[Data, Data]:
    """Return the rows to learn from and those held out, both with the outputs' mean over the former for zero."""
    known, held_out = data.rows(~out), data.rows(out)
    if data.classes:
        return known, held_out
    mean = known.y.mean(axis=0)
    return replace(known, y=known.y - mean), replace(held_out, y=held_out.y - mean)


def finished(run: Run, member: int = 0) -> nn.Module:
    """Return a trained network; a training that was interrupted is none, and Ctrl-C is passed on."""
    if "interrupted" in run.summary.status.values:
        raise KeyboardInterrupt
    return run.network(member)


def center_logits(net: MLP) -> None:
    """Take from the logits their mean, in place: probabilities do not see it, but principal directions would."""
    with torch.no_grad():
        for parameter in (net.weights[-1], net.biases[-1]):
            parameter.sub_(parameter.mean(0))


def _next(path: Path, plan: Budget) -> list[float]:
    """Return a ridge beyond the end at which the path is best, or nothing."""
    if not plan.grow:
        return []
    largest, smallest, best = path.ridges[0], path.ridges[-1], path.best
    if best == largest and largest * STEP <= LARGEST:
        return [largest * STEP]
    if best == smallest and smallest / STEP >= SMALLEST:
        before = path.errors[path.ridges[-2]][-1] if len(path.ridges) > 1 else path.errors[best][0]
        if is_better(path.errors[best][-1], before, sure=1.0):
            return [smallest / STEP]
    return []


def _listed(ridges: Sequence[float]) -> str:
    return ", ".join(f"{ridge:.2g}" for ridge in ridges)
