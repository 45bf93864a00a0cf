"""The steps of ``fit``, from a table to a network of k dimensions, on data in the scale of training."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from bnrank._core import validation
from bnrank.discovery.estimators import counts
from bnrank.discovery.estimators.bottleneck import project, truncate
from bnrank.discovery.estimators.budget import DEEPER, Budget
from bnrank.discovery.estimators.counts import Count, Trial
from bnrank.discovery.estimators.cuts import descend, judge, losses_of, polish
from bnrank.discovery.estimators.dependence import CHANCE, misaligned, near
from bnrank.discovery.estimators.keeping import train
from bnrank.discovery.estimators.linear_maps import LinearFit, best_linear, linear_map
from bnrank.discovery.estimators.path import (
    MAX_ROWS,
    Fit,
    Path,
    calls_for,
    explore,
    finished,
    fits_of,
    folds_of,
    of_folds,
)
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data
from bnrank.discovery.estimators.weights import drawn, effective, uneven
from bnrank.networks.mlp import MLP
from bnrank.training import Record
from bnrank.training.ensemble import Workers

MIN_ROWS = 10  # with fewer distinct rows, counts are undetermined
REPEATED = 0.1  # fraction of rows with repeated inputs above which the count is verified by input
LAST_STEPS = 60  # evaluations on all rows, for a table of more than MAX_ROWS
LOST = 1e-3  # fraction of the outputs' variance that a cut may cost without further training
NAN = float("nan")


@dataclass(frozen=True)
class Evidence:
    """The result of a cross-validation: the kind of function and the number of dimensions.

    Attributes
    ----------
    kind : str
        "network", "linear" or "constant": the simplest kind that no other beats on held-out rows.
    number : int
        The count.
    linear : LinearFit
        The best linear map.
    path : Path or None
        All networks of the selected depth; None where the table is linear up to round-off, or has too few rows for
        networks.
    rival : Path or None
        All networks of the other depth.
    rows : ndarray
        The rows used.
    plan : Budget
        Sizes and steps of the path.
    """

    kind: str
    number: int
    linear: LinearFit
    path: Path | None
    rival: Path | None
    rows: np.ndarray
    plan: Budget

    @property
    def errors(self) -> np.ndarray:
        """Held-out loss of every row at k = 0, 1, ... dimensions, (K + 1, N)."""
        return self.path.by_number if self.kind == "network" and self.path is not None else self.linear.errors

    def trials(self) -> tuple[Trial, ...]:
        """Return one trial per network; those of the other depth are marked as not considered."""
        others = self.rival.trials() if self.rival else ()
        return (self.path.trials() if self.path else ()) + tuple(replace(t, considered=False) for t in others)


@dataclass(frozen=True)
class Model:
    """The fitted function.

    Attributes
    ----------
    network : MLP
        In the scale of training, float64; of inner dimension k at ``layer``.
    layer : int
        The layer with the bottleneck.
    ridge : float
        lambda of its training.
    whole : MLP
        The network before truncation.
    """

    network: MLP
    layer: int
    ridge: float
    whole: MLP


def investigate(data: Data, plan: Budget, wanted: int | None = None, *, by_input: bool = False) -> Evidence:
    """Return the kind of function in a table and its number of dimensions, by cross-validation.

    A linear map is kept unless the held-out loss of a network is smaller by one standard error of the difference, and
    the mean unless one of them is better by two; otherwise nothing was found. If ``wanted`` is given, the linear map
    and the networks are compared at that number of dimensions. Networks of ``plan.depth`` are kept unless the loss of
    shallow ones (``plan.shallow``), which count less reliably, is smaller by two of their standard errors: then the
    deep ones stopped at a saddle, or are too close to linear. With ``by_input``, all rows with the same inputs,
    including replicates, are held out together.
    """
    rows, some = sample_of(data, plan.seed)
    together = data.inputs if by_input else data.groups if data.units is None else data.units
    groups = np.unique(together[rows], return_inverse=True)[1].reshape(-1)
    plan = replace(plan, folds=min(plan.folds, int(groups.max()) + 1))
    if by_input or (splits := some.splits) is None:
        folds = folds_of(groups, plan.folds, plan.seed, some.y if data.classes else None)
        splits = Splits.of(folds, _gap(folds, -(-data.gap * len(rows) // len(data.x))))
    used = f"no split with held-out rows and 2 training rows among the {len(rows)} used (of {len(data.x)})"
    validation.expect(len(splits), "cv", used, "at least one")
    plan.tell("linear maps")
    linear = best_linear(some.x, some.y, splits, data.full, data.classes, groups, some.weights)
    k = linear.rank if wanted is None else wanted
    if k == wanted == 0:
        return Evidence("constant", 0, linear, None, None, rows, plan)
    if linear.is_exact(k) or not plan.ridges:
        found = k and (wanted is not None or counts.is_better(linear.errors[k], linear.errors[0]))
        return Evidence("linear" if found else "constant", k if found else 0, linear, None, None, rows, plan)
    enough = splits.known.sum(axis=1).min() >= 2
    validation.expect(enough, "X", f"{len(rows)} rows", "more: at least 2 for training when a fold is held out")
    other_plan = replace(plan, depth=plan.shallow, shallow=0)
    plans = [plan, other_plan] if plan.shallow else [plan]
    calls = [c for p in plans for c in of_folds(some, splits, [0], p, p.ridges, whole=p is other_plan)]
    first, number = fits_of(calls, plan), len(plan.ridges)
    path, rival = explore(some, splits, groups, linear.errors[0], plan, first=first[:number]), None
    assert path is not None
    if plan.shallow and not path.partial:
        try:
            rival = explore(some, splits, groups, linear.errors[0], other_plan, path, first[number:])
        except KeyboardInterrupt:
            path.partial = True
    if rival is not None:
        path.partial = rival.partial
        deep, shallow = (p.by_number[p.supported if wanted is None else wanted] for p in (path, rival))
        if counts.is_worse(deep, shallow, counts.SURE):
            path, rival, plan = rival, path, other_plan
    if wanted is None and not path.partial:
        try:
            descend(path, plan)
        except KeyboardInterrupt:
            path.partial = True
    kind, errors, bent = "linear", linear.errors[k], path.supported if wanted is None else wanted
    if counts.is_better(path.by_number[bent], errors, sure=1.0):
        kind, k, errors = "network", bent, path.by_number[bent]
    if k == 0 or (wanted is None and not counts.is_better(errors, linear.errors[0])):
        kind, k = "constant", 0
    return Evidence(kind, k, linear, path, rival, rows, plan)


def _gap(folds: np.ndarray, wanted: int) -> int:
    """Return the wanted gap, or a smaller one with which a third of the rows is left for training."""
    while (
        wanted
        and min(len(folds) - int(near(folds == fold, wanted).sum()) for fold in np.unique(folds)) < len(folds) / 3
    ):
        wanted //= 2
    return wanted


def rows_of(data: Data, seed: int) -> np.ndarray:
    """Return the indices of the rows used, ascending: all rows, or one row from each of 4,000 groups of copies.

    Examples
    --------
    >>> x = np.repeat(np.arange(3.0), [5000, 1, 1])[:, None]
    >>> rows_of(Data(x, x), 0).tolist()
    [0, 5000, 5001]
    """
    if len(data.x) <= MAX_ROWS:
        return np.arange(len(data.x))
    first = np.sort(np.unique(data.groups, return_index=True)[1])
    return np.sort(np.random.default_rng(seed).permutation(first)[:MAX_ROWS])


def sample_of(data: Data, seed: int) -> tuple[np.ndarray, Data]:
    """Return the indices of the rows used, ascending, and these rows.

    Where rows are weighted, 4,000 groups of copies are drawn in proportion to their weights, the sums of those of their
    rows; a group that is drawn several times has so much weight, and the others the same.
    """
    if data.weights is None or len(data.x) <= MAX_ROWS:
        rows = rows_of(data, seed)
        return rows, data.rows(rows)
    first = np.unique(data.groups, return_index=True)[1]
    order = np.random.default_rng(seed).permutation(len(first))
    times = np.zeros(len(data.x))
    times[first[order]] = drawn(np.bincount(data.groups, data.weights)[order], MAX_ROWS)
    rows = np.flatnonzero(times)
    return rows, replace(data.rows(rows), weights=uneven(times[rows]))


def learn(data: Data, found: Evidence) -> Model:
    """Return the network with the detected number of dimensions, trained on all rows."""
    k, plan, path, all_used = found.number, found.plan, found.path, len(found.rows) == len(data.x)
    if found.kind != "network" or path is None:
        ridge = found.linear.ridge
        straight = found.linear.map if all_used else linear_map(data.x, data.y, ridge, data.classes, data.weights)
        return Model(straight.network(k), 1, ridge, straight.network(data.full))
    ridge, some = path.ridge_for(k), path.data
    fits = _final_fits(some, path, ridge, plan)
    judge(fits, path, some, k, plan)
    path.fits += fits
    candidates = [fit for fit in fits if fit.ridge == ridge and fit.depth == plan.depth]
    chosen = min(candidates, key=lambda fit: _loss_at(fit, path, k))
    whole = chosen.network
    if path.mean(losses_of(whole, some)) > path.errors[ridge][-1].mean() + counts.standard_error(
        path.errors[ridge][-1]
    ):
        plan.tell("these stopped at a saddle: continuing from a network of the folds")
        best = min(path.at(ridge), key=lambda fit: float(path.mean(fit.truncation.errors[-1], fit.fold)))
        whole = _on_all_rows(best.network, some, ridge)
    if not all_used:
        plan.tell(f"all {len(data.x):,} rows")
        whole = _on_all_rows(whole, data, ridge)
    if whole is chosen.network and k in chosen.further:
        return Model(chosen.further[k].network, chosen.truncation.layers[k], ridge, whole)
    inputs = torch.from_numpy(some.x)
    truncation = truncate(whole, inputs, k, None, data.classes, some.weights)
    layer = truncation.layers[k]
    network = project(whole, inputs, layer, k, some.weights)
    if truncation.change[k] > LOST * truncation.change[0]:
        plan.tell(f"further training at {k} dimensions")
        with Workers(1):  # as all trainings but those on more than MAX_ROWS, whose bits do not depend on threads
            network = polish(network, some, layer, k, ridge, plan.steps)
    return Model(network, layer, ridge, whole)


def _loss_at(fit: Fit, path: Path, k: int) -> float:
    """Return the training loss of a network, and how much it changes at k dimensions."""
    return float(path.mean(fit.further[k].losses)) if k in fit.further else fit.loss + float(fit.truncation.change[k])


def _final_fits(data: Data, path: Path, ridge: float, plan: Budget) -> list[Fit]:
    """Return networks trained on all rows: at the selected ridge and its two nearest rivals, and deeper ones."""
    ridges = sorted({ridge, *sorted(path.running, key=lambda other: abs(np.log(other / ridge)))[:2]}, reverse=True)
    first = plan.seed + 1000
    plan.tell(f"all rows, ridges {', '.join(f'{r:.2g}' for r in ridges)}, {plan.n_networks} network(s) each")
    calls = calls_for(data, [(r, first + i) for r in ridges for i in range(plan.n_networks)], plan)
    if plan.grow:  # these take longest, and start first
        deeper = replace(plan, depth=plan.depth + DEEPER)
        plan.tell(f"and depth {deeper.depth}")
        calls = calls_for(data, [(ridge * plan.depth / deeper.depth, first)], deeper) + calls
    fits = fits_of(calls, plan)
    return fits[1:] + fits[:1] if plan.grow else fits


def _on_all_rows(net: MLP, data: Data, ridge: float) -> MLP:
    """Return a network fitted to a subset of the rows, trained further on all rows with full gradients (in blocks).

    Close to a minimum a few full-gradient steps suffice: on 100,000 rows 60 of them reached R^2 0.664, and ten epochs
    of Adam on mini-batches of 256, which take longer, 0.662.
    """
    record = Record(every=LAST_STEPS, top_k=1)
    run = train(net, data.task(), ridge=ridge, optimizer="kfac-lbfgs", steps=LAST_STEPS, record=record, progress=False)
    return finished(run)


def few_rows(count: Count, data: Data) -> Count:
    """Return the count, marked undetermined below ten distinct rows or groups, where many functions fit.

    Rows and groups with different weights count as their effective number.
    """
    if data.distinct < MIN_ROWS:
        return _doubted(count, (0, data.bound), f"only {data.distinct} rows differ, expected at least {MIN_ROWS}")
    if data.units is not None and (number := len(np.unique(data.units))) < MIN_ROWS:
        return _doubted(count, (0, data.bound), f"only {number} groups, expected at least {MIN_ROWS}")
    equal = effective(data.weights, data.groups if data.units is None else data.units)
    if equal < MIN_ROWS:
        what = "rows" if data.units is None else "groups"
        why = f"with these weights the {what} count as only {equal:.1f}, expected at least {MIN_ROWS}"
        return _doubted(count, (0, data.bound), why)
    return count


def by_order(count: Count, data: Data) -> Count:
    """Return the count, marked undetermined if rows depend on their neighbors and misaligned tables do as well.

    See :func:`~bnrank.discovery.estimators.dependence.misaligned`.
    """
    if not count.number or data.units is None or not data.gap:
        return count
    share = misaligned(data.x, data.numbers, data.units, 2 * data.gap)
    if share <= CHANCE:
        return count
    why = f"consecutive rows depend on each other, and outputs of other rows are predicted as well (in {share:.0%} of"
    return _doubted(count, (0, count.interval[1]), f"{why} trials): the count may be due to the order of rows alone")


def _doubted(count: Count, interval: tuple[int, int], why: str) -> Count:
    reason = f"undetermined: {why}; {count.reason.removeprefix('undetermined: ')}"
    return replace(count, interval=interval, undetermined=True, reason=reason)


def between_inputs(count: Count, data: Data, plan: Budget) -> Count:
    """Return the count, marked undetermined if replicates support it but rows at unseen inputs do not.

    Where inputs are repeated with different outputs, ``count`` is based on held-out rows whose inputs also occur in the
    training set. A function that memorizes the training rows predicts them, regardless of its values at other inputs. A
    second cross-validation therefore holds out all rows of an input together. It is skipped where fewer than ten inputs
    are distinct (categories), where fewer than a tenth of the rows share their inputs, and where groups, blocks or
    given splits are held out.

    Parameters
    ----------
    count : Count
        The count from a cross-validation that may split rows with equal inputs.
    data, plan
        As in :func:`investigate`.
    """
    number = count.number
    there = np.bincount(data.inputs[np.unique(data.groups, return_index=True)[1]])  # distinct rows of each input
    chosen = data.units is not None or data.splits is not None
    if not number or chosen or len(there) < MIN_ROWS or there[there > 1].sum() < REPEATED * there.sum():
        return count
    plan.tell("all rows of an input held out together")
    found = investigate(data, plan, by_input=True)
    if found.path is not None and found.path.partial:
        raise KeyboardInterrupt  # fewer networks would support fewer dimensions
    other = found.number
    errors = [found.linear.errors] + ([found.path.by_number] if found.path else [])
    shown = any(counts.is_better(e[number], found.errors[other], sure=1.0) for e in errors if number < len(e))
    if other >= number or shown:
        return count
    why = f"{number} held at the inputs of the design, not shown between them (with all rows of an input "
    return _doubted(count, (min(other, count.interval[0]), count.interval[1]), f"{why}held out: {other})")


def count_from(found: Evidence, bound: int) -> Count:
    """Return the count supported by a cross-validation and by single networks, with the reason in words."""
    number, path, linear = found.number, found.path, found.linear
    if found.kind == "network" and path is not None:
        return counts.count_of(number, found.trials(), bound, counts.resampled(found.errors, path.rtol))
    low, high = counts.resampled(linear.errors, 0.0, paired=True)
    if found.kind == "constant":
        tried = "function" if path else "linear model"
        reason = f"nothing was found: on held-out rows no {tried} predicts better than the mean"
        if not linear.errors[0].any():
            used = f" on the {MAX_ROWS:,} rows used" if len(found.rows) == MAX_ROWS else ""
            reason = f"nothing was found: y is constant{used}"
        high = max(high, counts.resampled(path.by_number, path.rtol)[1]) if path else high
        return Count(0, (0, high), NAN, False, reason)
    interval = (min(number, low), max(number, high))
    if path is not None and not linear.is_exact(number):
        other = path.supported
        if other != number and not counts.is_worse(path.by_number[other], linear.errors[number]):
            interval = (min(other, interval[0]), max(other, interval[1]))
            reason = f"a linear model with {number} component(s) and a network with {other} predict equally well"
            return Count(number, interval, NAN, True, f"undetermined: {reason}")
    if path is not None:
        reason = "the relation is linear: no network predicts held-out rows better than weighted sums of the inputs do"
    elif linear.is_exact(number):
        reason = "the relation is linear: weighted sums of the inputs explain everything"
        reason += " (nonlinear maps with fewer components were not tried)"
    else:
        reason = "only linear models were tried: none with more components predicts better"
    return Count(number, interval, NAN, False, reason)
