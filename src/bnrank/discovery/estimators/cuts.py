"""Networks cut to k dimensions and trained on at that k, before they are judged."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from bnrank.discovery.estimators.bottleneck import coordinates_of, project
from bnrank.discovery.estimators.budget import Budget
from bnrank.discovery.estimators.counts import by_group, sample_losses, standard_error
from bnrank.discovery.estimators.jobs import results_of
from bnrank.discovery.estimators.keeping import train
from bnrank.discovery.estimators.path import ENOUGH, FAR, Fit, Further, Path, finished
from bnrank.discovery.estimators.progress import current
from bnrank.discovery.estimators.tables import Data, apart
from bnrank.networks.mlp import MLP, from_layers
from bnrank.training import Record


def descend(path: Path, plan: Budget) -> None:
    """Lower the supported number of dimensions as far as networks trained on at fewer dimensions predict as well.

    A cut leaves the rest of the network as it is, and may be poor where a solution of fewer dimensions exists. On every
    fold, the network of the best ridge is cut to the supported number of dimensions k, and to k - 1, and both are
    trained on alike; this is repeated while the number falls. It ends as soon as the folds done predict worse at k - 1
    than at k by more than what is negligible and ``FAR`` standard errors of the difference.
    """
    while (fits := path.at(path.best)) and (k := path.supported) > 1 and k - 1 not in path.retrained:
        plan.tell(f"further training at {k} and {k - 1} dimensions")
        errors = {number: np.zeros(len(path.data.x)) for number in (k, k - 1)}
        seen = np.zeros(len(path.data.x), dtype=int)
        for fit in sorted(fits, key=lambda fit: fit.fold or 0):
            assert fit.fold is not None
            out = path.splits.out[fit.fold]
            known, held_out = apart(path.data, path.splits.known[fit.fold], out)
            retrain([fit], known, held_out, (k, k - 1), plan)
            for number, sums in errors.items():
                sums[out] += fit.further[number].losses
            seen += out
            more = (errors[k - 1] - errors[k])[seen > 0] / seen[seen > 0]
            weights = None if path.data.weights is None else path.data.weights[seen > 0]
            more = by_group(more, np.unique(path.groups[seen > 0], return_inverse=True)[1].reshape(-1), weights)
            if path.independent(seen > 0) >= ENOUGH and more.mean() > path.negligible + FAR * standard_error(more):
                return
        for number, sums in errors.items():
            path.retrained[number] = path.splits.by_group(sums, path.groups, path.data.weights)


def judge(fits: list[Fit], path: Path, data: Data, k: int, plan: Budget) -> None:
    """Train networks of all rows on at k and k + 1 dimensions, if those of the folds were judged so and k was kept."""
    if k in path.retrained and k + 1 in path.retrained:
        retrain(fits, data, data, (k, k + 1), plan)


def retrain(fits: list[Fit], known: Data, judged: Data, numbers: Sequence[int], plan: Budget) -> None:
    """Train networks on at some numbers of dimensions; the results are kept in ``fit.further``."""
    missing = [(fit, k) for fit in fits for k in numbers if k not in fit.further]
    current().expect(_steps(plan) * (plan.depth + 1) * len(missing))
    calls = [partial(further, replace(fit, further={}), known, judged, k, plan.alone) for fit, k in missing]
    for (fit, k), made in zip(missing, results_of(calls, plan.processes), strict=True):
        fit.further[k] = made


def further(fit: Fit, known: Data, judged: Data, k: int, plan: Budget) -> Further:
    """Return a network cut to k dimensions and trained on at these."""
    cut = project(fit.network, torch.from_numpy(known.x), fit.truncation.layers[k], k, known.weights)
    made = polish(cut, known, fit.truncation.layers[k], k, fit.ridge, _steps(plan))
    return Further(made, losses_of(made, judged))


def _steps(plan: Budget) -> int:
    return max(plan.steps // 2, 1)


def losses_of(net: MLP, data: Data) -> np.ndarray:
    """Return the loss of every row, (N,)."""
    with torch.no_grad():
        out = net(torch.from_numpy(data.x).to(net.weights[0].dtype)).double()
    return sample_losses(out.numpy(), data.y, data.classes)


def polish(net: MLP, data: Data, layer: int, k: int, ridge: float, steps: int) -> MLP:
    """Return h o g trained further through exactly k dimensions, from a truncated network.

    W_l = up down is a product of two factors of inner dimension k that are trained with all other parameters, so that
    the dimension stays k.

    Returns
    -------
    MLP
        A network of the same widths, float64, whose layer ``layer`` has rank k.
    """
    task = data.task()
    split = coordinates_of(net, task.x, layer, k, data.weights)
    both = nn.Sequential(split.encoder.float(), split.decoder.float())
    record = Record(every=steps, top_k=1)
    run = train(both, task, ridge=ridge, steps=steps, optimizer="lbfgs", record=record, progress=False)
    g, h = finished(run).double()
    with torch.no_grad():
        joined = h.weights[0] @ g.weights[-1]
        bias = h.weights[0] @ g.biases[-1] + h.biases[0]
    return from_layers([*g.weights[:-1], joined, *h.weights[1:]], [*g.biases[:-1], bias, *h.biases[1:]], net.slope)
