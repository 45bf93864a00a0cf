"""Exact linear regions of a network along lines, in planes and in boxes."""

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank._core.validation import Data
from bnrank.measures.regions.pieces import Layers, Swept, read, sweep
from bnrank.measures.regions.region import Regions
from bnrank.measures.regions.shapes import SQUARE, Array, Cells, Intervals

MOST_INPUTS = 12  # of a box, whose regions have on the order of 2^d_in vertices
SAME = 1e-9  # affine maps that differ by less, relative to their size, count as equal


def along_line(
    net: nn.Module, start: Data, end: Data, *, merge: bool = True, rtol: float = 1e-6, max_regions: int = 1_000_000
) -> Regions:
    """Return the pieces of a segment on which a network is affine, in order.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers, as in :func:`along_lines`.
    start, end : Tensor or ndarray
        The ends, (d_in,).
    merge, rtol, max_regions
        As in :func:`along_lines`.

    Returns
    -------
    Regions
        The pieces, with intervals of t in x = start + t (end - start).

    Raises
    ------
    TypeError, ValueError
        As :func:`along_lines`.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> absolute = from_layers([torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, 1.0]])])
    >>> pieces = along_line(absolute, torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> [(piece.interval, piece.matrix.item()) for piece in pieces]
    [((0.0, 0.25), -1.0), ((0.25, 1.0), 1.0)]
    """
    layers = read(net)
    first, second = vector(start, "start", layers.d_in), vector(end, "end", layers.d_in)
    return _along(layers, first[None], second[None], merge, rtol, max_regions)


def along_lines(
    net: nn.Module, starts: Data, ends: Data, *, merge: bool = True, rtol: float = 1e-6, max_regions: int = 1_000_000
) -> Regions:
    """Return the pieces of many segments on which a network is affine, segment by segment, each in order.

    Exact at any depth: layer by layer, every piece is cut where a neuron changes sign. ``points`` of the result are the
    midpoints of the pieces, one sample of every region that the segments pass through. A piece on which a neuron is 0
    lies inside a kink; it is assigned the Jacobian of an adjacent region, so that its rank is attained by f.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    starts, ends : Tensor or ndarray
        The ends of the segments, (segments, d_in).
    merge : bool
        Whether neighboring pieces with the same affine map are merged into one linear piece of f; if not, there is one
        piece per activation pattern. The two differ where neurons have no effect downstream.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    max_regions : int
        Maximum number of pieces, before merging.

    Returns
    -------
    Regions
        The pieces, with intervals of t in x = start + t (end - start).

    Raises
    ------
    TypeError
        If the network is no such chain; the message gives the reason.
    ValueError
        If an argument is out of range, a segment has no length, or the network is not finite on it.

    Notes
    -----
    Breakpoints closer than 5e-13 of the segment are merged. A preactivation w.a + b is 0 if it is below 1e-12 (||w||
    ||a|| + |b|), where a may be the previous activations or their change along the segment. Affine maps are equal if
    their coefficients differ by less than 1e-9 of their size.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 20, 20, 2], seed=0)
    >>> pieces = along_lines(net, -torch.eye(3), torch.eye(3))
    >>> pieces.rank, bool((pieces.sizes.sum() - 3).abs() < 1e-12), sorted(set(pieces.lines.tolist()))
    (2, True, [0, 1, 2])
    """
    layers = read(net)
    firsts, seconds = (
        validation.samples(value, name, features=layers.d_in).detach().cpu().double().numpy()
        for value, name in ((starts, "starts"), (ends, "ends"))
    )
    same = len(firsts) == len(seconds)
    validation.expect(same, "ends", f"{len(seconds)} points", f"as many as starts, {len(firsts)}")
    return _along(layers, firsts, seconds, merge, rtol, max_regions)


