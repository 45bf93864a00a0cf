"""Statements about fits of low rank: cost, tours, symmetries, stability (T9, T12, T13, T15 to T17, T26)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bnrank import _validate
from bnrank.measures import regions
from bnrank.networks.constructions import line_interpolant
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory import domains, kernels, stability, symmetry
from bnrank.theory.facts import Facts
from bnrank.theory.tours import tsp_bound
from bnrank.theory.verdict import Inconclusive, NotApplicable, Sides, Statement, statement

__all__ = ["STATEMENTS", "stable_at", "symmetric_under"]

FITTED = 1e-6  # of the mean square of the targets: a mean squared error that counts as none
ROWS, POINTS = 500, 20  # samples of which kernels are made, and places where their Jacobian is taken
NOISE = 1e-3  # of the size of the targets: noise added where their Jacobian is not generic


@statement(
    "T9",
    "the identity on the data costs k L",
    "||theta||^2 = k L for a network that is the identity on X",
    source="Jacot2023b proposition 5, R1(id; Omega) = 0 on planar, completely positive domains",
)
def _identity(facts: Facts) -> Sides:
    x, depth = _vectors(facts), facts.depth
    found = domains.completely_positive(x, seed=facts.seed)
    if found.status == "no":
        raise NotApplicable("the data are completely positive", found.reason)
    if found.isometry is None:
        raise Inconclusive(f"whether the data are completely positive: {found.reason}")
    embed = found.isometry
    inner = [embed @ embed.T] * (depth - 2)
    net = from_layers([embed, *inner, embed.T] if depth > 1 else [embed.T @ embed])
    size = float(x.norm(dim=1).max())
    with torch.no_grad():
        miss = float((net(x) - x).norm(dim=1).max()) / (size or 1.0)
    if miss > 1e-5:
        raise Inconclusive(f"the network misses the identity by {miss:.2g} of the largest sample")
    norm = sum(float((w.detach() ** 2).sum()) for w in net.weights)
    note = f"k = {found.k}, {found.reason}; misses the identity by {miss:.2g} of the largest sample"
    return Sides(norm, found.k * depth, "=", 1e-9, 1.0, ("the data are completely positive",), note)


@statement(
    "T12",
    "cost of rank-one interpolation",
    "L sum_k s_k(Jf)^{2/L} <= L + C_N, at a global minimum",
    source="Jacot2023a propositions 2 and 3",
)
def _rank_one_cost(facts: Facts) -> Sides:
    bound, assumptions, note = _interpolation(facts)
    values = facts.jacobian_values
    counted = torch.where(values > facts.rtol * values[:, :1], values, 0.0)
    left = facts.depth * float((counted ** (2 / facts.depth)).sum(1).max())
    return Sides(left, bound, "<=", 1e-9, bound, assumptions, note)


@statement(
    "T17b",
    "second singular value at a global minimum",
    "s_2(Jf)^{2/L} <= (1 + C_N / L) / 2",
    source="Jacot2023a section 4, after proposition 3",
)
def _second_value(facts: Facts) -> Sides:
    if min(_vectors(facts).shape[1], facts.outputs.shape[1]) < 2:
        raise NotApplicable("there are at least two inputs and two outputs")
    bound, assumptions, note = _interpolation(facts)
    values = facts.jacobian_values
    second = torch.where(values[:, 1] > facts.rtol * values[:, 0], values[:, 1], 0.0)
    left = float(second.max()) ** (2 / facts.depth)
    return Sides(left, bound / (2 * facts.depth), "<=", 1e-9, 1.0, assumptions, note)


@statement(
    "T13",
    "norm of rank-one functions",
    "L (TSP(f(X)) / diam(X))^{2/L} <= ||theta||^2",
    source="Jacot2023a theorem 2",
)
def _tour_norm(facts: Facts) -> Sides:
    net, _, note = _rank_one(facts)
    x = _vectors(facts)
    with torch.no_grad():
        found = tsp_bound(x, net(x), facts.depth)
    note = f"TSP >= {found.path.lower:.6g} (a path of {found.path.upper:.6g}), diam {found.diameter:.6g}; {note}"
    return Sides(found.parameter_norm, facts.parameter_norm, assumptions=("a weight has rank one",), note=note)


@statement(
    "T13",
    "slope of rank-one functions",
    "TSP(f(X)) / diam(X) <= max ||Jf||_op, on the segment between the outermost samples",
    source="Jacot2023a theorem 2, proof",
)
def _tour_slope(facts: Facts) -> Sides:
    net, layer, note = _rank_one(facts)
    x = _vectors(facts)
    with torch.no_grad():
        found = tsp_bound(x, net(x), facts.depth)
    z, _ = symmetry.rank_one_parts(net, x, layer)
    first, last = int(z.argmin()), int(z.argmax())
    if bool((x[first] == x[last]).all()):
        raise NotApplicable("the hidden dimension tells samples apart", f"z = {float(z[0]):.6g} at every sample")
    pieces = regions.along_line(net, x[first], x[last])
    note = f"samples {first} and {last}, {len(pieces)} pieces between; {note}"
    steepest = float(pieces.singular_values[:, 0].max())
    return Sides(found.slope, steepest, assumptions=("a weight has rank one",), note=note)


@statement(
    "T15",
    "an almost rank-one layer",
    "min_l s_2(Z_l) / s_1(Z_l) = O(L^{-1/4}), at a global minimum",
    source="Jacot2023a proposition 4",
)
def _bottleneck_layer(facts: Facts) -> Sides:
    if facts.depth == 1:
        raise NotApplicable("there is a hidden layer", "depth 1")
    _interpolation(facts)
    spread = facts.outputs - facts.outputs.mean(0)
    if float(spread.abs().max()) <= facts.rtol * float(facts.outputs.abs().max()):
        raise NotApplicable("the outputs are not constant")
    ratios = []
    for layer, a in enumerate(facts.inputs[1:], start=1):
        values = torch.linalg.svdvals(a)
        ratios.append((float(values[1] / values[0]) if len(values) > 1 and values[0] > 0 else 0.0, layer))
    ratio, layer = min(ratios)
    raise Inconclusive(
        f"s_2/s_1 is least at layer {layer}, {ratio:.3g}, where L^(-1/4) = {facts.depth**-0.25:.3g}; the print names "
        "no constant, and its proof has gaps (E6)"
    )


@statement(
    "T16",
    "kernels overestimate the rank",
    "min(rank X, d_out) <= rank of the Jacobian of kernel ridge regression",
    source="Jacot2023a appendix D.1",
)
def _kernel_rank(facts: Facts) -> Sides:
    x, y = _vectors(facts), facts.targets
    if len(x) < 2:
        raise NotApplicable("there are at least two samples")
    rows = torch.linspace(0, len(x) - 1, min(ROWS, len(x))).round().long()
    x, y = x[rows], y[rows]
    points = ((x[1:] + x[:-1]) / 2)[:POINTS]
    found = kernels.jacobian_ranks(x, y, points=points, rtol=1e-12, data_rtol=max(facts.rtol, 1e-4))
    expected = min(found.x_rank, y.shape[1])
    if found.y_rank < expected:
        raise NotApplicable("noise in y, so that Y has rank min(rank X, d_out)", f"rank {found.y_rank} of {expected}")
    rank = int(found.ranks.max())
    if rank < expected:
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(facts.seed), dtype=y.dtype)
        noisy = kernels.jacobian_ranks(x, y + NOISE * y.abs().max() * noise, points=points, rtol=1e-12)
        if int(noisy.ranks.max()) >= expected:
            raise NotApplicable("noise in y", f"the rank is {rank}, and {expected} with noise of {NOISE:g}")
    note = (
        f"rbf kernel of length {found.length_scale:.4g}, ridge {found.ridge:g}, {len(x)} samples; the network has rank "
        f"{facts.rank}"
    )
    return Sides(expected, rank, assumptions=("Y has full rank",), note=note)


@statement(
    "T17",
    "rank and symmetry: translations",
    "rank Jf <= d_in - dim ker W_1",
    source="Jacot2023b section 5, Rank_BN(f) <= dim Omega / G",
)
def _translations(facts: Facts) -> Sides:
    first = facts.weights[0]
    values = torch.linalg.svdvals(first)
    kept = int((values > max(first.shape) * torch.finfo(torch.float64).eps * values[0]).sum())
    if kept == first.shape[1]:
        raise NotApplicable("a symmetry is known", "no generators are given, and W_1 has no kernel")
    eps = sum(facts.chain.widths) * torch.finfo(torch.float64).eps
    rounding = eps * float(torch.stack([torch.linalg.matrix_norm(w, 2) for w in facts.weights]).prod())
    counted = facts.jacobian_values > (facts.rtol * facts.jacobian_values[:, :1]).clamp(min=rounding)
    note = f"translations by the kernel of W_1, of dimension {first.shape[1] - kept}, leave f as it is"
    return Sides(int(counted.sum(1).max()), kept, assumptions=("Jf v = 0 on the kernel of W_1",), note=note)


@statement(
    "T17",
    "autoencoders of the rank of the data project onto them",
    "||J^2 - J|| <= ||J|| ||E|| ||(U + E)^+ J||, E = J U - U on directions U between samples of one region",
    source="Jacot2023a section 5, autoencoders",
)
def _denoising(facts: Facts) -> Sides:
    x, outputs = _vectors(facts), facts.outputs
    if outputs.shape != x.shape:
        raise NotApplicable("as many outputs as inputs", f"{outputs.shape[1]} of {x.shape[1]}")
    found, errors = [], []
    for rows in _same_region(facts):
        jacobian = _jacobian(facts, rows[0])
        u, s, v = torch.linalg.svd(jacobian)
        k = int((s > facts.rtol * s[0]).sum())
        mixing, spread, directions = torch.linalg.svd(x[rows] - x[rows].mean(0), full_matrices=False)
        if not 0 < k <= len(spread) or float(spread[k - 1]) <= 1e-6 * float(spread[0]):
            continue
        across = (outputs[rows] - outputs[rows].mean(0)).T @ (mixing[:, :k] / spread[:k])  # J U
        error = torch.linalg.matrix_norm(across - directions[:k].T, 2)
        errors.append(float(error))
        if error > 0.1:
            continue
        rest = s[k] if k < len(s) else s.new_zeros(())
        truncated = (u[:, :k] * s[:k]) @ v[:k]
        image = across - (jacobian - truncated) @ directions[:k].T
        back = torch.linalg.matrix_norm(torch.linalg.pinv(image) @ truncated, 2)
        beside = torch.linalg.matrix_norm(jacobian - torch.eye(len(s), dtype=s.dtype, device=s.device), 2)
        left = torch.linalg.matrix_norm(jacobian @ jacobian - jacobian, 2)
        right = s[0] * error * back + beside * rest * (back + 1)
        note = f"{len(rows)} samples in the region of sample {rows[0]}, k = {k}, ||E|| = {float(error):.2g}"
        scale = float(s[0] ** 2 + s[0])
        found.append(Sides(float(left), float(right), "<=", 1e-9, scale, ("f(x) = x up to E",), note))
    if not found:
        if errors:
            raise NotApplicable("the autoencoder gives back its inputs", f"||E|| = {min(errors):.3g} at least")
        raise NotApplicable("some region holds more samples than its rank, in as many dimensions")
    return min(found, key=lambda sides: sides.right - sides.left)


@statement(
    "T26",
    "the NTK of rank-one functions grows",
    "e^{-c1} TSP^4 sum_{l in S} ||W_l||_op^{-2} / (64 diam^2) <= max Tr Theta(x, x)",
    source="Jacot2023b theorem 10, with its constant",
)
def _growth(facts: Facts) -> Sides:
    _rank_one(facts)
    found = stability.growth_bound(facts.chain, _vectors(facts), rtol=facts.rtol)
    note = (
        f"c1 = {found.excess:.6g}, {len(found.layers)} layers of rank one, TSP >= {found.path.lower:.6g}, diam "
        f"{found.diameter:.6g}; the maximum is over a segment between two samples"
    )
    return Sides(found.bound, found.measured, assumptions=("a weight has rank one",), note=note)


def symmetric_under(generators: Sequence[Any], *, tol: float = 1e-6) -> Statement:
    """Return the statement T17 for a symmetry: rank Jf <= d_in - dim of the orbit, at every sample.

    Parameters
    ----------
    generators : sequence
        Affine vector fields, as in :func:`bnrank.theory.symmetry.rank_bound`.
    tol : float
        How invariant the network must be, ||Jf v|| <= tol ||Jf|| ||v||, for the statement to apply.

    Returns
    -------
    Statement
        To be called on :class:`~bnrank.theory.facts.Facts`.

    Examples
    --------
    >>> import torch, bnrank
    >>> from bnrank.theory.facts import Facts
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[1.0, 0.0]]), torch.ones(3, 1)])
    >>> along = (torch.zeros(2, 2), torch.tensor([0.0, 1.0]))
    >>> symmetric_under([along])(Facts(net, torch.ones(4, 2))).status
    'holds'
    """
    tol = _validate.number(tol, "tol", 0.0)

    def sides(facts: Facts) -> Sides:
        found = symmetry.rank_bound(facts.module, _vectors(facts), generators, rtol=max(facts.rtol, 10 * tol), tol=tol)
        if not found.invariant:
            raise NotApplicable("f is invariant", f"||Jf v|| = {found.invariance:.3g} ||Jf|| ||v|| at most")
        row = int((found.bounds - found.ranks).argmin())
        note = (
            f"sample {row}, an orbit of dimension {int(found.orbit_dimensions[row])}, invariance {found.invariance:.2g}"
        )
        return Sides(int(found.ranks[row]), int(found.bounds[row]), assumptions=("f is invariant",), note=note)

    return Statement("T17", "rank and symmetry", "rank Jf <= d_in - dim of the orbit", "Jacot2023b section 5", sides)


def stable_at(step: float) -> Statement:
    """Return the statement T26 for a step size: a minimum that gradient descent stays at has curvature <= 2 / step.

    Parameters
    ----------
    step : float
        eta > 0, of gradient descent on the whole loss C + lambda ||theta||^2.

    Returns
    -------
    Statement
        To be called on :class:`~bnrank.theory.facts.Facts`; not applicable unless the network fits its targets.

    Examples
    --------
    >>> import torch, bnrank
    >>> from bnrank.theory.facts import Facts
    >>> x, net = torch.ones(1, 1), bnrank.MLP([1, 1], bias=False)           # curvature 2
    >>> facts = Facts(net, x, net(x).detach())
    >>> stable_at(0.5)(facts).status, stable_at(2.0)(facts).status
    ('holds', 'violated')
    """
    step = _validate.number(step, "step", 0.0, strict=True)

    def sides(facts: Facts) -> Sides:
        size = float((facts.targets**2).sum(1).mean())
        if facts.data_loss > FITTED * size:
            raise NotApplicable("the network fits its targets", f"C = {facts.data_loss:.3g}, mean ||y||^2 = {size:.3g}")
        _all_samples(facts)
        found = stability.sharpness_bound(facts.module, facts.x, step, ridge=facts.ridge or 0.0)
        residual = (facts.data_loss / size) ** 0.5 if size else 0.0
        note = f"gradient descent stays there for steps up to {found.largest_step:.4g}"
        return Sides(found.curvature, found.limit, "<=", 1e-9 + residual, assumptions=("f(X) = Y",), note=note)

    return Statement(
        "T26", "stability of a minimum", "(2/N) ||J_theta f||_op^2 <= 2 / step", "Jacot2023b section 4 (E14)", sides
    )


def _vectors(facts: Facts) -> Tensor:
    if not facts.x.is_floating_point():
        raise NotApplicable("the inputs are vectors", f"dtype {facts.x.dtype}")
    return facts.x.flatten(1)


def _all_samples(facts: Facts) -> None:
    if len(facts.x) < facts.samples:
        raise NotApplicable("all samples are looked at", f"{len(facts.x)} of {facts.samples}")


def _interpolation(facts: Facts) -> tuple[float, tuple[str, ...], str]:
    """Return L + C_N, after checking that the network costs no more than a rank-one interpolant, as a minimum does."""
    x, y, ridge, depth = _vectors(facts), facts.targets, facts.penalty, facts.depth
    _all_samples(facts)
    if depth < 3:
        raise NotApplicable("depth at least 3", f"depth {depth}")
    slope = facts.slope
    if slope == 1:
        raise NotApplicable("the network is not linear")
    try:
        net = line_interpolant(x, y, depth, facts.seed, slope=slope)
    except ValueError as error:
        raise NotApplicable("a rank-one network of this depth fits the data", str(error)) from error
    with torch.no_grad():
        miss = float(((net(x) - y) ** 2).sum(1).mean())
    bound = sum(float((p.detach() ** 2).sum()) for p in net.parameters()) + miss / ridge
    cost = facts.data_loss / ridge + facts.parameter_norm
    if cost > bound:
        wide = all(a >= b for a, b in zip(facts.chain.widths, net.widths, strict=True))
        if wide and facts.chain.bias:
            detail = f"(C + lambda ||theta||^2) / lambda is {cost:.6g}, and {bound:.6g} for an interpolant of rank one"
            raise NotApplicable("the network is a global minimum", detail)
        detail = f"hidden widths {facts.chain.widths[1:-1]}{'' if facts.chain.bias else ' and no biases'}"
        raise NotApplicable(f"wide enough, hidden widths {net.widths[1:-1]} with biases, to interpolate", detail)
    cheaper = f"(C + lambda ||theta||^2) / lambda = {cost:.6g}, at most that of the interpolant, as at a global minimum"
    return bound, (cheaper,), f"C_N = {bound - depth:.6g}, of a network through the data of hidden dimension 1"


def _rank_one(facts: Facts) -> tuple[MLP, int, str]:
    """Return the network with a weight of exactly rank one where it has one nearly, and the layer."""
    layer, ratio = symmetry.narrowest_layer(facts.weights)
    if ratio > facts.rtol:
        raise NotApplicable("BN-rank 1: a weight of rank one", f"s_2 / s_1 is {ratio:.3g} at least, in layer {layer}")
    weights = list(facts.weights)
    u, s, v = torch.linalg.svd(weights[layer - 1], full_matrices=False)
    weights[layer - 1] = s[0] * u[:, :1] @ v[:1]
    note = f"f = h o z through layer {layer}" + (
        f", less the rest of W_{layer} (s_2 / s_1 = {ratio:.1g})" if ratio else ""
    )
    return from_layers(weights, facts.biases, facts.slope).to(weights[0].device), layer, note


def _same_region(facts: Facts) -> list[list[int]]:
    """Return the samples of each activation pattern that has two or more, the fullest 10."""
    patterns = (
        torch.cat([s > facts.slope for s in facts.slopes], 1) if facts.slopes else facts.x.new_ones(len(facts.x), 1)
    )
    _, where, counts = torch.unique(patterns, dim=0, return_inverse=True, return_counts=True)
    fullest = torch.argsort(counts, descending=True)[:10].tolist()
    return [torch.nonzero(where == i).flatten().tolist() for i in fullest if counts[i] > 1]


def _jacobian(facts: Facts, row: int) -> Tensor:
    """Return Jf(x_row) = W_L D_{L-1} ... W_1."""
    product = facts.weights[0]
    for weight, slopes in zip(facts.weights[1:], facts.slopes, strict=True):
        product = weight @ (slopes[row][:, None] * product)
    return product


STATEMENTS: tuple[Statement, ...] = (
    _identity,
    _rank_one_cost,
    _tour_norm,
    _tour_slope,
    _bottleneck_layer,
    _kernel_rank,
    _translations,
    _denoising,
    _second_value,
    _growth,
)
