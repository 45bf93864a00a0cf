"""From a table to a network of k dimensions: the steps of ``fit``, on data in the scale of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from bnrank.discovery.estimators.budget import ROWS, Budget, folds_of
from bnrank.discovery.estimators.counting import (
    SURE,
    Count,
    Trial,
    count_of,
    is_better,
    resampled,
    standard_error,
)
from bnrank.discovery.estimators.cutting import project, truncate
from bnrank.discovery.estimators.linear import LinearFit, best_linear, linear_map
from bnrank.discovery.estimators.path import Data, Fit, Path, explore, finished, train_members
from bnrank.discovery.estimators.polishing import polish
from bnrank.networks.mlp import MLP
from bnrank.training import Record, train

__all__ = ["Evidence", "Model", "between_inputs", "count_from", "few_rows", "investigate", "learn"]

LEAST = 10  # rows that differ, below which no count is sure
REPEATED = 0.1  # share of the rows that share their inputs, from which these may carry a count
DEEPER = 4  # layers more in the networks that show whether the count depends on depth
LAST_STEPS = 60  # evaluations on all rows, for a table of more than ROWS
LOST = 1e-3  # share of the outputs' variance that a cut may cost before the network is trained on at its size


@dataclass(frozen=True)
class Evidence:
    """What a cross-validation says: which kind of function, and how many dimensions.

    Attributes
    ----------
    kind : str
        "network", "linear" or "constant": the simplest kind that none beats on held-out rows.
    number : int
        The count.
    linear : LinearFit
        The best linear map.
    path : Path or None
        Everything trained at the depth kept; None where the table is linear to rounding, or has so few rows that
        nothing is trained.
    rival : Path or None
        Everything trained at the other depth.
    rows : ndarray
        The rows that all this was done on.
    plan : Budget
        Sizes and steps of the path, or of what would have been one.
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
        """Return one row per network; those of the other depth are not in the running."""
        others = self.rival.trials() if self.rival else ()
        return (self.path.trials() if self.path else ()) + tuple(replace(t, considered=False) for t in others)


@dataclass(frozen=True)
class Model:
    """What was learned.

    Attributes
    ----------
    kind : str
        As in :class:`Evidence`.
    network : MLP
        In the scale of training, float64; of inner dimension k at ``layer``.
    layer : int
        The layer with the bottleneck.
    k : int
        Number of components; 0 for a constant.
    ridge : float
        It was trained with.
    count : Count
        The number with its uncertainty.
    trials : tuple of Trial
        Every network trained.
    whole : MLP
        The network before it was cut.
    """

    kind: str
    network: MLP
    layer: int
    k: int
    ridge: float
    count: Count
    trials: tuple[Trial, ...]
    whole: MLP


def investigate(
    data: Data,
    plan: Budget,
    seed: int,
    tell: Callable[[str], None],
    wanted: int | None = None,
    *,
    by_input: bool = False,
) -> Evidence:
    """Find out by cross-validation what kind of function the table holds, and of how many dimensions.

    A linear map is kept unless a network has less held-out loss by one standard error of the difference, and the mean
    unless one of them has less by two: nothing was found then. With ``wanted`` dimensions given, the two are compared
    at these. Networks of ``plan.depth`` are kept unless shallow ones (``plan.shallow``), which count less well, have
    less loss by two standard errors of their own: then the deep ones stopped at a saddle, or bend too little.
    With ``by_input`` all rows of the same inputs are held out together, replicates too.
    """
    rows = rows_of(data, seed)
    some = data.rows(rows)
    groups = np.unique((data.inputs if by_input else data.groups)[rows], return_inverse=True)[1].reshape(-1)
    plan = replace(plan, folds=min(plan.folds, int(groups.max()) + 1))
    folds = folds_of(groups, plan.folds, seed, some.y if data.classes else None)
    tell("linear maps")
    linear = best_linear(some.x, some.y, folds, data.full, data.classes, groups)
    k = linear.rank if wanted is None else wanted
    if k == wanted == 0:
        return Evidence("constant", 0, linear, None, None, rows, plan)
    if linear.is_exact(k) or not plan.ridges:
        found = k and (wanted is not None or is_better(linear.errors[k], linear.errors[0]))
        return Evidence("linear" if found else "constant", k if found else 0, linear, None, None, rows, plan)
    path, rival = explore(some, folds, groups, linear.errors[0], plan, seed, tell), None
    if plan.shallow:
        tell(f"depth {plan.shallow}")
        other_plan = replace(plan, depth=plan.shallow, shallow=0)
        rival = explore(some, folds, groups, linear.errors[0], other_plan, seed, tell)
        deep, shallow = (p.by_number[p.supported if wanted is None else wanted] for p in (path, rival))
        if _is_worse(deep, shallow, SURE):
            path, rival, plan = rival, path, other_plan
    kind, errors, bent = "linear", linear.errors[k], path.supported if wanted is None else wanted
    if is_better(path.by_number[bent], errors, sure=1.0):
        kind, k, errors = "network", bent, path.by_number[bent]
    if k == 0 or (wanted is None and not is_better(errors, linear.errors[0])):
        kind, k = "constant", 0
    return Evidence(kind, k, linear, path, rival, rows, plan)