def _along(layers: Layers, starts: Array, ends: Array, merge: bool, rtol: float, max_regions: int) -> Regions:
    rtol, max_regions = validation.rtol(rtol), validation.integer(max_regions, "max_regions")
    empty = np.flatnonzero((starts == ends).all(1))
    if len(empty):
        where = "" if len(starts) == 1 else f" in segment {empty[0]}"
        raise ValueError(f"end: got the start itself{where}, expected another point")
    half = (ends - starts) / 2
    whole = Intervals(np.tile([-1.0, 1.0], (len(starts), 1)), np.arange(len(starts)))
    shapes, patterns, maps, complete = sweep(layers, starts + half, half[:, None], whole, max_regions, _fingerprints)
    intervals, lines = (shapes.ends + 1) / 2, shapes.lines
    points = starts[lines] + (ends - starts)[lines] * intervals.mean(1, keepdims=True)
    if validation.flag(merge, "merge"):
        size = np.maximum(maps[1:, 3:], maps[:-1, 3:])
        differ = (np.abs(np.diff(maps[:, :3], axis=0)) > SAME * size).any(1)
        new = np.append(True, (np.diff(lines) > 0) | differ)
        first = np.flatnonzero(new)
        longest = np.lexsort((-np.diff(intervals)[:, 0], np.cumsum(new)))[first]
        intervals = np.stack([intervals[first, 0], intervals[np.append(first[1:], len(lines)) - 1, 1]], 1)
        points, lines, patterns = points[longest], lines[longest], patterns[longest]
    swept = Swept(Intervals(intervals, lines), patterns, maps, complete)
    return Regions.of("lines", layers, swept, points, np.array([[-1.0, 1.0]]), rtol, max_regions)


def _fingerprints(z: Array, size: Array) -> Array:
    """Return three random projections and the norm of each affine map, (maps, 4)."""
    flat = z.reshape(len(z), -1)
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], 3))
    return np.concatenate([flat @ draw, np.linalg.norm(flat, axis=1, keepdims=True)], 1)


def in_plane(
    net: nn.Module,
    origin: Data,
    u: Data,
    v: Data,
    bounds: object = (-1.0, 1.0),
    *,
    rtol: float = 1e-6,
    max_regions: int = 1_000_000,
) -> Regions:
    """Return the polygons of a plane, origin + a u + b v, on which a network is affine.

    Exact at any depth: layer by layer, every polygon is cut along the lines where a neuron changes sign. A neuron that
    is 0 on a whole polygon is treated as in :func:`along_lines`.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    origin, u, v : Tensor or ndarray
        (d_in,); u and v linearly independent, of any length.
    bounds : array_like
        ((a_low, a_high), (b_low, b_high)), or one pair for both.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    max_regions : int
        Maximum number of regions. Which ones are returned is arbitrary where there are more.

    Returns
    -------
    Regions
        One for each activation pattern, with polygons in (a, b); their areas add up to that of the rectangle.

    Raises
    ------
    TypeError
        If the network is no such chain; the message gives the reason.
    ValueError
        If an argument is out of range, u and v are parallel, or the network is not finite there.

    Notes
    -----
    A preactivation w.a + b is 0 if it is below 1e-12 (||w|| ||a|| + |b|), where a may be any of the previous
    activations and their changes along u and v across the rectangle. A part that extends less than 5e-13 of the
    rectangle beyond a kink is therefore not separated from its neighbor.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(2, 3), torch.eye(2)])  # x_1, x_2 through a ReLU
    >>> regions = in_plane(net, torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1])
    >>> len(regions), regions.rank, regions.rank_counts, regions.sizes.sum().item()
    (4, 2, {0: 1, 1: 2, 2: 1}, 4.0)
    """
    layers = read(net)
    start, axes, rectangle = plane(origin, u, v, bounds, layers.d_in)
    rtol, max_regions = validation.rtol(rtol), validation.integer(max_regions, "max_regions")
    swept = sweep(layers, start[None], axes[None], SQUARE, max_regions)
    points = start + swept.shapes.centers() @ axes
    return Regions.of("plane", layers, swept, points, rectangle, rtol, max_regions)


