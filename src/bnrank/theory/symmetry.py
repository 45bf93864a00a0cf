"""Symmetries, autoencoders and classifiers of low rank (T17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import regions
from bnrank.measures.backward import mlp_forward
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, example
from bnrank.networks.mlp import MLP, from_layers

__all__ = [
    "LineClasses",
    "Projections",
    "SymmetryBound",
    "classes_on_line",
    "narrowest_layer",
    "nearest_rank_one",
    "projection",
    "rank_bound",
]

EQUAL = 1e-9  # outputs that differ by less, relative to the largest, tie


@dataclass(frozen=True)
class SymmetryBound:
    """Ranks of the Jacobian against the dimension of the quotient by a symmetry, at samples.

    Attributes
    ----------
    ranks : Tensor
        rank Jf(x_i), (N,).
    bounds : Tensor
        d_in - dim of the orbit of x_i, (N,): the dimension of Omega / G there.
    orbit_dimensions : Tensor
        Rank of the vector fields at x_i, (N,).
    invariance : float
        max over samples and fields v of ||Jf(x) v(x)|| / (||Jf(x)||_op ||v(x)||); 0 for an exact symmetry.
    invariant : bool
        Whether that is at most ``tol``.
    generators : Tensor
        A basis of the fields after taking brackets, (m, d_in, d_in + 1), each [A b].
    rtol, tol : float
        As given.
    """

    ranks: Tensor
    bounds: Tensor
    orbit_dimensions: Tensor
    invariance: float
    invariant: bool
    generators: Tensor
    rtol: float
    tol: float


@dataclass(frozen=True)
class Projections:
    """How far the Jacobian of an autoencoder is from a projection, at samples.

    Attributes
    ----------
    defects : Tensor
        ||J^2 - J||_F / ||J||_F, J = Jf(x_i), (N,); 0 for a projection, orthogonal or not, and where J is 0.
    ranks : Tensor
        rank Jf(x_i), (N,).
    errors : Tensor
        ||f(x_i) - x_i||, (N,).
    rtol : float
        As given.
    """

    defects: Tensor
    ranks: Tensor
    errors: Tensor
    rtol: float


@dataclass(frozen=True)
class LineClasses:
    """The classes along the one hidden dimension of a classifier f = h o z with a scalar z.

    Attributes
    ----------
    classes : Tensor
        The class with the largest output on each interval, in order, (m + 1,).
    boundaries : Tensor
        Where z goes from one interval to the next, (m,). The class regions of f meet where z(x) is one of them, two at
        a time: no tripoint.
    tied : Tensor
        How many outputs are largest at each boundary, (m,): 2, or more by coincidence.
    layer : int
        z = v . a_{l-1} for the rank-one weight W_l = u v^T of this layer, ||v|| = 1.
    lower, upper : float
        The range of z looked at.
    """

    classes: Tensor
    boundaries: Tensor
    tied: Tensor
    layer: int
    lower: float
    upper: float


def rank_bound(
    net: nn.Module,
    x: Tensor | np.ndarray,
    generators: Sequence[Any],
    *,
    rtol: float = 1e-6,
    tol: float = 1e-6,
) -> SymmetryBound:
    """Return rank Jf against dim Omega / G for the group G that affine vector fields generate.

    Where f is invariant, Jf(x) (A x + b) = 0 for every generator, and for their brackets, which are added until none is
    new; so rank Jf(x) <= d_in - dim of the orbit of x, and Rank_BN(f) <= dim Omega / G (T17; Jacot2023b section 5).

    Parameters
    ----------
    net : torch.nn.Module
        Any module on vectors.
    x : Tensor or ndarray
        Samples, (N, d_in).
    generators : sequence
        Pairs (A, b), (d_in, d_in) and (d_in,), or matrices A alone (b = 0): a rotation has A = -A^T, a translation
        A = 0.
    rtol : float
        Singular values above ``rtol`` times the largest count for a rank.
    tol : float
        Up to which invariance f counts as invariant.

    Returns
    -------
    SymmetryBound
        Both sides at every sample.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or shapes do not fit.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.eye(2)])
    >>> along = (torch.zeros(2, 2), torch.tensor([0.0, 1.0]))     # f does not depend on x_2
    >>> found = rank_bound(net, torch.ones(1, 2), [along])
    >>> found.invariant, found.ranks.tolist(), found.bounds.tolist()
    (True, [1], [1])
    """
    samples = validation.samples(x, "x").detach().double()
    rtol, tol = validation.rtol(rtol), validation.number(tol, "tol", 0.0)
    fields = _closed([_field(g, f"generators[{i}]", samples.shape[1]) for i, g in enumerate(generators)])
    if not len(fields):
        raise ValueError("generators: got none, or only zeros, expected at least one")
    fields = fields[:, :-1]
    extended = torch.cat([samples.cpu(), torch.ones(len(samples), 1, dtype=torch.float64)], 1)
    vectors = torch.einsum("mij,nj->nim", fields, extended)  # (N, d_in, m)
    spread = torch.linalg.svdvals(vectors)
    dimensions = (spread > rtol * spread[:, :1].clamp(min=1e-300)).sum(1)
    ranks, worst, start = [], 0.0, 0
    for part in Jacobian(net, samples).chunks():
        part = part.cpu()
        values = torch.linalg.svdvals(part)
        ranks.append((values > rtol * values[:, :1]).sum(1))
        here = vectors[start : start + len(part)]
        size = values[:, :1] * here.norm(dim=1)
        moved = (part @ here).norm(dim=1)
        worst = max(worst, float(torch.where(size > 0, moved / size.clamp(min=1e-300), 0.0).max()))
        start += len(part)
    bounds = samples.shape[1] - dimensions
    return SymmetryBound(torch.cat(ranks), bounds, dimensions, worst, worst <= tol, fields, rtol, tol)


def projection(net: nn.Module, x: Tensor | np.ndarray, *, rtol: float = 1e-6) -> Projections:
    """Return how far Jf is from a projection at samples of an autoencoder.

    An autoencoder with f(x) = x on data of dimension k, and rank Jf = k, is near each sample an affine projection onto
    the data: J^2 = J, so that what noise there is off the data is taken away (T17; Jacot2023a section 5).

    Parameters
    ----------
    net : torch.nn.Module
        Any module with as many outputs as inputs.
    x : Tensor or ndarray
        Samples, (N, ...).
    rtol : float
        Singular values above ``rtol`` times the largest count for a rank.

    Returns
    -------
    Projections
        Defects, ranks and reconstruction errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the output is not of the size of the input.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5], [0.5]])])
    >>> found = projection(net, torch.ones(1, 2))
    >>> found.defects.item(), found.ranks.item(), found.errors.item()
    (0.0, 1, 0.0)
    """
    samples, rtol = example(net, x), validation.rtol(rtol)
    with torch.no_grad():
        outputs = Functional(net)(samples).flatten(1).cpu()
    inputs = samples.detach().flatten(1).double().cpu()
    if outputs.shape != inputs.shape:
        raise ValueError(f"net: got {outputs.shape[1]} outputs, expected as many as inputs, {inputs.shape[1]}")
    defects, ranks = [], []
    for part in Jacobian(net, samples).chunks():
        values = torch.linalg.svdvals(part)
        ranks.append((values > rtol * values[:, :1]).sum(1).cpu())
        size = part.flatten(1).norm(dim=1)
        defects.append(((part @ part - part).flatten(1).norm(dim=1) / size.clamp(min=1e-300)).cpu())
    return Projections(torch.cat(defects), torch.cat(ranks), (outputs - inputs).norm(dim=1), rtol)


def narrowest_layer(weights: Sequence[Tensor]) -> tuple[int, float]:
    """Return the number of the matrix nearest to rank one, counted from 1, and its s_2 / s_1 (0 where it is 0).

    Parameters
    ----------
    weights : sequence of Tensor
        W_1, ..., W_L, (n_l, n_{l-1}).

    Returns
    -------
    layer : int
        The first of the layers with the least ratio.
    ratio : float
        s_2 / s_1 there; 0 if it has one row or column.

    Examples
    --------
    >>> import torch
    >>> narrowest_layer([torch.eye(2), torch.ones(1, 2)])
    (2, 0.0)
    """
    ratios = []
    for weight in weights:
        values = torch.linalg.svdvals(weight.detach())
        ratios.append(float(values[1] / values[0]) if len(values) > 1 and values[0] > 0 else 0.0)
    layer = int(np.argmin(ratios))
    return layer + 1, ratios[layer]


def nearest_rank_one(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest matrix of rank one, s_1 u v^T, and the singular values.

    Examples
    --------
    >>> import torch
    >>> nearest_rank_one(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))[0].abs()
    tensor([[2., 0.],
            [0., 0.]])
    """
    u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
    return s[0] * u[:, :1] @ v[:1], s


