"""How similar two representations of the same samples are: linear CKA, canonical correlations, angles of subspaces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.validation import Data

__all__ = ["cca", "cka", "principal_angles"]

Array = NDArray[np.float64]

CONSTANT = 1e-14  # of the norm of a representation: what centering leaves of a constant one is rounding
ROUNDING = 1e-12  # of the largest eigenvalue of a Gram matrix


def cka(a: Data, b: Data, *, debiased: bool = False) -> float:
    """Return the linear CKA of two representations of the same samples: 1 if one is a rotated and scaled other.

    With the Gram matrices K = A A^T and L = B B^T and the centering H = I - 11^T / N,

        CKA = <H K H, H L H>_F / (||H K H||_F ||H L H||_F),

    invariant under orthogonal transformations of the columns of A and of B, shifts, and scalings. With fewer samples
    than features, independent representations have a CKA near 1; ``debiased`` replaces each inner product by the
    unbiased estimator of the Hilbert-Schmidt independence criterion, which needs 4 samples: for Gram matrices with the
    diagonal set to 0,

        HSIC(K, L) = (tr K L + (1^T K 1) (1^T L 1) / ((N-1) (N-2)) - 2 (1^T K L 1) / (N-2)) / (N (N-3)).

    It is 0 on average for independent representations and can be negative.

    Parameters
    ----------
    a, b : Tensor or ndarray
        A, (N, n), and B, (N, m): one sample per row, in the same order.
    debiased : bool
        Whether to use the unbiased estimator.

    Returns
    -------
    float
        In [0, 1], with ``debiased`` at most 1 and possibly negative; NaN where a representation is constant, or
        its estimated variance is not positive.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the numbers of samples differ, or there are fewer than 2 samples, with
        ``debiased`` fewer than 4.

    Notes
    -----
    Source: Kornblith, Norouzi, Lee and Hinton, *Similarity of neural network representations revisited* (2019); Song et
    al., *Feature selection via dependence maximization* (2012), for the unbiased estimator.
    The angle whose cosine is CKA is a metric.

    Examples
    --------
    >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    >>> round(cka(x, 3 * x @ rotation + 1), 6), round(cka(x, x[:, :1]), 3)
    (1.0, 0.252)
    """
    debiased = validation.flag(debiased, "debiased")
    a, b = _pair(a, b, 4 if debiased else 2)
    return float(cka_matrix([gram(a)], [gram(b)], debiased=debiased)[0, 0])


def _pair(a: Data, b: Data, min_samples: int) -> tuple[Tensor, Tensor]:
    """Return two matrices with the same rows, of which there are enough."""
    first, second = (validation.array(value, name, "(N, n)", 2) for name, value in (("a", a), ("b", b)))
    validation.expect(len(first) == len(second), "b", f"{len(second)} rows", f"{len(first)}, as many as a has")
    validation.expect(len(first) >= min_samples, "a", f"{len(first)} rows", f"at least {min_samples}")
    return first, second


def gram(rows: Tensor) -> Tensor:
    """Return the centered Gram matrix of rows (N, ...), float64, over its largest entry; 0 if the rows are equal.

    The rows are flattened, divided by their largest entry and centered first: a large mean costs no digits, and squares
    neither overflow nor vanish.

    Examples
    --------
    >>> gram(torch.tensor([[3.0], [-3.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    flat = rows.detach().flatten(1).to(torch.float64) if rows.ndim > 1 else rows.detach().to(torch.float64)[:, None]
    flat = flat / flat.abs().max().clamp(min=torch.finfo(flat.dtype).tiny)
    centered = flat - flat.mean(0)
    if float(centered.norm()) <= CONSTANT * float(flat.norm()) * math.sqrt(len(flat)):
        return torch.zeros(len(flat), len(flat), dtype=torch.float64)
    centered = centered / centered.abs().max()
    products = centered @ centered.T
    return (products / products.abs().max()).cpu()


def cka_matrix(a: Sequence[Tensor], b: Sequence[Tensor], *, debiased: bool = False) -> Array:
    """Return the CKA of every centered Gram matrix of ``a`` with every one of ``b``, (len(a), len(b)).

    Examples
    --------
    >>> grams = [gram(torch.eye(5)[:, :k]) for k in (1, 2)]
    >>> cka_matrix(grams, grams).round(3).tolist()
    [[1.0, 0.729], [0.729, 1.0]]
    """
    prepare = _without_diagonal if debiased else torch.clone
    left, right = ([_unit(prepare(k)) for k in grams] for grams in (a, b))
    found = np.full((len(left), len(right)), math.nan)
    for i, first in enumerate(left):
        for j, second in enumerate(right):
            if first is not None and second is not None:
                found[i, j] = min(float((first * second).sum()), 1.0)
    return found


def _without_diagonal(k: Tensor) -> Tensor:
    """Return the matrix whose inner products are N (N-3) times the unbiased estimator of HSIC."""
    n = len(k)
    k = k - torch.diag(k.diagonal())
    sums = k.sum(0)
    k = k - (sums[:, None] + sums) / (n - 2) + sums.sum() / ((n - 1) * (n - 2))
    return k - torch.diag(k.diagonal())


def _unit(k: Tensor) -> Tensor | None:
    """Return a matrix of norm 1; None for one that is 0 up to rounding."""
    size = float(k.norm())
    return k / size if size > ROUNDING * len(k) else None


def cca(a: Data, b: Data, *, share: float = 0.99) -> float:
    """Return the mean canonical correlation of two representations, each reduced to a share of its variance (SVCCA).

    Each representation is centered and projected on its leading principal components with at least ``share`` of its
    variance, k_a and k_b of them; the result is the mean of the min(k_a, k_b) singular values of U_a^T U_b, with
    orthonormal bases U of the projected samples. It is invariant under orthogonal transformations, shifts, and
    scalings.

    Parameters
    ----------
    a, b : Tensor or ndarray
        As in :func:`cka`.
    share : float
        Share of the variance that is kept, in (0, 1].

    Returns
    -------
    float
        In [0, 1]; NaN where a representation is constant, or where k_a + k_b > N - 1: then so few samples force
        correlations of 1.

    Raises
    ------
    TypeError, ValueError
        As :func:`cka`.

    Notes
    -----
    Source: Raghu, Gilmer, Yosinski and Sohl-Dickstein, *SVCCA* (2017).

    Examples
    --------
    >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    >>> round(cca(x, 2 * x.flip(1)), 9), round(cca(x, torch.cat([x[:, :2], x[:, :2].square()], 1)), 2)
    (1.0, 0.59)
    """
    share = validation.number(share, "share", 0.0, strict=True)
    validation.expect(share <= 1, "share", share, "a number in (0, 1]")
    a, b = _pair(a, b, 2)
    return mean_correlation(components(gram(a), share), components(gram(b), share))


def components(k: Tensor, share: float = 0.99) -> Tensor:
    """Return the leading components of a centered Gram matrix with a share of its trace, (N, k), orthonormal.

    Examples
    --------
    >>> components(gram(torch.tensor([[3.0], [1.0]]))).abs().round(decimals=3).flatten().tolist()
    [0.707, 0.707]
    """
    values, vectors = torch.linalg.eigh(k)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    if not float(values[0]) > 0:
        return vectors[:, :0]
    values = torch.where(values > ROUNDING * values[0], values, 0.0)
    sums = values.cumsum(0)
    count = int((sums < share * sums[-1] * (1 - 1e-12)).sum()) + 1
    return vectors[:, :count]


def mean_correlation(u: Tensor, v: Tensor) -> float:
    """Return the mean cosine of the principal angles of two subspaces of centered samples; NaN where forced to be 1.

    Examples
    --------
    >>> mean_correlation(torch.eye(4)[:, :1], torch.eye(4)[:, 1:2])
    0.0
    """
    if not u.shape[1] or not v.shape[1] or u.shape[1] + v.shape[1] > len(u) - 1:
        return math.nan
    return float(torch.linalg.svdvals(u.T @ v).clamp(max=1).mean())


def principal_angles(a: Data, b: Data) -> Array:
    """Return the principal angles between the column spaces of two matrices, in radians, ascending.

    The first is the least angle between a vector of one space and one of the other; each next one is the least among
    vectors orthogonal to those before. The angles are accurate near 0 and near pi / 2 (Björck and Golub, 1973, and
    Knyazev and Argentati, 2002, by `scipy.linalg.subspace_angles`).

    Parameters
    ----------
    a, b : Tensor or ndarray
        (m, k) and (m, l); columns that depend on the others do not count.

    Returns
    -------
    ndarray
        (min(k, l),), in [0, pi / 2], for columns of full rank.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the numbers of rows differ, or a matrix is 0.

    Examples
    --------
    >>> principal_angles(torch.eye(3)[:, :2], torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])).round(6)
    array([0.      , 0.785398])
    """
    from scipy.linalg import subspace_angles

    scaled = []
    for name, value in zip(("a", "b"), _pair(a, b, 1), strict=True):
        validation.expect(bool((value != 0).any()), name, "a matrix of zeros", "one with a column space")
        scaled.append((value / value.abs().max()).detach().to(torch.float64).cpu().numpy())
    return np.asarray(subspace_angles(*scaled)[::-1]).copy()
