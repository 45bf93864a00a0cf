"""All regions of a network in a box."""

from typing import Any

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank.measures.regions.domains import pairs, sweep_lines, sweep_plane
from bnrank.measures.regions.pieces import Swept, read, sweep
from bnrank.measures.regions.region import Regions
from bnrank.measures.regions.shapes import Ball, Cells, Polytope

FAST, MOST = 8, 12  # inputs up to which vertices are faster than linear programmes, and fit in memory


def enumerate(
    net: nn.Module, box: object, *, rtol: float = 1e-6, max_regions: int = 100_000, method: str = "auto"
) -> Regions:
    """Return all regions of a small network in a box.

    Exact: layer by layer, every region is cut along the hyperplanes where a neuron changes sign. If ``complete``, the
    largest rank of a Jacobian among them is Rank_J over the box (T18).

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
    method : {"auto", "vertices", "linear programmes"}
        Test whether a hyperplane crosses a region. "vertices": there are vertices on both sides; thousands of regions
        a second for few inputs, but regions have of the order of 2^d_in vertices. "linear programmes": a ball fits in
        on both sides; about a hundred regions a second, for any d_in. "auto": vertices up to 8 inputs.

    Returns
    -------
    Regions
        One for each activation pattern, with half-spaces and vertices.

    Raises
    ------
    TypeError
        If the network is no such chain; the message gives the reason.
    ValueError
        If an argument is out of range, or the network is not finite in the box.

    Notes
    -----
    A part stays with its neighbor if, in units of half the sides of the box, it reaches less than 1e-9 beyond the kink
    (vertices), no ball of radius 1e-9 fits in (linear programmes), or it reaches less than 1e-12 beyond (intervals and
    polygons, "auto" for up to 2 inputs). A preactivation is 0 as in :func:`along_line` and :func:`in_plane`.

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
    method = validation.choice(method, "method", ["auto", "vertices", "linear programmes"])
    if method == "vertices" and d > MOST:
        raise ValueError(
            f"method: got 'vertices' for d_in = {d}, expected 'linear programmes' for more than {MOST} inputs"
        )
    center, half = bounds.mean(1), np.diff(bounds)[:, 0] / 2
    swept: Swept[Any]
    if method == "auto" and d == 1:
        swept = sweep_lines(layers, bounds[:, :1], bounds[:, 1:], max_regions)
    elif method == "auto" and d == 2:
        swept, _ = sweep_plane(layers, np.zeros(2), np.eye(2), bounds, max_regions)
    else:
        by_vertices = method == "vertices" or (method == "auto" and d <= FAST)
        start = np.vstack([center, np.diag(half), half])
        swept = sweep(layers, start[None], Cells([Polytope.cube(d) if by_vertices else Ball.cube(d)]), max_regions)
    points = center + half * swept.shapes.centers()
    return Regions.of("box", layers, swept, swept.shapes.scaled(center, half), points, rtol, max_regions)
