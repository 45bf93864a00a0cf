"""Statements about data and functions of low dimension: domains, kernels, symmetries (T9, T16, T17)."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from bnrank._core import linalg, validation
from bnrank._core.sampling import evenly_spaced
from bnrank.networks.mlp import from_layers
from bnrank.theory import domains, kernels, symmetry
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import vectors
from bnrank.theory.verdicts import Inconclusive, Sides, Statement, assume, statement

SAME = 1e-6  # largest ||f(x) - x|| that counts as the identity, relative to the largest sample
ROWS, POINTS = 500, 20  # largest numbers of samples to fit kernels to, and of points at which Jacobians are computed
NOISE = 1e-3  # relative size of the noise added to targets for which the Jacobian does not have full rank
WITNESS = 1e-5  # largest distance of the network of norm k L from the identity, relative to the largest sample
LARGE = 1e150  # squares of larger numbers exceed the range of floats


@statement(
    "T9",
    "networks that are the identity on the data",
    "k L (1 - ||Jf U - U||)^{2/L} <= ||theta||^2, U a basis of span X, k = dim span X; some network has k L",
    source="Jacot2023b proposition 5, R1(id; Omega) = 0 on planar, completely positive domains",
)
def _identity(facts: Facts) -> Sides:
    x, depth, outputs = vectors(facts), facts.depth, facts.outputs
    size = float(x.norm(dim=1).max())
    assume(outputs.shape == x.shape, "f(x) = x on the samples", f"{outputs.shape[1]} outputs of {x.shape[1]} inputs")
    miss = float((outputs - x).norm(dim=1).max())
    sizes = f"||f(x) - x|| = {miss:.3g}, ||x|| = {size:.3g}"
    assume(size > 0 and miss <= SAME * size, "f(x) = x on the samples, not all 0", sizes)
    found = domains.completely_positive(x, seed=facts.seed)
    assume(found.status != "no", "the data are completely positive", found.reason)
    if found.isometry is None:
        raise Inconclusive(f"whether the data are completely positive: {found.reason}")
    basis = torch.linalg.svd(found.isometry, full_matrices=False)[2][: found.k].T.to(x)
    rows = evenly_spaced(len(x), POINTS).tolist()
    errors = [float(torch.linalg.matrix_norm(facts.paths[i].jacobian @ basis - basis, 2)) for i in rows]
    off = min(errors)
    assume(off <= SAME, "Jf is the identity on span X at a sample", f"||Jf U - U|| = {off:.3g} or more")
    embed = found.isometry  # O in O^T (O O^T)^{L-2} O, a network of norm k L
    weights = [embed, *[embed @ embed.T] * (depth - 2), embed.T] if depth > 1 else [embed.T @ embed]
    with torch.no_grad():
        miss = float((from_layers(weights).to(x.device)(x) - x).norm(dim=1).max() / size)
    if miss > WITNESS:
        raise Inconclusive(f"the network of norm k L misses the identity by {miss:.2g} of the largest sample")
    note = (
        f"k = {found.k}, {found.reason}; a network of norm k L misses the identity on X by {miss:.2g} of the largest "
        f"sample; at sample {rows[errors.index(off)]}, ||Jf U - U|| = {off:.2g}"
    )
    left = found.k * depth * (1 - off) ** (2 / depth)
    return Sides(left, facts.parameter_norm, "<=", 1e-9, 1.0, ("f(x) = x on X", "X is completely positive"), note)


@statement(
    "T16",
    "kernel ridge regression on the data overestimates the rank",
    "min(rank(X - x), d_out) <= rank of the Jacobian at x of kernel ridge regression on X and Y, rank(X - x) being the "
    "affine rank of X on its affine span, and one more off it; no network enters",
    source="Jacot2023a appendix D.1 (E24)",
)
def _kernel_rank(facts: Facts) -> list[Sides]:
    x, y = vectors(facts), facts.targets
    assume(len(x) >= 2, "there are at least two samples")
    if float(x.abs().max()) > LARGE or float(y.abs().max()) > LARGE:
        raise Inconclusive(f"values beyond {LARGE:g}, of which squares leave the range of floats")
    rows = evenly_spaced(len(x), ROWS)
    x, y = x[rows], y[rows]
    draw = torch.Generator().manual_seed(facts.seed)
    between = ((x[1:] + x[:-1]) / 2)[:POINTS]
    spread = float((x.max(0).values - x.min(0).values).max()) or 1.0
    away = between + spread * torch.randn(between.shape, generator=draw, dtype=x.dtype).to(x.device)
    noisy = y + NOISE * y.abs().max() * torch.randn(y.shape, generator=draw, dtype=y.dtype).to(y.device)
    compared: list[Sides] = []
    off = away[(away != between).any(1)]  # but for equal samples that are large
    for points, where in ((between, "between samples"), (off, "off their affine span")):
        if not len(points):
            continue
        found = kernels.jacobian_ranks(x, y, points=points, rtol=1e-12, data_rtol=max(facts.rtol, 1e-4))
        inner = found.x_rank + (points is off)
        if inner > x.shape[1] or (compared and found.y_rank < min(inner, y.shape[1])):
            continue  # the inputs span the space, or Y has a lower rank
        full, rank = min(inner, y.shape[1]), int(found.ranks.max())
        lower = f"rank {found.y_rank} of {full}"
        assume(found.y_rank >= full, "noise in y, so that Y has rank min(rank X, d_out)", lower)
        if rank < full:
            most = int(kernels.jacobian_ranks(x, noisy, points=points, rtol=1e-12).ranks.max())
            assume(most < full, "noise in y", f"the rank is {rank}, and {full} with noise of {NOISE:g}")
        note = (
            f"at {len(points)} points {where}; rbf kernel of length {found.length_scale:.4g}, ridge {found.ridge:g}, "
            f"{len(x)} samples; about the data alone: the network, which plays no part, has rank {facts.rank}"
        )
        compared.append(Sides(full, rank, assumptions=("Y has full rank",), note=note))
    return compared


@statement(
    "T17",
    "rank and symmetry: translations",
    "rank Jf <= d_in - dim ker W_1",
    source="Jacot2023b section 5, Rank_BN(f) <= dim Omega / G",
)
def _translations(facts: Facts) -> Sides:
    first, eps = facts.weights[0], torch.finfo(torch.float64).eps
    kept = int(linalg.rank(torch.linalg.svdvals(first), max(first.shape) * eps))
    assume(kept < first.shape[1], "a symmetry is known", "no generators are given, and W_1 has no kernel")
    norms = torch.stack([torch.linalg.matrix_norm(w, 2) for w in facts.weights])
    rounding = sum(facts.chain.widths) * eps * float(norms.prod().nan_to_num(nan=math.inf, posinf=math.inf))
    rank = int(linalg.rank(facts.jacobian_values, facts.rtol, rounding).max())
    note = f"translations by the kernel of W_1, of dimension {first.shape[1] - kept}, leave f as it is"
    return Sides(rank, kept, assumptions=("Jf v = 0 on the kernel of W_1",), note=note, most=facts.largest_rank)


@statement(
    "T17",
    "autoencoders of the rank of the data project onto them",
    "||J^2 - J|| <= ||J|| ||E|| ||(U + E)^+ J||, E = J U - U on directions U between samples of one region",
    source="Jacot2023a section 5, autoencoders",
)
def _denoising(facts: Facts) -> list[Sides]:
    x, outputs = vectors(facts), facts.outputs
    assume(outputs.shape == x.shape, "as many outputs as inputs", f"{outputs.shape[1]} of {x.shape[1]}")
    found, errors = [], []
    for rows in _same_region(facts):
        jacobian = facts.paths[rows[0]].jacobian
        u, s, v = torch.linalg.svd(jacobian)
        k = int(linalg.rank(s, facts.rtol))
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
        distance = torch.linalg.matrix_norm(jacobian - torch.eye(len(s), dtype=s.dtype, device=s.device), 2)
        left = torch.linalg.matrix_norm(jacobian @ jacobian - jacobian, 2)
        right = s[0] * error * back + distance * rest * (back + 1)
        note = f"{len(rows)} samples in the region of sample {rows[0]}, k = {k}, ||E|| = {float(error):.2g}"
        scale = float(s[0] ** 2 + s[0])
        assumed = ("f(x) = x up to E",)
        found.append(Sides(float(left), float(right), "<=", 1e-9, scale, assumed, note, least=-math.inf))
    assume(len(errors) > 0, "some region holds more samples than its rank, in as many dimensions")
    assume(len(found) > 0, "the autoencoder gives back its inputs", f"||E|| = {min(errors):.3g} or more")
    return found


def symmetric_under(generators: Sequence[Any], *, invariance_rtol: float = 1e-6) -> Statement:
    """Return the statement T17 for a symmetry: rank Jf <= d_in - dim of the orbit, at every sample.

    Parameters
    ----------
    generators : sequence
        Affine vector fields, as in :func:`bnrank.theory.symmetry.rank_bound`.
    invariance_rtol : float
        Largest ||Jf v|| / (||Jf|| ||v||) for which f counts as invariant; otherwise the statement is not applicable.

    Returns
    -------
    Statement
        Call it with :class:`~bnrank.theory.facts.Facts`.

    Examples
    --------
    >>> import torch, bnrank
    >>> from bnrank.theory.facts import Facts
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[1.0, 0.0]]), torch.ones(3, 1)])
    >>> along = (torch.zeros(2, 2), torch.tensor([0.0, 1.0]))
    >>> symmetric_under([along])(Facts(net, torch.ones(4, 2))).status
    'holds'
    """
    limit = validation.number(invariance_rtol, "invariance_rtol", 0.0)

    def sides(facts: Facts) -> Sides:
        found = symmetry.rank_bound(
            facts.net, vectors(facts), generators, rtol=max(facts.rtol, 10 * limit), invariance_rtol=limit
        )
        assume(found.invariant, "f is invariant", f"||Jf v|| = {found.invariance:.3g} ||Jf|| ||v|| at most")
        row = int((found.bounds - found.ranks).argmin())
        dimension = int(found.orbit_dimensions[row])
        note = f"sample {row}, an orbit of dimension {dimension}, invariance {found.invariance:.2g}"
        ranks, assumed, most = (int(found.ranks[row]), int(found.bounds[row])), ("f is invariant",), facts.largest_rank
        return Sides(*ranks, assumptions=assumed, note=note, most=most)

    return Statement("T17", "rank and symmetry", "rank Jf <= d_in - dim of the orbit", "Jacot2023b section 5", sides)


def _same_region(facts: Facts) -> list[list[int]]:
    """Return the samples of each activation pattern with at least two, for the 10 most common patterns."""
    one = torch.ones(len(facts.x), 1, dtype=torch.bool, device=facts.x.device)
    patterns = torch.cat([one, *(s > facts.slope for s in facts.slopes)], 1)
    _, where, counts = torch.unique(patterns, dim=0, return_inverse=True, return_counts=True)
    fullest = torch.argsort(counts, descending=True)[:10].tolist()
    return [torch.nonzero(where == i).flatten().tolist() for i in fullest if counts[i] > 1]
