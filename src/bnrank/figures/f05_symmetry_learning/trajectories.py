"""Crossings of trajectories in two dimensions of a hidden layer, and in those of controls."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.figures.f05_symmetry_learning.computation import BEFORE, PLANE, TRUE, Settings, in_plane
from bnrank.figures.f05_symmetry_learning.orbits import Array, activations
from bnrank.figures.harness.training import held_out, relative_error
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
    shown = ((paths - low) / (high - low)).numpy()
    reach = np.array([crossing(a, b) for a, b in itertools.combinations(shown, 2)])
    return (reach[:, None] > np.array(ATOLS)).mean(0)


def crossing(a: Array, b: Array) -> float:
    """Return the distance up to which two polylines, (points, 2) each, cross; 0 where they do not.

    Where they intersect, each changes sides of the other. Each has to get farther than this from the other on both
    sides: curves that touch, end on each other, or run along each other within it do not cross.
    """
    sides_of_a, sides_of_b = np.sign(_sides(a, b)), np.sign(_sides(b, a))  # (segments of a, points of b), and reverse
    crossed_a = sides_of_a[:, :-1] * sides_of_a[:, 1:] < 0
    crossed_b = (sides_of_b[:, :-1] * sides_of_b[:, 1:] < 0).T
    of_a, of_b = np.nonzero(crossed_a & crossed_b)
    return min(_farthest(a, b, of_a), _farthest(b, a, of_b)) if len(of_a) else 0.0


def _sides(a: Array, b: Array) -> Array:
    """Return twice the signed areas (segments of a, points of b) of the triangles of a segment and a point."""
    along, to = np.diff(a, axis=0)[:, None], b - a[:-1, None]
    return np.asarray(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0])


def _farthest(a: Array, b: Array, segments: np.ndarray) -> float:
    """Return the distance from b of the farthest point of a on each side, the smaller, for a's intersected segments."""
    along, to = np.diff(b, axis=0), a[:, None] - b[:-1]
    length = np.square(along).sum(1)
    share = (to * along).sum(2) / np.where(length > 0, length, 1.0)
    distances = np.linalg.norm(to - np.clip(share, 0, 1)[..., None] * along, axis=2).min(1)
    side = np.searchsorted(np.sort(segments), np.arange(len(a))) % 2
    return min(distances[side == i].max(initial=0.0) for i in (0, 1))


def rows(crossed: tuple[Crossed, ...]) -> list[dict[str, object]]:
    """Return one table row per seed and state."""
    names = [f"{100 * atol:g} percent" for atol in ATOLS]
    return [
        {"seed": one.seed, "state": state, **dict(zip(names, values, strict=True)), "test error": one.test_error}
        for one in crossed
        for state, values in one.shares.items()
    ]