def classes_on_line(net: nn.Module, x: Tensor | np.ndarray, *, rtol: float = 1e-6) -> LineClasses:
    """Return the classes of a rank-one classifier along its one hidden dimension, exactly.

    f = h o z with z = v . a_{l-1} where W_l = u v^T. h is piecewise linear, so that the largest output is found piece
    by piece. Along a line at most two classes meet at a point, and so they do in the input space: a classifier of rank
    1 has no tripoint (T17; Jacot2023a section 5).

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers one of whose weights has rank one, with at least two outputs.
    x : Tensor or ndarray
        Samples, (N, d_in): z is looked at over their range.
    rtol : float
        A weight has rank one if s_2 <= ``rtol`` s_1; the rest is dropped.

    Returns
    -------
    LineClasses
        Intervals and boundaries.

    Raises
    ------
    TypeError, ValueError
        If the network is no such chain, x does not fit, or z is the same for all samples.

    Examples
    --------
    >>> import torch, bnrank
    >>> weights = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0], [2.0]])]
    >>> net = bnrank.networks.mlp.from_layers(weights, [torch.zeros(1), torch.tensor([0.0, -1.0, -4.0])])
    >>> found = classes_on_line(net, torch.tensor([[0.0, 0.0], [5.0, 0.0]]))
    >>> found.classes.tolist(), found.boundaries.tolist()
    ([0, 1, 2], [1.0, 3.0])
    """
    check_finite(net)
    chain, rtol = as_mlp(net), validation.rtol(rtol)
    layer, ratio = narrowest_layer(chain.weights)
    if ratio > rtol:
        raise ValueError(
            f"net: got s_2 / s_1 = {ratio:.3g} at least, in layer {layer}, expected a weight of rank one (s_2 <= "
            f"{rtol:g} s_1)"
        )
    if chain.widths[-1] < 2:
        raise ValueError("net: got 1 output, expected one per class, at least 2")
    z, tail = rank_one_parts(chain, validation.samples(x, "x", ndim=None).flatten(1).double(), layer)
    lower, upper = float(z.min()), float(z.max())
    if lower == upper:
        raise ValueError(f"x: got samples with one and the same z = {lower:g}, expected a range")
    pieces = regions.along_line(tail, torch.tensor([lower]), torch.tensor([upper]))
    ends = lower + (upper - lower) * _intervals(pieces)
    with torch.no_grad():
        values = tail(ends.reshape(-1, 1)).reshape(len(ends), 2, -1)
    classes: list[int] = []
    boundaries: list[float] = []
    tied: list[int] = []
    for (start, stop), (first, last) in zip(ends.tolist(), values, strict=True):
        for place, winner in _envelope(first, last):
            if not classes:
                classes.append(winner)
            elif winner != classes[-1]:
                here = torch.lerp(first, last, place)
                size = EQUAL * max(float(here.abs().max()), float(values.abs().max()))
                classes.append(winner)
                boundaries.append(start + place * (stop - start))
                tied.append(int((here >= here.max() - size).sum()))
    double = torch.float64
    return LineClasses(
        torch.tensor(classes), torch.tensor(boundaries, dtype=double), torch.tensor(tied), layer, lower, upper
    )


