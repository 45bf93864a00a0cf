"""Constancy of a representation on the orbits of a symmetry (F5, T17)."""

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import example
from bnrank.networks.reading import capture, read

__all__ = ["collapse", "collapse_by_layer", "rotations"]


def rotations(v: Tensor | np.ndarray, axis: Tensor | np.ndarray, count: int = 32, seed: int = 0) -> Tensor:
    """Return random points from the orbits of vectors under the rotations that fix an axis.

    With w the unit vector along the axis, the orbit of v is (w^T v) w + ||(I - w w^T) v|| q for all unit vectors q
    orthogonal to w; q is drawn uniformly, which is what a uniformly drawn rotation does to v. In two dimensions q is
    one of two vectors: rotations and reflections.

    Parameters
    ----------
    v : Tensor or ndarray
        (m, d), d >= 2.
    axis : Tensor or ndarray
        (d,), of any length but 0.
    count : int
        Points per orbit.
    seed : int
        Random seed.

    Returns
    -------
    Tensor
        (m, count, d), in the dtype of v.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, entries are not finite or the axis is 0.

    Examples
    --------
    >>> import torch
    >>> v = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    >>> points = rotations(v, torch.tensor([1.0, 0.0, 0.0]), count=5)
    >>> points[0, :, 0].tolist(), points.norm(dim=2).round(decimals=9).tolist()
    ([3.0, 3.0, 3.0, 3.0, 3.0], [[5.0, 5.0, 5.0, 5.0, 5.0]])
    """
    v = validation.samples(v, "v")
    count, seed = validation.integer(count, "count"), validation.integer(seed, "seed", 0)
    validation.expect(v.shape[1] >= 2, "v", f"shape {tuple(v.shape)}", "(m, d) with d of at least 2")
    w = _direction(axis, v.shape[1]).to(v.device)
    z = v.double()
    along = (z @ w)[:, None] * w
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((len(v), count, len(w)), generator=generator, dtype=torch.float64).to(v.device)
    q = q - (q @ w)[..., None] * w
    q = q / q.norm(dim=2, keepdim=True)
    points: Tensor = along[:, None] + (z - along).norm(dim=1)[:, None, None] * q
    return points.to(v.dtype)


def collapse(values: Tensor | np.ndarray) -> float:
    """Return the variance within orbits over the total variance of a representation.

        sum_ij ||h_ij - mean_j h_ij||^2 / sum_ij ||h_ij - mean_ij h_ij||^2

    for h_ij the representation at point j of orbit i. It lies in [0, 1] and has no units: 0 if h is constant on every
    orbit, 1 if all orbits have the same mean. Of n points per orbit drawn independently, the expectation of the
    numerator is a share (n - 1) / n of what whole orbits have. NaN where h is constant altogether.

    The total counts what varies between orbits for any reason. A linear projection onto the axis of a rotation has
    the value 0 although it knows nothing of the distance to the axis, and a representation that varies much along
    the axis has a small value whatever it does across it. To measure only the orbits in planes orthogonal to the
    axis, give such planes as strata: both sums then run over all strata, and the second uses the mean of each stratum.

    Parameters
    ----------
    values : Tensor or ndarray
        (orbits, points, features) or (strata, orbits, points, features), two orbits and two points at least.

    Raises
    ------
    TypeError, ValueError
        If it has another shape, is not of floating point or not finite.

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


def collapse_by_layer(net: nn.Module, points: Tensor | np.ndarray, chunk_size: int = 4096) -> np.ndarray:
    """Return :func:`collapse` of the inputs and of the activations a_l of every layer of a network.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers; it is left unchanged.
    points : Tensor or ndarray
        Points on orbits, (orbits, points, d), as :func:`rotations` draws them, or strata of such, as in
        :func:`collapse`.
    chunk_size : int
        Samples per forward pass, rounded to whole orbits; bounds the memory.

    Returns
    -------
    ndarray
        (L + 1,): the inputs, then a_1, ..., a_{L-1} and the outputs.

    Raises
    ------
    TypeError, ValueError
        As :func:`collapse`; if the module cannot be run on the points or has no layer to read.

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
    whole = count * max(1, validation.integer(chunk_size, "chunk_size") // count)  # whole orbits
    for given, part in zip(flat.split(whole), capture(net, flat, reading, whole), strict=True):
        for i, layer in enumerate((given, *part.activations)):
            orbit = layer.flatten(1).double().cpu().unflatten(0, (-1, count))
            mean = orbit.mean(1)
            within[i] += float((orbit - mean[:, None]).square().sum())
            means[i].append(mean)
    rows = (torch.cat(parts).unflatten(0, (strata, orbits)) for parts in means)
    return np.array([_share(total, mean, count) for total, mean in zip(within, rows, strict=True)])


def _direction(axis: object, d: int) -> Tensor:
    """Return the unit vector along an axis."""
    direction = validation.real(axis, "axis", "a tensor or array of real numbers").double()
    validation.expect(tuple(direction.shape) == (d,) and bool(direction.any()), "axis", axis, f"({d},), not 0")
    direction = direction / direction.abs().max()  # whose norm neither overflows nor is 0
    unit: Tensor = direction / torch.linalg.vector_norm(direction)
    return unit


def _share(within: float, means: Tensor, count: int) -> float:
    """Return the share of a sum within orbits, given the means (strata, orbits, features) of ``count`` points each."""
    between = float((means - means.mean(1, keepdim=True)).square().sum())
    total = within + count * between
    floor = (10 * torch.finfo(torch.float64).eps) ** 2 * (count * float(means.square().sum()) + within)
    return within / total if total > floor else float("nan")


def _points(value: object, name: str) -> Tensor:
    """Return (strata, orbits, points, features); one stratum where none are given."""
    h = validation.samples(value, name, ndim=None)
    h = h[None] if h.ndim == 3 else h
    if h.ndim != 4 or h.shape[1] < 2 or h.shape[2] < 2:
        raise ValueError(
            f"{name}: got {validation.describe(value)}, expected (orbits, points, features) or (strata, orbits, "
            "points, features), two orbits and two points at least"
        )
    return h
