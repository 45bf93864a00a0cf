"""Linear algebra of affine fields: readable bases, fixed points, invariant metrics, and the blocks of rotations."""

import itertools
import math

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from bnrank.discovery.symmetry_search.fields import Coordinates, in_units


def echelon(rows: Tensor) -> Tensor:
    """Return the basis of the span of independent rows, (k, n), with a pivot 1 per row where all other rows are 0.

    The pivots are found by QR with pivoting; for a span of coordinate axes the basis is these axes. Rows are sorted by
    their first entries.

    Examples
    --------
    >>> echelon(torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    places = _places(rows)
    result = torch.linalg.solve(rows[:, places], rows)
    result = torch.where(result.abs() > 1e-9 * result.abs().max(), result, 0.0)
    return result[(result != 0).int().argmax(1).argsort(stable=True)]


def readable(vectors: Tensor) -> Tensor:
    """Return the rotation (n, n) that brings columns (d, n) nearest to n coordinate axes.

    Examples
    --------
    >>> turned = torch.tensor([[0.6, -0.8], [0.8, 0.6], [0.0, 0.0]], dtype=torch.float64)
    >>> (turned @ readable(turned)).round(decimals=9).abs()
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    places = _places(vectors.T)
    u, _, v = torch.linalg.svd(vectors[places].T)
    return u @ v


def axes_of(space: Tensor) -> list[int] | None:
    """Return the columns of x that span a space, (d, n), or None if coordinate axes do not span it."""
    basis = torch.linalg.qr(space)[0]
    share = basis.square().sum(1)
    axes = torch.nonzero(share > 1 - 1e-3).flatten().tolist()
    return axes if len(axes) == space.shape[1] else None


def upright(vector: Tensor) -> Tensor:
    """Return a vector scaled to length 1, with its largest entry positive.

    Examples
    --------
    >>> upright(torch.tensor([3.0, -4.0]))
    tensor([-0.6000,  0.8000])
    """
    return vector / vector.norm() * (1 if float(vector[vector.abs().argmax()]) > 0 else -1)


def _places(rows: Tensor) -> Tensor:
    """Return the indices of well-conditioned columns, one per row; among equally good ones, the first."""
    early = 1 - 1e-6 * torch.arange(rows.shape[1], dtype=rows.dtype) / rows.shape[1]
    _, _, order = scipy.linalg.qr((rows * early).numpy(), pivoting=True, mode="economic")
    return torch.from_numpy(np.sort(order[: len(rows)]).astype(np.int64))


def common(fields: Tensor, family: Tensor, bar: float) -> Tensor:
    """Return orthonormal members of the span of a family with a cosine of at least ``bar`` to the span of fields."""
    if not len(family):
        return fields[:0]
    flat = family.flatten(1)
    _, s, v = torch.linalg.svd(flat, full_matrices=False)
    basis = v[s > 1e-8 * s[0].clamp(min=1e-300)]
    left, cosines, _ = torch.linalg.svd(basis @ fields.flatten(1).T, full_matrices=False)
    return (left[:, cosines >= bar].T @ basis).reshape(-1, *fields.shape[1:])


def sparse(fields: Tensor, where: Coordinates) -> Tensor:
    """Return a basis of the span of fields of x, (k, d, d + 1), with many zeros, and a 1 in every field.

    It is the echelon basis in units of the columns, which makes entries of different columns comparable.
    """
    within = in_units(fields, where.spread)
    reduced = echelon(within.flatten(1)).reshape(within.shape)
    return scaled(in_units(reduced, 1 / where.spread), where.spread)


def scaled(fields: Tensor, units: Tensor) -> Tensor:
    """Return fields scaled so that one entry is 1: the last of those at least half the largest, in column units."""
    sizes = in_units(fields, units).flatten(1).abs()
    large = sizes >= sizes.max(1, keepdim=True).values / 2
    place = (large * torch.arange(sizes.shape[1])).argmax(1, keepdim=True)
    return fields / fields.flatten(1).gather(1, place)[..., None]


def about(matrices: Tensor, point: Tensor) -> Tensor:
    """Return the fields z -> A (z - c), (k, q, q + 1)."""
    return torch.cat([matrices, -(matrices @ point)[..., None]], -1)


def invariant_metric(matrices: Tensor, guess: Tensor, rtol: float) -> Tensor | None:
    """Return the M > 0 nearest to ``guess`` with A^T M + M A = 0 for all A, (q, q), or None if there is none.

    Solutions are combinations of symmetric matrices for which the left side is at most ``rtol`` times its maximum.
    """
    basis = _symmetric(matrices)
    products = basis[:, None] @ matrices
    images = (products + products.transpose(-1, -2)).flatten(1)
    values, vectors = torch.linalg.eigh(images @ images.T)
    solutions = torch.einsum("ab,aij->bij", vectors[:, values <= rtol**2 * values[-1]], basis)
    metric = torch.einsum("b,bij->ij", torch.einsum("bij,ij->b", solutions, guess), solutions)
    smallest = float(torch.linalg.eigvalsh(metric)[0]) if len(solutions) else 0.0
    return metric if smallest > 1e-3 * float(torch.linalg.matrix_norm(metric, 2)) else None


