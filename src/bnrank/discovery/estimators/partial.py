"""The result of a fit that was interrupted after its cross-validation had a result."""

from dataclasses import replace

import numpy as np
import torch

from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.bottleneck import project, truncate
from bnrank.discovery.estimators.counts import Count
from bnrank.discovery.estimators.learning import Evidence, Model
from bnrank.discovery.estimators.tables import Data
from bnrank.networks.mlp import from_layers

WHY = "partial result, since the fit was interrupted"


def learned(data: Data, found: Evidence) -> Model:
    """Return the fitted function; where the user interrupts its training, one of the networks of the folds.

    ``found.path.partial`` says which.
    """
    if found.kind != "network" or found.path is None:
        return learning.learn(data, found)
    if not found.path.partial:
        try:
            return learning.learn(data, found)
        except KeyboardInterrupt:
            found.path.partial = True
    return of_folds(data, found)


def of_folds(data: Data, found: Evidence) -> Model:
    """Return the network that predicts its held-out rows best through the number of components found, cut to it.

    It is not trained any further, and has not seen the rows that it predicts.
    """
    k, path = found.number, found.path
    assert path is not None
    ridge, rows = path.ridge_for(k), path.data
    trained_on = k in path.retrained and path.retrained[k].mean() < path.errors[ridge][k].mean()
    losses = {
        i: float(path.mean(fit.further[k].losses if trained_on else fit.truncation.errors[k], fit.fold))
        for i, fit in enumerate(path.at(ridge))
    }
    best = path.at(ridge)[min(losses, key=lambda i: losses[i])]
    net = best.further[k].network if trained_on else best.network
    biases = [bias.detach().clone() for bias in net.biases]
    if not data.classes and best.fold is not None:  # training subtracts the mean of its rows
        known = rows.rows(path.splits.known[best.fold])
        biases[-1] += torch.from_numpy(np.average(known.y, axis=0, weights=known.weights)).to(biases[-1].dtype)
    whole = from_layers([w.detach() for w in net.weights], biases, net.slope)
    inputs = torch.from_numpy(rows.x)
    layer = truncate(whole, inputs, k, None, data.classes, rows.weights).layers[k]
    return Model(project(whole, inputs, layer, k, rows.weights), layer, ridge, whole)


def doubted(count: Count) -> Count:
    """Return the count of a fit that was interrupted: undetermined, since networks that it rests on are missing."""
    reason = f"undetermined: {WHY}; {count.reason.removeprefix('undetermined: ')}"
    return replace(count, undetermined=True, reason=reason)
