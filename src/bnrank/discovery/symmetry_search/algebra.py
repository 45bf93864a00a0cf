"""Lie algebras of affine fields: brackets, centers, invariant metrics, and the blocks of rotations."""

import itertools
import math

import torch
from torch import Tensor

from bnrank.discovery.symmetry_search.fields import AffineFields, Family

MAX_PAIRS = 2000


def brackets(fields: Tensor) -> Tensor:
    """Return [v_a, v_b] for a < b, (k (k - 1) / 2, q, q + 1), of fields z -> A z + b, (k, q, q + 1).

    With [A b] extended by a row of zeros it is the commutator of matrices. At most 2000 random pairs are used.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> along = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> brackets(torch.stack([turn, along])).tolist()                     # the translation along the other axis
    [[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    """
    k, q = fields.shape[:2]
    square = torch.nn.functional.pad(fields, (0, 0, 0, 1))
    first, second = torch.triu_indices(k, k, 1)
    if len(first) > MAX_PAIRS:
        drawn = torch.randperm(len(first), generator=torch.Generator().manual_seed(0))[:MAX_PAIRS]
        first, second = first[drawn], second[drawn]
    return (square[first] @ square[second] - square[second] @ square[first])[:, :q]


def bracket_defect(family: Family, vectors: Tensor) -> float:
    """Return ||part of the brackets outside the span|| / ||brackets||, root mean square over all pairs of fields.

    0 for a Lie algebra; sqrt(1 - k / p) on average for k random fields of p. The denominator is at least that of random
    fields, sqrt(2 / q) per pair of unit fields. NaN for fewer than two fields, for translations, whose brackets vanish,
    and for fields that are not affine.
    """
    if not isinstance(family, AffineFields) or len(vectors) < 2 or only_constants(family):
        return math.nan
    fields = family.combined(vectors)
    found = brackets(fields).flatten(1)
    span = torch.linalg.qr(fields.flatten(1).T)[0]
    size = max(float(found.norm()), math.sqrt(2 * len(found) / fields.shape[1]))
    return float((found - (found @ span) @ span.T).norm()) / size


def only_constants(family: Family) -> bool:
    """Return whether all fields of a family are constant: translations."""
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

    A single space is tried first: k = n (n - 1) / 2 matrices that rotate n directions, those of the largest eigenvalues
    of the Casimir matrix. Otherwise the symmetric matrices that commute with all are split by their eigenspaces. The
    list is empty if the dimensions do not add up to k: another algebra.

    Parameters
    ----------
    matrices : Tensor
        A basis of antisymmetric matrices, (k, q, q).
    exact : bool
        Whether they are exact up to rounding, or up to about ten percent.

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