def casimir(matrices: Tensor) -> Tensor:
    """Return sum_a R_a^T R_a over an orthonormal basis of the span of antisymmetric matrices, (q, q).

    (n - 1) / 2 on n coordinates with all their rotations, 0 on fixed coordinates.
    """
    basis = _orthonormal(matrices)
    return (basis.transpose(1, 2) @ basis).sum(0)


def commutant(matrices: Tensor, atol: float) -> Tensor:
    """Return a basis of the symmetric S with sum_a ||[R_a, S]||^2 <= atol ||S||^2, R_a orthonormal, (m, q, q)."""
    basis, symmetric = _orthonormal(matrices), _symmetric(matrices)
    images = (symmetric[:, None] @ basis - basis @ symmetric[:, None]).flatten(1)
    values, vectors = torch.linalg.eigh(images @ images.T)
    return torch.einsum("ab,aij->bij", vectors[:, values <= atol], symmetric)


def _orthonormal(matrices: Tensor) -> Tensor:
    return torch.linalg.qr(matrices.flatten(1).T)[0].T.reshape(-1, *matrices.shape[1:])


def _symmetric(matrices: Tensor) -> Tensor:
    """Return an orthonormal basis of the symmetric matrices of the same size, (q (q + 1) / 2, q, q)."""
    q = matrices.shape[1]
    rows, columns = torch.triu_indices(q, q)
    basis = torch.zeros(len(rows), q, q, dtype=matrices.dtype)
    basis[torch.arange(len(rows)), rows, columns] = 1.0
    basis[torch.arange(len(rows)), columns, rows] = 1.0
    return basis / basis.flatten(1).norm(dim=1)[:, None, None]


def nilpotent(matrix: Tensor, atol: float = 1e-6) -> bool:
    """Return whether ||A^q|| <= atol ||A||^q: whether all eigenvalues are 0."""
    power = torch.linalg.matrix_power(matrix / max(float(matrix.norm()), 1e-300), len(matrix))
    return float(power.norm()) <= atol


def rotation_blocks(matrices: Tensor, exact: bool) -> list[Tensor]:
    """Return orthonormal bases, (q, n_b), of spaces such that the algebra is so(n_1) + so(n_2) + ...

    A single space is tried first: k = n (n - 1) / 2 matrices that rotate n directions, the eigenvectors of the Casimir
    matrix with the largest eigenvalues. Otherwise the space is split into the eigenspaces of the symmetric matrices
    that commute with all of them. The list is empty if the dimensions do not add up to k: the algebra is then not a sum
    of so(n_b).

    Parameters
    ----------
    matrices : Tensor
        A basis of antisymmetric matrices, (k, q, q).
    exact : bool
        Whether they are exact up to round-off; otherwise, up to about ten percent.

    Examples
    --------
    >>> turn = torch.zeros(1, 3, 3, dtype=torch.float64)
    >>> turn[0, 0, 2], turn[0, 2, 0] = 1.0, -1.0
    >>> rotation_blocks(turn, exact=True)[0].abs().sum(1).tolist()
    [1.0, 0.0, 1.0]
    """
    k = len(matrices)
    levels, vectors = torch.linalg.eigh(casimir(matrices))
    n = (1 + math.isqrt(1 + 8 * k)) // 2
    if n * (n - 1) // 2 == k and n <= len(levels):
        lowest, below = float(levels[-n]), float(levels[-n - 1]) if n < len(levels) else 0.0
        apart, alike = (1e-6, 1 + 1e-6) if exact else (0.5, 2.0)
        if below <= apart * lowest and float(levels[-1]) <= alike * lowest:
            return [vectors[:, -n:]]
    moved = vectors[:, levels > (1e-6 if exact else 0.1) * levels[-1]]
    symmetric = commutant(moved.T @ matrices @ moved, 1e-8 if exact else 0.3)
    count = len(symmetric)
    if not 0 < count <= moved.shape[1]:
        return []
    weights = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=matrices.dtype)
    values, split = torch.linalg.eigh(torch.einsum("c,cij->ij", weights, symmetric))
    cuts = sorted((values[1:] - values[:-1]).argsort(descending=True)[: count - 1].tolist())
    ends = [0, *(cut + 1 for cut in cuts), len(values)]
    blocks = [moved @ split[:, a:b] for a, b in itertools.pairwise(ends)]
    sizes = [block.shape[1] for block in blocks]
    return blocks if min(sizes) >= 2 and sum(math.comb(size, 2) for size in sizes) == k else []