def rows_of(data: Data, seed: int) -> np.ndarray:
    """Return the numbers of the rows that are looked at, ascending: all, or one each of 4,000 groups of copies.

    Examples
    --------
    >>> x = np.repeat(np.arange(3.0), [5000, 1, 1])[:, None]
    >>> rows_of(Data(x, x), 0).tolist()
    [0, 5000, 5001]
    """
    if len(data.x) <= ROWS:
        return np.arange(len(data.x))
    first = np.sort(np.unique(data.groups, return_index=True)[1])
    return np.sort(np.random.default_rng(seed).permutation(first)[:ROWS])


def learn(data: Data, found: Evidence, seed: int, tell: Callable[[str], None]) -> Model:
    """Return the network of so many dimensions, trained on all rows, and the count with its uncertainty.

    Parameters
    ----------
    data : Data
        The table.
    found : Evidence
        Of :func:`investigate`.
    seed : int
        Of the first.
    tell : callable
        Is told what is being done.
    """
    kind, path, k, plan = found.kind, found.path, found.number, found.plan
    if kind != "network" or path is None:
        straight = found.linear.map
        if len(found.rows) < len(data.x):
            straight = linear_map(data.x, data.y, found.linear.ridge, data.classes)
        trials = found.trials()
        count = few_rows(count_from(found, trials, data.most), data)
        return Model(kind, straight.network(k), 1, k, found.linear.ridge, count, trials, straight.network(data.full))
    some = data.rows(found.rows)
    ridge = path.ridge_for(k)
    fits = _final_fits(some, path, ridge, plan, seed, tell)
    path.fits += fits
    candidates = [fit for fit in fits if fit.ridge == ridge and fit.depth == plan.depth]
    best = min(candidates, key=lambda fit: fit.loss + float(fit.truncation.change[k]))
    whole = best.network
    if mean_loss(whole, some) > path.errors[ridge][-1].mean() + standard_error(path.errors[ridge][-1]):
        tell("these stopped at a saddle: going on from a network of the folds")
        whole = _on_all_rows(_best_of_folds(path, ridge, plan.depth), some, ridge)
    if len(found.rows) < len(data.x):
        tell(f"all {len(data.x):,} rows")
        whole = _on_all_rows(whole, data, ridge)
    inputs = torch.from_numpy(some.x)
    truncation = truncate(whole, inputs, k, None, data.classes)
    layer = truncation.layers[k]
    network = project(whole, inputs, layer, k)
    if truncation.change[k] > LOST * truncation.change[0]:
        tell(f"training on at {k} dimensions")
        network = polish(network, some, layer, k, ridge, plan.steps)
    trials = found.trials()
    count = few_rows(count_from(found, trials, data.most), data)
    return Model(kind, network, layer, k, ridge, count, trials, whole)


def _final_fits(
    data: Data, path: Path, ridge: float, plan: Budget, seed: int, tell: Callable[[str], None]
) -> list[Fit]:
    """Train on all rows: at the ridge chosen and those next to it that are in the running, and deeper."""
    ridges = sorted({ridge, *sorted(path.running, key=lambda other: abs(np.log(other / ridge)))[:2]}, reverse=True)
    first = seed + 1000
    tell(f"all rows, ridges {', '.join(f'{r:.2g}' for r in ridges)}, {plan.seeds} seed(s)")
    members = [(r, first + i) for r in ridges for i in range(plan.seeds)]
    fits = train_members(data, [r for r, _ in members], [s for _, s in members], plan)
    if plan.grow:
        deeper = replace(plan, depth=plan.depth + DEEPER)
        tell(f"depth {deeper.depth}")
        fits += train_members(data, [ridge * plan.depth / deeper.depth], [first], deeper)
    return fits


def mean_loss(net: MLP, data: Data) -> float:
    """Return the mean loss of a network on rows."""
    with torch.no_grad():
        out = net(torch.from_numpy(data.x).to(net.weights[0].dtype)).double()
    if data.classes:
        return float(torch.nn.functional.cross_entropy(out, torch.from_numpy(data.y).long()))
    return float((out - torch.from_numpy(data.y)).square().sum(1).mean())


def _best_of_folds(path: Path, ridge: float, depth: int) -> MLP:
    """Return the network of this ridge and depth with the least loss on the fold that it has not seen."""
    fits = [fit for fit in path.fits if (fit.ridge, fit.depth) == (ridge, depth) and fit.fold is not None]
    return min(fits, key=lambda fit: float(fit.truncation.errors[-1].mean())).network


