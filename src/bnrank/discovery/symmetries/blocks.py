"""The spaces that an algebra of rotations turns in every way, each by itself."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from bnrank.discovery.symmetries.algebra import casimir, commutant

__all__ = ["rotation_blocks"]


def rotation_blocks(matrices: Tensor, exact: bool) -> list[Tensor]:
    """Return orthonormal bases, (q, n_b), of spaces such that the algebra is so(n_1) + so(n_2) + ...

    One space is tried first: k = n (n - 1) / 2 matrices that turn n directions, those of the largest eigenvalues of the
    Casimir matrix. Else the symmetric matrices that commute with all are split by their eigenspaces. An empty list if
    the dimensions do not add up to k: another algebra.

    Parameters
    ----------
    matrices : Tensor
        A basis of antisymmetric matrices, (k, q, q).
    exact : bool
        Whether they are exact up to rounding, or up to some ten percent.

    Examples
    --------
    >>> import torch
    >>> turn = torch.zeros(1, 3, 3, dtype=torch.float64)
    >>> turn[0, 0, 2], turn[0, 2, 0] = 1.0, -1.0
    >>> rotation_blocks(turn, exact=True)[0].abs().sum(1).tolist()
    [1.0, 0.0, 1.0]
    """
    k = len(matrices)
    levels, vectors = torch.linalg.eigh(casimir(matrices))
    n = (1 + math.isqrt(1 + 8 * k)) // 2
    if n * (n - 1) // 2 == k and n <= len(levels):
        lowest = float(levels[-n])
        below = float(levels[-n - 1]) if n < len(levels) else 0.0
        if (
            below <= (1e-6 if exact else 0.5) * lowest
            and float(levels[-1]) <= (1.0 + (1e-6 if exact else 1.0)) * lowest
        ):
            return [vectors[:, -n:]]
    moved = vectors[:, levels > (1e-6 if exact else 0.1) * levels[-1]]
    inside = moved.T @ matrices @ moved
    symmetric = commutant(inside, 1e-8 if exact else 0.3)
    count = len(symmetric)
    if not 0 < count <= moved.shape[1]:
        return []
    weights = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=matrices.dtype)
    values, split = torch.linalg.eigh(torch.einsum("c,cij->ij", weights, symmetric))
    cuts = sorted((values[1:] - values[:-1]).argsort(descending=True)[: count - 1].tolist())
    ends = [0, *(cut + 1 for cut in cuts), len(values)]
    blocks = [moved @ split[:, a:b] for a, b in itertools.pairwise(ends)]
    if any(block.shape[1] < 2 for block in blocks):
        return []
    return blocks if sum(math.comb(block.shape[1], 2) for block in blocks) == k else []
