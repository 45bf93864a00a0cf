"""The state dimension: the local dimension of the set of bottleneck coordinates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bnrank.discovery.dimension import local_dimension
from bnrank.discovery.estimators.bottleneck import coordinates_of
from bnrank.discovery.estimators.counts import Count
from bnrank.discovery.estimators.learning import Evidence
from bnrank.discovery.estimators.tables import Data
from bnrank.networks.mlp import MLP

MAX_ROWS = 4000


@dataclass(frozen=True)
class StateDimension:
    """The dimension of the set of states z = g(x), with its uncertainty.

    Attributes
    ----------
    number : int
        The local dimension of the coordinates of the fitted network.
    interval : tuple of int
        Smallest and largest value over the intervals of this network and of the others within one standard error of
        the best; from 0 where undetermined.
    undetermined : bool
        Whether the rows, or the number of coordinates, do not settle it.
    reason : str
        The evidence, or why it is undetermined.
    """

    number: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str


def state_dimension(encoder: MLP | None, data: Data, count: Count, evidence: Evidence) -> StateDimension:
    """Return the local dimension of the coordinates z = g(x) on the rows.

    It is at most the number of coordinates, and smaller where the states fill a curved set: a closed curve needs two
    continuous coordinates and has dimension 1.

    Parameters
    ----------
    encoder : MLP or None
        g, in the scale of training; None without components.
    data : Data
        The rows, of which at most 4,000 are used. Their weights scale coordinates only: the set of states does not
        depend on how often they occur. Neighbors are taken from other groups, or blocks of dependent rows,
        one from each.
    count : Count
        The number of coordinates.
    evidence : Evidence
        With the other networks.
    """
    if encoder is None:
        low, high = 0, count.interval[1]
        return StateDimension(0, (low, high), count.undetermined, "no component was found")
    step = max(1, -(-len(data.x) // MAX_ROWS))
    some, units = torch.from_numpy(data.x[::step]), None if data.units is None else data.units[::step]
    with torch.no_grad():
        found = local_dimension(encoder(some.double()), groups=units)
    weights = None if data.weights is None else data.weights[::step]
    rivals = [local_dimension(z, groups=units) for z in _coordinates_of_rivals(evidence, some, weights)]
    low = min(result.interval[0] for result in (found, *rivals))
    high = max(result.interval[1] for result in (found, *rivals))
    if found.undetermined:
        return StateDimension(found.dimension, (0, high), True, found.reason)
    if count.undetermined:
        reason = "undetermined, as the number of components is"
        return StateDimension(found.dimension, (min(low, count.interval[0]), high), True, reason)
    agree = sum(result.dimension == found.dimension for result in rivals)
    reason = found.reason.replace("extend", "of z = g(x) extend")
    if rivals:
        reason += f"; {agree} of {len(rivals)} networks trained on all rows agree"
    if 2 * agree < len(rivals):
        return StateDimension(found.dimension, (0, high), True, f"undetermined: {reason}")
    return StateDimension(found.dimension, (low, high), False, reason)


def _coordinates_of_rivals(evidence: Evidence, x: torch.Tensor, weights: np.ndarray | None) -> Sequence[torch.Tensor]:
    """Return the coordinates of the networks trained on all rows that are considered, each cut to the count."""
    path, k = evidence.path, evidence.number
    if evidence.kind != "network" or path is None:
        return []
    trials = zip(path.fits, path.trials(), strict=True)
    considered = [fit for fit, trial in trials if fit.fold is None and trial.considered]
    networks = [fit.further[k].network if k in fit.further else fit.network for fit in considered]
    layers = [fit.truncation.layers[k] for fit in considered]
    both = zip(networks, layers, strict=True)
    made = [coordinates_of(net, x.double(), layer, k, weights) for net, layer in both]
    with torch.no_grad():
        return [split.encoder(x.double()) for split in made]