def rank_one_parts(net: MLP, x: Tensor, layer: int) -> tuple[Tensor, MLP]:
    """Return z = v . a_{l-1}(x), (N,), and the network h of f = h o z, with s_1 u v^T for the weight of the layer."""
    weights, biases = [w.detach() for w in net.weights], [b.detach() for b in net.biases]
    u, s, v = torch.linalg.svd(weights[layer - 1], full_matrices=False)
    inputs, _ = mlp_forward(net, x, torch.float64)
    tail = from_layers([u[:, :1] * s[0], *weights[layer:]], biases[layer - 1 :], net.slope)
    return inputs[layer - 1] @ v[0], tail


def _intervals(pieces: regions.Regions) -> Tensor:
    assert pieces.intervals is not None
    return pieces.intervals


def _envelope(first: Tensor, last: Tensor) -> list[tuple[float, int]]:
    """Return where which output becomes the largest, for outputs that go linearly from first to last on [0, 1]."""
    rise = last - first
    winner = int(max(range(len(first)), key=lambda i: (float(first[i]), float(rise[i]), -i)))
    found, place = [(0.0, winner)], 0.0
    while True:
        faster = rise > rise[winner]
        if not bool(faster.any()):
            return found
        meets = torch.where(faster, (first[winner] - first) / (rise - rise[winner]).where(faster, 1.0), torch.inf)
        meets = meets.clamp(min=place)
        place = float(meets.min())
        if place >= 1:
            return found
        level = torch.nonzero(meets == meets.min()).flatten().tolist()
        winner = max(level, key=lambda i: (float(rise[i]), -i))
        found.append((place, winner))


def _field(generator: Any, name: str, d: int) -> Tensor:
    """Return [[A, b], [0, 0]], (d + 1, d + 1), float64."""
    matrix, shift = generator if isinstance(generator, tuple | list) and len(generator) == 2 else (generator, None)
    field = torch.zeros(d + 1, d + 1, dtype=torch.float64)
    for value, part, shape in ((matrix, field[:d, :d], (d, d)), (shift, field[:d, d], (d,))):
        if value is None:
            continue
        tensor = torch.as_tensor(value, dtype=torch.float64)
        if tuple(tensor.shape) != shape or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name}: got {validation.describe(tensor)}, expected finite A {(d, d)} and b {(d,)}")
        part.copy_(tensor)
    return field


def _closed(fields: list[Tensor]) -> Tensor:
    """Return an orthonormal basis of the span of the fields and of all their brackets, (m, d + 1, d + 1)."""
    basis: list[Tensor] = []
    waiting = list(fields)
    while waiting:
        field = waiting.pop(0)
        size = field.norm()
        rest = field.clone()
        for _ in range(2):
            for known in basis:
                rest -= (rest * known).sum() * known
        if size == 0 or rest.norm() <= 1e-9 * size:
            continue
        rest /= rest.norm()
        brackets = (rest @ known - known @ rest for known in basis)  # of fields of norm 1: below 1e-9 is rounding
        waiting += [bracket for bracket in brackets if bracket.norm() > 1e-9]
        basis.append(rest)
    return torch.stack(basis) if basis else torch.zeros(0, 1, 1, dtype=torch.float64)