def enumerate(net: nn.Module, box: object, *, rtol: float = 1e-6, max_regions: int = 100_000) -> Regions:
    """Return all regions of a small network in a box.

    Exact: layer by layer, every region is cut along the hyperplanes where a neuron changes sign. If ``complete``, the
    largest rank of the Jacobian over the regions is Rank_J over the box (T18).

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    box : array_like
        Rows (low, high), (d_in, 2), as bounds are in ``scipy.optimize``, or one such pair for all inputs.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    max_regions : int
        Maximum number of regions.

    Returns
    -------
    Regions
        One for each activation pattern, with vertices.

    Raises
    ------
    TypeError
        If the network is no such chain; the message gives the reason.
    ValueError
        If an argument is out of range, the network is not finite in the box, or it has more than 12 inputs: regions
        have on the order of 2^d_in vertices. :func:`along_lines` samples regions of larger networks.

    Notes
    -----
    A part is not separated from its neighbor if, in units of half the sides of the box, it extends less than 1e-9
    beyond the kink, with up to 2 inputs 1e-12. A preactivation is 0 as in :func:`along_line` and :func:`in_plane`.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3), torch.eye(3)])  # x -> relu(x): one region for each orthant
    >>> regions = enumerate(net, (-1, 1))
    >>> len(regions), regions.complete, regions.rank, regions.rank_counts
    (8, True, 3, {0: 1, 1: 3, 2: 3, 3: 1})
    """
    layers = read(net)
    d = layers.d_in
    bounds = pairs(box, "box", d)
    rtol, max_regions = validation.rtol(rtol), validation.integer(max_regions, "max_regions")
    validation.expect(d <= MOST_INPUTS, "net", f"{d} inputs", f"at most {MOST_INPUTS}; sample regions by along_lines")
    center, half = bounds.mean(1), np.diff(bounds)[:, 0] / 2
    whole = Cells.cube(d) if d > 2 else SQUARE if d == 2 else Intervals(np.array([[-1.0, 1.0]]), np.zeros(1, int))
    swept = sweep(layers, center[None], np.diag(half)[None], whole, max_regions)
    points = center + half * swept.shapes.centers()
    return Regions.of("box", layers, swept, points, bounds, rtol, max_regions)


# Arguments -------------------------------------------------------------------------------------------------------


def vector(value: object, name: str, size: int) -> Array:
    """Return a finite vector (size,) in float64."""
    array = validation.real(value, name, f"numbers, ({size},)").double().cpu().numpy()
    validation.expect(array.shape == (size,), name, f"shape {array.shape}", f"({size},)")
    return array


def pairs(value: object, name: str, number: int) -> Array:
    """Return (number, 2) rows (low, high) with low < high, from such rows or from one pair for all."""
    expected = f"rows (low, high), ({number}, 2), or one pair (low, high)"
    array = validation.real(value, name, f"numbers, {expected}").double().cpu().numpy()
    validation.expect(array.shape in ((2,), (number, 2)), name, f"shape {array.shape}", expected)
    array = np.broadcast_to(array, (number, 2))
    validation.expect((array[:, 0] < array[:, 1]).all(), name, f"{array.tolist()}", "low < high in every row")
    return array


def plane(origin: object, u: object, v: object, bounds: object, size: int) -> tuple[Array, Array, Array]:
    """Return the center (size,) of a rectangle of a plane, half its sides as axes (2, size), and its bounds (2, 2)."""
    start, *axes = (vector(value, name, size) for value, name in ((origin, "origin"), (u, "u"), (v, "v")))
    rectangle = pairs(bounds, "bounds", 2)
    lengths = [float(np.linalg.norm(axis)) for axis in axes]
    if 0 in lengths or np.linalg.svd(np.stack(axes) / np.reshape(lengths, (2, 1)), compute_uv=False)[-1] < 1e-12:
        raise ValueError(f"u, v: got {axes[0].tolist()} and {axes[1].tolist()}, expected linearly independent vectors")
    return start + rectangle.mean(1) @ axes, np.diff(rectangle) / 2 * axes, rectangle
