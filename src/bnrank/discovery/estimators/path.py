"""The path over ridges: networks on the folds of a cross-validation and on all rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from bnrank._core import validation
from bnrank.discovery.estimators.bottleneck import Truncation, truncate
from bnrank.discovery.estimators.budget import Budget
from bnrank.discovery.estimators.counts import Trial, by_group, is_better, smallest_within_error, standard_error
from bnrank.discovery.estimators.jobs import results_of
from bnrank.discovery.estimators.keeping import folder_of_trainings, train
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data, apart
from bnrank.discovery.estimators.weights import effective
from bnrank.measures import bottlenecks
from bnrank.measures.spectra import weight_singular_values
from bnrank.networks.mlp import MLP
from bnrank.training import Record, Run, Stop

MAX_ROWS = 4000  # largest number of rows used by the path over ridges
STEP = 10**0.5  # ratio of consecutive ridges
LARGEST, SMALLEST = 1.0, 1e-5  # ridges
ENOUGH = 20  # groups of rows in the first fold (effective number, if rows have weights), for it to decide
FAR = 2.0  # standard errors on the first fold; a ridge farther from the best is not trained on the others


def folds_of(groups: np.ndarray, count: int, seed: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the fold of every row, (N,); rows of a group share a fold, and folds have about the same size.

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
    number = int(groups.max()) + 1
    validation.expect(number >= count, "X", f"{number} row(s) that differ", f"at least {count}")
    assigned = np.empty(number, dtype=int)
    order = np.random.default_rng(seed).permutation(number)
    if labels is not None:
        first = np.unique(groups, return_index=True)[1]
        order = order[np.argsort(labels[first][order], kind="stable")]
    assigned[order] = np.arange(number) % count
    return assigned[groups]


@dataclass(frozen=True)
class Further:
    """A network cut to k dimensions and trained on at these, and its loss on every held-out row, or else every row."""

    network: MLP
    losses: np.ndarray


@dataclass(frozen=True)
class Fit:
    """One trained network, its truncations to every number k of dimensions, and those that were trained on."""

    ridge: float
    depth: int
    seed: int
    fold: int | None
    network: MLP
    loss: float
    weight_rank: int | None
    truncation: Truncation
    further: dict[int, Further] = field(default_factory=dict)


Call = Callable[[], list[Fit]]  # that trains networks, here or in another process


@dataclass
class Path:
    """All trained networks, and the held-out loss of every row.

    Attributes
    ----------
    data : Data
        The rows.
    splits : Splits
        Training rows and held-out rows.
    groups : ndarray
        The group of every row, (N,).
    fits : list of Fit
        All networks.
    tried : list of float
        All ridges, those that were dropped after the first fold included.
    errors : dict
        Ridge -> held-out loss of every row (or group of copies) of the network truncated to k = 0, ..., K dimensions,
        (K + 1, N).
    retrained : dict
        k -> held-out loss of every row (or group of copies) of the networks of the best ridge, cut to k dimensions and
        trained on at these, (N,).
    rtol : float
        Fraction of the total explained loss that a dimension must add.
    partial : bool
        Whether the user interrupted the fit after the first ridges were done on every fold.
    """

    data: Data
    splits: Splits
    groups: np.ndarray
    fits: list[Fit] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)
    errors: dict[float, np.ndarray] = field(default_factory=dict)
    retrained: dict[int, np.ndarray] = field(default_factory=dict)
    rtol: float = 0.0
    partial: bool = False

    @property
    def ridges(self) -> list[float]:
        """Ridges, largest first."""
        return sorted(self.errors, reverse=True)

    @property
    def best(self) -> float:
        """The ridge with the lowest held-out loss."""
        return self.ridge_for(-1)

    @property
    def error(self) -> float:
        """Standard error of the lowest held-out loss."""
        return standard_error(self.errors[self.best][-1])

    @property
    def negligible(self) -> float:
        """The change of the loss that does not count: the standard error, or ``rtol`` of what is explained."""
        errors = self.errors[self.best].mean(axis=1)
        return max(self.error, self.rtol * float(errors[0] - errors[-1]))

    def mean(self, losses: np.ndarray, fold: int | None = None) -> np.ndarray:
        """Return the weighted mean of losses of the held-out rows of a fold, or of all rows, (..., rows)."""
        weights = self.data.weights
        if weights is not None and fold is not None:
            weights = weights[self.splits.out[fold]]
        return np.asarray(np.average(losses, axis=-1, weights=weights))

    @property
    def running(self) -> list[float]:
        """Ridges whose held-out loss is within one standard error of the lowest."""
        limit = self.errors[self.best][-1].mean() + self.error
        return [ridge for ridge in self.ridges if self.errors[ridge][-1].mean() <= limit]

    @property
    def by_number(self) -> np.ndarray:
        """Held-out loss of every row at k = 0, ..., K dimensions, each k at its best, (K + 1, N)."""
        return np.array([self._best_at(k)[1] for k in range(self.data.bound + 1)])

    @property
    def supported(self) -> int:
        """The smallest number of dimensions whose held-out loss is within one standard error of the best."""
        return smallest_within_error(self.by_number, paired=False, rtol=self.rtol)

    def ridge_for(self, k: int) -> float:
        """Return the ridge at which networks of k dimensions have the lowest held-out loss."""
        return self._best_at(k)[0]

    def _best_at(self, k: int) -> tuple[float, np.ndarray]:
        """Return the ridge and the held-out loss of every row at which networks of k dimensions are best."""
        cut = min(self.ridges, key=lambda ridge: float(self.errors[ridge][k].mean()))
        if k in self.retrained and self.retrained[k].mean() < self.errors[cut][k].mean():
            return self.best, self.retrained[k]
        return cut, self.errors[cut][k]

    def at(self, ridge: float) -> list[Fit]:
        """Return the networks of the folds at a ridge."""
        return [fit for fit in self.fits if fit.fold is not None and fit.ridge == ridge]

    def lowest(self, fold: int) -> np.ndarray:
        """Return the held-out loss of a fold, by group, with the ridge and number of dimensions where it is lowest."""
        own = [fit.truncation.errors for fit in self.fits if fit.fold == fold]
        best = min(own, key=lambda errors: float(self.mean(errors, fold).min()))
        return self._by_group(best[int(self.mean(best, fold).argmin())], fold)

    def independent(self, rows: np.ndarray) -> float:
        """Return the number of groups of some rows; where rows have weights, the effective number."""
        groups = np.unique(self.groups[rows], return_inverse=True)[1].reshape(-1)
        return effective(None if self.data.weights is None else self.data.weights[rows], groups)

    def beats(self, rival: "Path") -> bool:
        """Return whether the first fold suggests that this path predicts better than another.

        Either it predicts the first fold better than the other does, by a standard error of the difference, or better
        than the other predicts a fold on average, by a standard error of the latter's lowest loss.
        """
        here = self.lowest(0)
        gain = rival.lowest(0) - here
        if self.independent(self.splits.out[0]) < ENOUGH or gain.mean() > standard_error(gain):
            return True
        average = np.mean([rival.lowest(fold).mean() for fold in range(len(self.splits))])
        return bool(here.mean() < average - rival.error)

    def near(self) -> set[float]:
        """Return the ridges whose lowest loss on the first fold is at most ``FAR`` standard errors above the best.

        All of them, where the first fold has fewer than ``ENOUGH`` groups.
        """
        first = {fit.ridge: self.mean(fit.truncation.errors, 0).min() for fit in self.fits if fit.fold == 0}
        rows = self.lowest(0)
        enough = self.independent(self.splits.out[0]) >= ENOUGH
        far = FAR * standard_error(rows) if enough else np.inf
        return {ridge for ridge, loss in first.items() if loss <= rows.mean() + far}

    def _by_group(self, losses: np.ndarray, fold: int) -> np.ndarray:
        out, weights = self.splits.out[fold], self.data.weights
        groups = np.unique(self.groups[out], return_inverse=True)[1].reshape(-1)
        return by_group(losses, groups, None if weights is None else weights[out])

    def trials(self) -> tuple[Trial, ...]:
        """Return one trial per network."""
        return tuple(self._trial(fit) for fit in self.fits)

    def _trial(self, fit: Fit) -> Trial:
        change = fit.truncation.change
        held_out = fit.truncation.errors
        negligible = max(self.negligible, change.min())
        nominal = fit.ridge * fit.depth / self.fits[0].depth  # a dimension costs lambda L
        own = {name: getattr(fit, name) for name in ("ridge", "depth", "seed", "fold", "weight_rank", "loss")}
        cut = int(np.argmax(change <= negligible))
        further = {k: float(self.mean(made.losses, fit.fold)) for k, made in fit.further.items()}
        best = min(further.values(), default=0.0)
        return Trial(
            **own,
            count=min([cut, *(k for k, loss in further.items() if loss - best <= negligible)]),
            held_out=float(self.mean(held_out[-1], fit.fold)) if held_out.size else float("nan"),
            considered=bool(min(abs(np.log(ridge / nominal)) for ridge in self.running) < 0.5 * np.log(STEP)),
        )


def explore(
    data: Data,
    splits: Splits,
    groups: np.ndarray,
    level: np.ndarray,
    plan: Budget,
    rival: Path | None = None,
    first: Sequence[Fit] = (),
) -> Path | None:
    """Return networks trained on every fold at a few ridges; ridges are added while the best is the first or last.

    A larger ridge shrinks the function (and finally collapses the network to a constant, T17b), a smaller one fits
    noise; the held-out loss determines where the path ends. The first fold decides which ridges are worth the other
    folds: a ridge is dropped if its lowest loss there, over all numbers of dimensions, exceeds the lowest of all ridges
    by more than ``FAR`` standard errors (over at least ``ENOUGH`` groups).

    Parameters
    ----------
    data : Data
        The table.
    splits : Splits
        Training rows and held-out rows.
    groups : ndarray
        The group of every row, (N,).
    level : ndarray
        Held-out loss of the mean (for classes, of their frequencies), by group: the loss at 0 dimensions.
    plan : Budget
        Sizes, steps, and the seed of the first fold.
    rival : Path, optional
        Networks of another depth. The result is None unless :meth:`Path.beats` holds after the first fold.
    first : sequence of Fit
        The networks of the first fold at the first ridges, if they are trained already.
    """
    path, whole = Path(data, splits, groups, rtol=plan.rtol), rival is not None
    wanted: Sequence[float] = plan.ridges
    while wanted:
        path.tried += wanted
        done = len(path.fits)
        try:
            path.fits += first or fits_of(of_folds(data, splits, [0], plan, wanted, whole=whole), plan)
            first = ()
            if len(splits) > 1:
                if rival is not None and not path.errors and not path.beats(rival):
                    return None
                near = path.near()
                wanted = [ridge for ridge in wanted if ridge in near]
                if not wanted:
                    return path
                others = range(1, len(splits))
                path.fits += fits_of(of_folds(data, splits, others, plan, wanted, whole=whole), plan)
        except KeyboardInterrupt:
            if not path.errors:
                raise
            path.partial = True
            del path.fits[done:]
            return path
        for ridge in wanted:
            sums = np.zeros((data.bound + 1, len(data.x)))
            for fit in path.at(ridge):
                sums[:, splits.out[fit.fold]] += fit.truncation.errors
            errors = splits.by_group(sums[1:], groups, data.weights)
            path.errors[ridge] = np.vstack([level, errors])
        wanted = _next(path, plan)
    return path


def of_folds(
    data: Data, splits: Splits, folds: Iterable[int], plan: Budget, ridges: Sequence[float], *, whole: bool
) -> list[Call]:
    """Return the calls that train networks on some folds at some ridges, and judge them there.

    With ``whole``, all ridges of a fold are one ensemble.
    """
    folds = list(folds)
    shown, which = ", ".join(f"{ridge:.2g}" for ridge in ridges), ", ".join(str(fold + 1) for fold in folds)
    plan.tell(f"depth {plan.depth}, fold {which} of {len(splits)}, ridges {shown}")
    calls: list[Call] = []
    for fold in folds:
        known, held_out = apart(data, splits.known[fold], splits.out[fold])
        members = [(ridge, plan.seed + fold) for ridge in ridges]
        calls += calls_for(known, members, plan, held_out, fold, whole=whole)
    return calls


def calls_for(
    data: Data,
    members: list[tuple[float, int]],
    plan: Budget,
    held_out: Data | None = None,
    fold: int | None = None,
    *,
    whole: bool = False,
) -> list[Call]:
    """Return the calls of :func:`train_members` that train some members: one by one, or as one ensemble.

    An ensemble takes a fifth less time than its members one by one, which have the same bits. They are trained one by
    one if processes share them, or if they are kept, so that any number of processes finds them.
    """
    whole = whole or (plan.processes == 1 and folder_of_trainings() is None)
    pieces = [members] if whole else [[member] for member in members]
    return [partial(train_members, data, piece, plan.alone, held_out, fold) for piece in pieces]


def fits_of(calls: Sequence[Call], plan: Budget) -> list[Fit]:
    """Return the networks that calls of :func:`train_members` return, in their order."""
    return [fit for fits in results_of(calls, plan.processes) for fit in fits]


def train_members(
    data: Data,
    members: Sequence[tuple[float, int]],
    plan: Budget,
    held_out: Data | None = None,
    fold: int | None = None,
) -> list[Fit]:
    """Return the fits of one ensemble, a member for each pair of ridge and seed, with all their truncations."""
    task = data.task()
    run = train(
        MLP([data.x.shape[1], *[plan.width] * (plan.depth - 1), data.outputs]),
        task,
        ridge=[ridge for ridge, _ in members],
        seed=[seed for _, seed in members],
        steps=Stop(plan.steps, gradient_norm=1e-3),
        record=Record(every=max(min(plan.steps, 100), 1), top_k=1),
        progress=False,
        optimizer=plan.optimizer,
    )
    others = None if held_out is None else (torch.from_numpy(held_out.x), held_out.y)
    fits = []
    for i, (ridge, seed) in enumerate(members):
        network = finished(run, i)
        if data.classes:
            center_logits(network)
        rank = bottlenecks.detect(weight_singular_values(network)).rank
        truncation = truncate(network, task.x, data.bound, others, data.classes, data.weights)
        fits.append(Fit(ridge, plan.depth, seed, fold, network, float(run.summary.loss[i]), rank, truncation))
    return fits


def finished(run: Run, member: int = 0) -> Any:
    """Return a trained network; raise KeyboardInterrupt if the training was interrupted."""
    if "interrupted" in run.summary.status.values:
        raise KeyboardInterrupt
    return run.network(member)


def center_logits(net: MLP) -> None:
    """Subtract from the logits their mean, in place; probabilities are unchanged, principal directions are not."""
    with torch.no_grad():
        for parameter in (net.weights[-1], net.biases[-1]):
            parameter.sub_(parameter.mean(0))


def _next(path: Path, plan: Budget) -> list[float]:
    """Return the next ridge beyond the end of the path, if the best ridge is there (a list of at most one)."""
    if not plan.grow:
        return []
    largest, smallest, best = max(path.tried), min(path.tried), path.best
    if best == largest and largest * STEP <= LARGEST:
        return [largest * STEP]
    if best == smallest and smallest / STEP >= SMALLEST:
        before = path.errors.get(min((r for r in path.tried if r > best), default=best))
        if before is None or is_better(path.errors[best][-1], before[0 if best == largest else -1], sure=1.0):
            return [smallest / STEP]
    return []
