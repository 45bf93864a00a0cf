"""Linear and diagonal networks of least norm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.constructions._layers import DOUBLE, Layers, array
from bnrank.networks.mlp import MLP

__all__ = ["diagonal", "linear"]


def linear(a: Tensor | np.ndarray, depth: int, *, rtol: float | None = None) -> MLP:
    """Return the linear network x -> A x of least norm, ||theta||^2 = L sum_i s_i(A)^(2/L).

    With A = U S V^T of rank k, W_1 = S^(1/L) V^T, W_l = S^(1/L), W_L = U S^(1/L): hidden width k (1 if A = 0), and
    representations with the kernels x^T (A^T A)^(l/L) y, a straight line in log space. At depth 1 it is A itself.

    Parameters
    ----------
    a : Tensor or ndarray
        A, (d_out, d_in).
    depth : int
        L.
    rtol : float, optional
        Singular values up to ``rtol`` times the largest count as 0; by default max(d_out, d_in) times the rounding
        unit of the matrix's precision. It matters: at depth 40 a value of 1e-16 would cost as much as one of 0.16.

    Returns
    -------
    LinearNetwork
        Without biases, in the precision of ``a``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T32, T2, T8; Jacot2023a section 1, Jacot2023b section 2.

    Examples
    --------
    >>> import torch
    >>> net = linear(torch.tensor([[8.0, 0.0], [0.0, 0.0]]), 3)
    >>> net.widths, net(torch.tensor([[1.0, 5.0]])).tolist()
    ([2, 1, 1, 2], [[8.0, 0.0]])
    >>> sum(float((p * p).sum().detach()) for p in net.parameters())     # 3 * 8^(2/3)
    12.0
    """
    matrix, depth = array(a, "a", "(d_out, d_in)", 2), validation.integer(depth, "depth")
    u, s, vh = spectrum(matrix, rtol)
    if depth == 1:
        return Layers([matrix.to(DOUBLE)], [], 1.0, matrix.dtype, matrix.device).network()
    if len(s) == 0:
        u, s, vh = u.new_zeros(len(u), 1), s.new_zeros(1), vh.new_zeros(1, vh.shape[1])
    root = s ** (1 / depth)
    weights = [root[:, None] * vh, *[torch.diag(root)] * (depth - 2), u * root]
    return Layers(weights, [], 1.0, matrix.dtype, matrix.device).network()


def spectrum(matrix: Tensor, rtol: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition in float64 without the values that count as 0."""
    if rtol is None:
        rtol = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rtol = validation.number(rtol, "rtol", 0.0)
    u, s, vh = torch.linalg.svd(matrix.to(DOUBLE), full_matrices=False)
    keep = s > rtol * s[0]
    return u[:, keep], s[keep], vh[keep]


def diagonal(w: Tensor | np.ndarray, depth: int) -> MLP:
    """Return the diagonal linear network x -> w^T x of least norm, ||theta||^2 = L sum_i |w_i|^(2/L).

    W_1 = ... = W_{L-1} = diag(|w_i|^(1/L)), and W_L is the row of the numbers sign(w_i) |w_i|^(1/L).

    Parameters
    ----------
    w : Tensor or ndarray
        The vector w, (d,).
    depth : int
        L.

    Returns
    -------
    LinearNetwork
        Of hidden width d, without biases, in the precision of ``w``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T32, T2; Jacot2023a section 1.

    Examples
    --------
    >>> import torch
    >>> net = diagonal(torch.tensor([4.0, -9.0]), 2)
    >>> net(torch.ones(1, 2)).item(), net.weights[1].tolist()
    (-5.0, [[2.0, -3.0]])
    """
    vector, depth = array(w, "w", "(d,)", 1), validation.integer(depth, "depth")
    root = vector.to(DOUBLE).abs() ** (1 / depth)
    weights = [*[torch.diag(root)] * (depth - 1), (vector.to(DOUBLE).sign() * root)[None]]
    return Layers(weights, [], 1.0, vector.dtype, vector.device).network()
