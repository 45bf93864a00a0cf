"""Variance of a representation along the orbits of a symmetry (F5, T17)."""

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.validation import Data
from bnrank.networks.functional import example
from bnrank.networks.reading import capture, read

__all__ = ["collapse", "collapse_by_layer", "rotations"]


def rotations(v: Data, axis: Data, count: int = 32, seed: int = 0) -> Tensor:
    """Return random points on the orbits of vectors under the rotations that fix an axis.

    With w the unit vector along the axis, the orbit of v consists of (w^T v) w + ||(I - w w^T) v|| q for all unit
    vectors q orthogonal to w. Drawing q uniformly is equivalent to applying a uniformly distributed rotation to v. In
    two dimensions q takes two values: the orbit then includes reflections.

    Parameters
    ----------
    v : Tensor or ndarray
        (m, d), d >= 2.
    axis : Tensor or ndarray
        (d,), not 0; its length does not matter.
    count : int
        Number of points per orbit.
    seed : int
        Random seed.

    Returns
    -------
    Tensor
        (m, count, d), in the dtype of v.

    Raises
    ------
    TypeError, ValueError
        If the shapes do not match, an entry is not finite or the axis is 0.

    Examples
    --------
    >>> import torch
    >>> v = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    >>> points = rotations(v, torch.tensor([1.0, 0.0, 0.0]), count=5)
    >>> points[0, :, 0].tolist(), points.norm(dim=2).round(decimals=9).tolist()
    ([3.0, 3.0, 3.0, 3.0, 3.0], [[5.0, 5.0, 5.0, 5.0, 5.0]])
    """
    v = validation.samples(v, "v")
    count, seed = validation.integer(count, "count"), validation.seed(seed)
    validation.expect(v.shape[1] >= 2, "v", f"shape {tuple(v.shape)}", "(m, d) with d of at least 2")
    w = validation.real(axis, "axis", "a tensor or array of real numbers").to(v.device, torch.float64)
    validation.expect(w.shape == v.shape[1:] and bool(w.any()), "axis", axis, f"({v.shape[1]},), not 0")
    w = w / w.abs().max()  # prevents overflow and underflow of the norm
    w = w / torch.linalg.vector_norm(w)
    z = v.double()
    along = (z @ w)[:, None] * w
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((len(v), count, len(w)), generator=generator, dtype=torch.float64).to(v.device)
    q = q - (q @ w)[..., None] * w
    q = q / q.norm(dim=2, keepdim=True)
    points: Tensor = along[:, None] + (z - along).norm(dim=1)[:, None, None] * q
    return points.to(v.dtype)


def collapse(values: Data) -> float:
    """Return the variance within orbits as a fraction of the total variance of a representation.

        sum_ij ||h_ij - mean_j h_ij||^2 / sum_ij ||h_ij - mean_ij h_ij||^2

    Here h_ij is the representation at point j of orbit i. The fraction is dimensionless and lies in [0, 1]: 0 if h is
    constant on every orbit, 1 if all orbits have the same mean, NaN if h is constant. With n independent points per
    orbit the expected numerator is (n - 1) / n times its value on whole orbits.

    The total variance includes all differences between orbits. A linear projection onto the axis of a rotation
    therefore gives 0, although it does not depend on the distance from the axis, and a representation that varies
    strongly along the axis gives a small fraction regardless of its behavior across the axis. To compare only orbits in
    planes orthogonal to the axis, pass such planes as strata: both sums then run over all strata, and the second one
    uses the mean of each stratum.

    Parameters
    ----------
    values : Tensor or ndarray
        (orbits, points, features) or (strata, orbits, points, features), two orbits and two points at least.

    Raises
    ------
    TypeError, ValueError
        If the shape is different, the dtype is not floating point or an entry is not finite.

    Examples
    --------
    >>> import torch
    >>> collapse(torch.tensor([[[1.0], [1.0]], [[3.0], [3.0]]]))
    0.0
    >>> collapse(torch.tensor([[[0.0], [2.0]], [[2.0], [4.0]]]))
    0.5
    >>> collapse(torch.tensor([[[[0.0], [2.0]], [[2.0], [4.0]]], [[[8.0], [8.0]], [[8.0], [8.0]]]]))
    0.5
    """
    h = _points(values, "values").double()
    means = h.mean(2)
    return _share(float((h - means[:, :, None]).square().sum()), means, h.shape[2])


def collapse_by_layer(net: nn.Module, points: Data, chunk_size: int = 4096) -> np.ndarray:
    """Return the fraction of variance within orbits (:func:`collapse`) for the inputs and every layer of a network.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers; it is not modified.
    points : Tensor or ndarray
        Points on orbits, (orbits, points, d), such as those of :func:`rotations`, or several strata of them as in
        :func:`collapse`.
    chunk_size : int
        Samples per forward pass, rounded down to whole orbits; limits the memory.

    Returns
    -------
    ndarray
        (L + 1,): inputs, activations a_1, ..., a_{L-1} and outputs.

    Raises
    ------
    TypeError, ValueError
        As :func:`collapse`, or if the module fails on the points or has no linear or convolutional layer.

    Examples
    --------
    >>> import torch, bnrank
    >>> points = rotations(torch.randn(20, 3), torch.tensor([1.0, 0.0, 0.0]))
    >>> collapse_by_layer(bnrank.MLP([3, 8, 2]), points).shape
    (3,)
    """
    h = _points(points, "points")
    strata, orbits, count = h.shape[:3]
    flat = example(net, h.flatten(0, 2))
    reading = read(net, flat)
    within = np.zeros(len(reading.layers) + 1)
    means: list[list[Tensor]] = [[] for _ in within]
    whole = count * max(1, validation.integer(chunk_size, "chunk_size") // count)
    for given, part in zip(flat.split(whole), capture(net, flat, reading, whole), strict=True):
        for i, layer in enumerate((given, *part.activations)):
            orbit = layer.flatten(1).double().cpu().unflatten(0, (-1, count))
            mean = orbit.mean(1)
            within[i] += float((orbit - mean[:, None]).square().sum())
            means[i].append(mean)
    rows = (torch.cat(parts).unflatten(0, (strata, orbits)) for parts in means)
    return np.array([_share(total, mean, count) for total, mean in zip(within, rows, strict=True)])


def _share(within: float, means: Tensor, count: int) -> float:
    """Return ``within`` over the total sum, given the orbits' means (strata, orbits, features) of ``count`` points."""
    between = float((means - means.mean(1, keepdim=True)).square().sum())
    total = within + count * between
    floor = (10 * torch.finfo(torch.float64).eps) ** 2 * (count * float(means.square().sum()) + within)
    return within / total if total > floor else float("nan")


def _points(value: object, name: str) -> Tensor:
    """Return points as (strata, orbits, points, features), with one stratum by default."""
    h = validation.samples(value, name, ndim=None)
    h = h[None] if h.ndim == 3 else h
    expected = "(orbits, points, features) or (strata, orbits, points, features), two orbits and two points at least"
    validation.expect(h.ndim == 4 and min(h.shape[1:3]) >= 2, name, value, expected)
    return h
