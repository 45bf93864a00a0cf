"""Crossings of trajectories in two dimensions of a hidden layer, and in those of controls."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.figures.f05_symmetry_learning.computation import BEFORE, PLANE, TRUE, Array, Settings, activations, in_plane
from bnrank.figures.harness.training import held_out, relative_error
from bnrank.measures import crossings
from bnrank.networks import MLP
from bnrank.tasks import RankOneFactorization, Task

HIDDEN = "two principal directions of the hidden layer"
STEPS = "the same, polylines through the steps of gradient descent"
ATOLS = (0.0, 0.002, 0.005, 0.01, 0.02)
FINE, VISIBLE = 3, 4  # the distances of the claims
FINER = 20  # steps of the flow per step of gradient descent
EVERY = 8  # of these are points of a curve
PLANES = 5  # random planes of the input


@dataclass(frozen=True)
class Crossed:
    """Share of the pairs of trajectories that cross.

    Attributes
    ----------
    seed : int
        Of data and network.
    test_error : float
        Of the network, over the variance of the outputs.
    shares : mapping
        State -> share of pairs, for every one of ``ATOLS``.
    """

    seed: int
    test_error: float
    shares: Mapping[str, Array]


def measure(net: MLP, task: Task, descent: RankOneFactorization, settings: Settings, seed: int) -> Crossed:
    """Return the crossings of trajectories from test starts.

    The curves are those of gradient flow: polylines through the few steps of gradient descent may cross although the
    state determines the next one.
    """
    x, y = (part.double() for part in held_out(task))
    with torch.no_grad():
        error = relative_error(net.double()(x), y)
    steps, start = y.shape[1], x[: settings.curves]
    slow = RankOneFactorization(descent.w, descent.across, descent.error, descent.lr / FINER)
    flow = slow.trajectory(start, steps * FINER)[:, ::EVERY]
    fresh = MLP(net.widths, seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn((PLANES, x.shape[1], 2), generator=generator, dtype=torch.float64)
    found = {
        TRUE: shares(descent.statistics(flow)),
        HIDDEN: shares(in_plane(activations(net, flow, settings.hidden))),
        STEPS: shares(in_plane(activations(net, descent.trajectory(start, steps), settings.hidden))),
        BEFORE: shares(in_plane(activations(fresh, flow, settings.hidden))),
        PLANE: np.mean([shares(flow @ plane) for plane in directions], axis=0),
    }
    return Crossed(seed, error, found)


def shares(paths: Tensor) -> Array:
    """Return the share of the pairs of paths that cross, for every one of ``ATOLS``, of paths (m, points, 2).

    Distances are relative to the picture: both coordinates are scaled to the range of the paths. NaN where they do
    not vary.
    """
    spread = paths.flatten(0, 1)
    low, high = spread.min(0).values, spread.max(0).values
    if not bool((high > low).all()):
        return np.full(len(ATOLS), np.nan)
    shown, pairs = ((paths - low) / (high - low)).numpy(), np.triu_indices(len(paths), 1)
    return np.array([np.mean(crossings.count(shown, atol)[pairs] > 0) for atol in ATOLS])


def rows(crossed: tuple[Crossed, ...]) -> list[dict[str, object]]:
    """Return one table row per seed and state."""
    names = [f"{100 * atol:g} percent" for atol in ATOLS]
    return [
        {"seed": one.seed, "state": state, **dict(zip(names, values, strict=True)), "test error": one.test_error}
        for one in crossed
        for state, values in one.shares.items()
    ]
