"""Networks cut to k dimensions and trained on at that k, before they are judged."""

import numpy as np
import torch
from torch import nn

from bnrank.discovery.estimators.bottleneck import coordinates_of, project
from bnrank.discovery.estimators.counts import by_group, sample_losses
from bnrank.discovery.estimators.keeping import train
from bnrank.discovery.estimators.path import FAR, Budget, Fit, Path, finished
from bnrank.discovery.estimators.tables import Data, apart
from bnrank.networks.mlp import MLP, from_layers
from bnrank.training import Record


def descend(path: Path, plan: Budget) -> None:
    """Lower the supported number of dimensions as far as networks trained on at fewer dimensions predict as well.

    A cut leaves the rest of the network as it is, and may be poor where a solution of fewer dimensions exists. On every
    fold, the network of the best ridge is cut to one dimension less than supported, and trained on; this is repeated
    while the number falls. A network that predicts its fold worse by more than ``FAR`` standard errors of a fold ends
    it.
    """
    while (fits := path.at(path.best)) and (k := path.supported - 1) > 0 and k not in path.retrained:
        plan.tell(f"further training at {k} dimensions")
        errors, limit = np.zeros(len(path.data.x)), FAR * path.negligible * len(path.splits) ** 0.5
        for fit in sorted(fits, key=lambda fit: fit.fold or 0):
            assert fit.fold is not None
            out = path.splits.out[fit.fold]
            known, held_out = apart(path.data, path.splits.known[fit.fold], out)
            losses = losses_of(retrained(fit, known, k, plan.steps // 2), held_out)
            more = losses.mean() - fit.truncation.errors[-1].mean()
            fit.retrained[k] = float(more)
            errors[out] += losses
            if more > limit:
                return
        path.retrained[k] = by_group(path.splits.mean(errors), path.splits.units(path.groups))


def judge(fits: list[Fit], path: Path, data: Data, k: int, plan: Budget) -> None:
    """Train networks of all rows on at k dimensions, if those of the folds were judged so."""
    if k not in path.retrained:
        return
    for fit in fits:
        after = losses_of(retrained(fit, data, k, plan.steps // 2), data)
        fit.retrained[k] = float(after.mean() - losses_of(fit.network, data).mean())


def retrained(fit: Fit, data: Data, k: int, steps: int) -> MLP:
    """Return a network cut to k dimensions and trained on at these."""
    layer = fit.truncation.layers[k]
    cut = project(fit.network, torch.from_numpy(data.x), layer, k)
    return polish(cut, data, layer, k, fit.ridge, steps)


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
    split = coordinates_of(net, task.x, layer, k)
    both = nn.Sequential(split.encoder.float(), split.decoder.float())
    record = Record(every=steps, top_k=1)
    run = train(both, task, ridge=ridge, steps=steps, optimizer="lbfgs", record=record, progress=False)
    g, h = finished(run).double()
    with torch.no_grad():
        joined = h.weights[0] @ g.weights[-1]
        bias = h.weights[0] @ g.biases[-1] + h.biases[0]
    return from_layers([*g.weights[:-1], joined, *h.weights[1:]], [*g.biases[:-1], bias, *h.biases[1:]], net.slope)