def _on_all_rows(net: MLP, data: Data, ridge: float) -> MLP:
    """Go on from a network of some rows with all of them, a block at a time: memory does not grow with the rows.

    The whole gradient, summed over blocks of 256 rows, in place of mini-batches: from so near a minimum a few
    evaluations are enough, and each goes down. On 100,000 rows 60 of them came to R^2 0.664, and ten epochs of Adam on
    mini-batches of 256, which take longer, to 0.662.
    """
    run = train(
        net,
        data.task(),
        ridge=ridge,
        steps=LAST_STEPS,
        optimizer="kfac-lbfgs",
        record=Record(every=LAST_STEPS, top_k=1),
        progress=False,
    )
    trained = finished(run)
    assert isinstance(trained, MLP)
    return trained


def few_rows(count: Count, data: Data) -> Count:
    """Leave a count undetermined where fewer than ten rows differ: a linear map fits so few, and the mean too."""
    if data.different >= LEAST:
        return count
    reason = f"undetermined: only {data.different} rows differ, expected at least {LEAST}; "
    reason += count.reason.removeprefix("undetermined: ")
    return replace(count, interval=(0, data.most), undetermined=True, reason=reason)


def between_inputs(
    count: Count, data: Data, plan: Budget, seed: int, tell: Callable[[str], None], number: int
) -> Count:
    """Leave a count undetermined that replicates support, but not rows of inputs that were not learned from.

    Where inputs are seen more than once with several outputs, ``count`` rests on rows that are held out while others of
    the same inputs are learned from. A function that has learned those by heart predicts them, whether or not it says
    anything about other inputs. So all rows of an input are held out together, a second time. Not so where fewer than
    ten inputs differ, as categories do: what holds at all of them is all there is to find; nor where fewer than a tenth
    of the rows share their inputs, which can carry little.

    Parameters
    ----------
    count : Count
        Of rows held out one by one.
    data, plan, seed, tell
        What :func:`investigate` was given.
    number : int
        What it found.
    """
    there = np.bincount(data.inputs[np.unique(data.groups, return_index=True)[1]])  # rows that differ, of each input
    if not number or len(there) < LEAST or there[there > 1].sum() < REPEATED * there.sum():
        return count
    tell("all rows of an input held out together")
    found = investigate(data, plan, seed, tell, by_input=True)
    other = found.number
    errors = [found.linear.errors] + ([found.path.by_number] if found.path else [])
    shown = any(is_better(e[number], found.errors[other], sure=1.0) for e in errors if number < len(e))
    if other >= number or shown:
        return count
    reason = f"undetermined: {number} held at the inputs of the design, not shown between them (with all rows of an "
    reason += f"input held out: {other}); {count.reason.removeprefix('undetermined: ')}"
    interval = (min(other, count.interval[0]), count.interval[1])
    return replace(count, interval=interval, undetermined=True, reason=reason)


def count_from(found: Evidence, trials: tuple[Trial, ...], most: int) -> Count:
    """Return the count that a cross-validation and single networks give, in words and numbers."""
    if found.kind == "constant":
        tried = "function" if found.path else "linear map"
        reason = f"nothing was found: on held-out rows no {tried} predicts better than the mean"
        high = resampled(found.linear.errors, 0.0, 0, paired=True)[1]
        if found.path:
            high = max(high, resampled(found.path.by_number, found.path.tolerance, 0)[1])
        return Count(0, (0, high), float("nan"), False, reason)
    if found.kind == "linear":
        reason = "the table is linear: no network predicts held-out rows better than a linear map of this rank"
        if found.path is None:
            exact = found.linear.is_exact(found.number)
            reason = "the table is linear: " if exact else "only linear maps were tried: "
            left = "leaves nothing to explain (a curved map through fewer numbers was not looked for)"
            reason += f"a map of this rank {left}" if exact else "none of higher rank predicts better"
        return _linear_count(found, reason)
    return count_of(found.number, trials, most, resampled(found.errors, found.path.tolerance if found.path else 0.0, 0))


def _linear_count(found: Evidence, reason: str) -> Count:
    """Let the networks have their say where they predict as well as the linear map, to within one standard error."""
    number, rows = found.number, found.linear.errors[found.number]
    numbers = [number, *resampled(found.linear.errors, 0.0, 0, paired=True)]
    if found.linear.is_exact(number) or found.path is None:
        return Count(number, (min(numbers), max(numbers)), float("nan"), False, reason)
    other = found.path.supported
    if other != number and not _is_worse(found.path.by_number[other], rows):
        interval = (min(other, *numbers), max(other, *numbers))
        reason = f"undetermined: a linear map of rank {number} and a network of {other} dimensions predict equally well"
        return Count(number, interval, float("nan"), True, reason)
    return Count(number, (min(numbers), max(numbers)), float("nan"), False, reason)


def _is_worse(errors: np.ndarray, than: np.ndarray, sure: float = 1.0) -> bool:
    """Return whether a held-out loss, (N,), is more than another by so many of the other's standard errors."""
    return bool(errors.mean() > than.mean() + sure * standard_error(than))
