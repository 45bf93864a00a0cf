"""The state dimension from images of films in bottlenecks, and when it is undetermined."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnrank.discovery.dimension import LocalDimension, local_dimension
from bnrank.discovery.films.frames import Windows
from bnrank.discovery.films.needed import standard_errors

Array = NDArray[np.float64]

NEIGHBORS = 10  # of a point, whose distance consecutive windows are compared with
CENTERS = 200  # points at which it is measured
MOST_UNEXPLAINED = 0.1  # share of the next frames' variance: a network that knows less may bend z needlessly
WIDEST = 1  # difference of the ends of an interval above which the dimension is undetermined
NOTHING = "no network predicts the next frames of held-out windows better than their mean"


@dataclass(frozen=True)
class Verdict:
    """The state dimension.

    Attributes
    ----------
    dimension : int
        The most common result of the networks.
    interval : tuple of int
        Of all networks, on all windows and on halves of the films, each with limits raised and lowered.
    undetermined : bool
        Whether the films do not settle the dimension.
    reason : str
        The evidence, or why it is undetermined.
    found : tuple of LocalDimension
        Of every network, on all windows.
    apart : int
        Windows of a film at least as far apart in time are taken for different points.
    """

    dimension: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str
    found: tuple[LocalDimension, ...]
    apart: int


def judge(images: list[Array], windows: Windows, unexplained: list[float], seed: int) -> Verdict:
    """Return the state dimension from the images z of all windows, (N, latent), one array for each network.

    Local dimensions are taken without whitening: a bottleneck gives to every direction the extent that prediction
    needs, and little to noise and curvature.
    """
    latent, best = images[0].shape[1], int(np.argmin(unexplained))
    apart = time_apart(images[best], windows, seed)
    groups = groups_of(windows, apart)
    found = tuple(_local(z, groups, seed) for z in images)
    half = np.isin(windows.unit, np.random.default_rng(seed).permutation(np.unique(windows.unit))[::2])
    halves = [_local(z[part], groups[part], seed) for z in images for part in (half, ~half) if part.any()]
    settled = [result for result in halves if not result.undetermined]
    silent = f"; halves of the films do not confirm it ({len(halves) - len(settled)} of {len(halves)} are undetermined)"
    ends = [end for result in (*found, *settled) for end in result.interval]
    counts = Counter(result.dimension for result in found)
    dimension = found[best].dimension
    if counts[dimension] < max(counts.values()):
        dimension = counts.most_common(1)[0][0]
    agree = counts[dimension]
    low, high = min(ends), max(ends)
    reason, undetermined = _doubt(found[best], agree, len(found), dimension, latent, unexplained[best]), True
    if not reason and high - low > WIDEST:
        reason = f"undetermined: networks, halves of the films, or higher and lower limits give {low} to {high}"
    elif not reason:
        undetermined = False
        sizes = ", ".join(map(str, found[best].neighbors))
        reason = (
            f"{agree} of {len(found)} networks: in the bottleneck, neighborhoods of {sizes} windows extend in "
            f"{dimension} direction(s); {unexplained[best]:.2%} of the next frames is unexplained on held-out windows"
        )
    if len(settled) < len(halves):
        reason += silent
    return Verdict(dimension, (low, high), undetermined, reason, found, apart)


def nothing(reason: str, latent: int) -> Verdict:
    """Return the verdict where there is nothing to measure."""
    return Verdict(0, (0, latent), True, f"undetermined: {reason}", (), 1)


def is_predicted(errors: Array, of_mean: Array, unit: NDArray[np.int64]) -> bool:
    """Return whether squared errors of windows are below those of the mean, beyond what chance explains over units.

    The limit is that of `standard_errors`.

    Examples
    --------
    >>> is_predicted(np.ones(6), np.full(6, 2.0), np.array([0, 0, 1, 1, 2, 2]))
    True
    """
    gain = np.bincount(unit, of_mean - errors)[np.unique(unit)]
    if len(gain) == 1:
        return bool(gain > 0)
    return bool(gain.mean() > standard_errors(len(gain)) * gain.std(ddof=1) / np.sqrt(len(gain)))


def time_apart(z: Array, windows: Windows, seed: int) -> int:
    """Return after how many frames a film has moved on by as much as the distance to the nearest windows of others.

    Windows closer in time follow each other on a line and say nothing of the other dimensions.
    """
    generator = np.random.default_rng(seed)
    centers = generator.permutation(len(z))[:CENTERS]
    span = int(np.bincount(windows.film).max())
    reach = []
    for center in centers:
        other = (windows.film != windows.film[center]) | (np.abs(windows.start - windows.start[center]) > span // 4)
        distance = np.square(z[other] - z[center]).sum(axis=1)
        if len(distance) > NEIGHBORS:
            reach.append(np.partition(distance, NEIGHBORS - 1)[NEIGHBORS - 1])
    limit = float(np.median(reach)) if reach else 0.0
    for apart in range(1, span):
        pairs = windows.film[apart:] == windows.film[:-apart]
        steps = np.square(z[apart:] - z[:-apart]).sum(axis=1)[pairs]
        if len(steps) and np.median(steps) >= limit:
            return apart
    return span


def groups_of(windows: Windows, apart: int) -> NDArray[np.int64]:
    """Return a number for each window, shared by the windows of a film in each span of so many frames."""
    blocks = np.stack([windows.film, windows.start // apart], axis=1)
    return np.unique(blocks, axis=0, return_inverse=True)[1].reshape(-1)


def _local(z: Array, groups: NDArray[np.int64], seed: int) -> LocalDimension:
    alone = len(np.unique(groups)) == len(groups)
    return local_dimension(z, whiten=False, groups=None if alone else groups, seed=seed)


def _doubt(found: LocalDimension, agree: int, networks: int, dimension: int, latent: int, unexplained: float) -> str:
    """Return why the dimension is undetermined; "" if it is not."""
    if found.undetermined:
        return found.reason
    if unexplained > MOST_UNEXPLAINED:
        return f"undetermined: {unexplained:.0%} of the next frames is unexplained on held-out windows"
    if dimension >= latent:
        return f"undetermined: all {latent} latent variables are used; fit with more (n_latent)"
    if 2 * agree <= networks:
        return f"undetermined: only {agree} of {networks} networks find {dimension}"
    return ""
