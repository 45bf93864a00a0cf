"""Lie algebras of affine fields: brackets, centers, the lengths they keep, and the blocks they act on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnrank.discovery.symmetry_search.fields import AffineFields, Family

__all__ = [
    "about",
    "bracket_defect",
    "brackets",
    "casimir",
    "center",
    "commutant",
    "invariant_metric",
    "nilpotent",
    "only_constants",
]

PAIRS = 2000


def brackets(fields: Tensor) -> Tensor:
    """Return [v_a, v_b] for a < b, (k (k - 1) / 2, q, q + 1), of fields z -> A z + b, (k, q, q + 1).

    With [A b] extended by a row of zeros it is the commutator of matrices. Of more than 2000 pairs, 2000 are drawn.

    Examples
    --------
    >>> import torch
    >>> turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> along = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> brackets(torch.stack([turn, along])).tolist()                     # the translation along the other axis
    [[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    """
    k, q = fields.shape[:2]
    square = torch.nn.functional.pad(fields, (0, 0, 0, 1))
    first, second = torch.triu_indices(k, k, 1)
    if len(first) > PAIRS:
        drawn = torch.randperm(len(first), generator=torch.Generator().manual_seed(0))[:PAIRS]
        first, second = first[drawn], second[drawn]
    return (square[first] @ square[second] - square[second] @ square[first])[:, :q]


def bracket_defect(family: Family, vectors: Tensor) -> float:
    """Return ||part of the brackets outside the span|| / ||brackets||, root mean square over all pairs of fields.

    0 for a Lie algebra; sqrt(1 - k / p) on average for k random fields of p. Where fields nearly commute, the bottom is
    that of random fields, sqrt(2 / q) per pair of unit fields. NaN for fewer than two fields, among translations, whose
    brackets vanish anyway, and for fields that are not affine.
    """
    if not isinstance(family, AffineFields) or len(vectors) < 2 or only_constants(family):
        return math.nan
    fields = family.combined(vectors)
    found = brackets(fields).flatten(1)
    span = torch.linalg.qr(fields.flatten(1).T)[0]
    size = max(float(found.norm()), math.sqrt(2 * len(found) / fields.shape[1]))
    return float((found - (found @ span) @ span.T).norm()) / size


def only_constants(family: Family) -> bool:
    """Say whether all fields of a family are constant: translations."""
    return isinstance(family, AffineFields) and not bool(family.basis[..., :-1].any())


def center(fields: Tensor, rtol: float) -> Tensor:
    """Return the point c with A c + b nearest to 0 for all fields, nearest to the origin of those, (q,)."""
    matrices = fields[..., :-1].flatten(0, 1)
    return -torch.linalg.pinv(matrices, rtol=rtol) @ fields[..., -1].flatten()


def about(matrices: Tensor, point: Tensor) -> Tensor:
    """Return the fields z -> A (z - c), (k, q, q + 1)."""
    return torch.cat([matrices, -(matrices @ point)[..., None]], -1)


def invariant_metric(matrices: Tensor, guess: Tensor, rtol: float) -> Tensor | None:
    """Return M > 0 with A^T M + M A = 0 for all A, the one nearest to ``guess``, (q, q); None if there is none.

    Solutions are those combinations of symmetric matrices on which the left side is at most ``rtol`` of its largest.
    """
    q = matrices.shape[1]
    rows, columns = torch.triu_indices(q, q)
    basis = torch.zeros(len(rows), q, q, dtype=matrices.dtype)
    basis[torch.arange(len(rows)), rows, columns] = 1.0
    basis[torch.arange(len(rows)), columns, rows] = 1.0
    basis /= basis.flatten(1).norm(dim=1)[:, None, None]
    products = basis[:, None] @ matrices
    images = (products + products.transpose(-1, -2)).flatten(1)
    values, vectors = torch.linalg.eigh(images @ images.T)
    solutions = torch.einsum("ab,aij->bij", vectors[:, values <= rtol**2 * values[-1]], basis)
    metric = torch.einsum("b,bij->ij", torch.einsum("bij,ij->b", solutions, guess), solutions)
    smallest = float(torch.linalg.eigvalsh(metric)[0]) if len(solutions) else 0.0
    return metric if smallest > 1e-3 * float(torch.linalg.matrix_norm(metric, 2)) else None


def casimir(matrices: Tensor) -> Tensor:
    """Return sum_a R_a^T R_a over an orthonormal basis of the span of antisymmetric matrices, (q, q).

    (n - 1) / 2 on a block of n coordinates that is turned in every way, 0 on what is not turned.
    """
    basis = torch.linalg.qr(matrices.flatten(1).T)[0].T.reshape(-1, *matrices.shape[1:])
    return (basis.transpose(1, 2) @ basis).sum(0)


def commutant(matrices: Tensor, tol: float) -> Tensor:
    """Return a basis of the symmetric S with sum_a ||[R_a, S]||^2 <= tol ||S||^2, R_a orthonormal, (m, q, q)."""
    q = matrices.shape[1]
    basis = torch.linalg.qr(matrices.flatten(1).T)[0].T.reshape(-1, q, q)
    rows, columns = torch.triu_indices(q, q)
    symmetric = torch.zeros(len(rows), q, q, dtype=matrices.dtype)
    symmetric[torch.arange(len(rows)), rows, columns] = 1.0
    symmetric[torch.arange(len(rows)), columns, rows] = 1.0
    symmetric /= symmetric.flatten(1).norm(dim=1)[:, None, None]
    products = symmetric[:, None] @ basis - basis @ symmetric[:, None]
    images = products.flatten(1)
    values, vectors = torch.linalg.eigh(images @ images.T)
    return torch.einsum("ab,aij->bij", vectors[:, values <= tol], symmetric)


def nilpotent(matrix: Tensor, tol: float = 1e-6) -> bool:
    """Say whether A^q = 0 up to tol^q ||A||^q: whether all eigenvalues are 0."""
    power = torch.linalg.matrix_power(matrix / max(float(matrix.norm()), 1e-300), len(matrix))
    return float(power.norm()) <= tol
