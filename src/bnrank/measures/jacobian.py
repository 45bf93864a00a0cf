"""Jacobians of the network function at the samples: spectra, rank, log pseudo-determinant and Schatten norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.backward import mlp_forward
from bnrank.measures.derivatives import Points
from bnrank.measures.kinks import KinkWarning, Watch
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import example

__all__ = [
    "JacobianRank",
    "KinkWarning",
    "jacobians",
    "log_pseudo_determinant",
    "log_pseudo_determinant_of",
    "mlp_forward",
    "near_kinks",
    "rank",
    "schatten",
    "singular_values",
]

KINK_RTOL = 1e-12


@dataclass(frozen=True)
class JacobianRank:
    """Largest rank of the Jacobian over a sample, with its witness.

    Attributes
    ----------
    rank : int
        max_i rank Jf(x_i): a lower bound on Rank_J(f), which is the maximum over all of the domain (T18).
    witness : int
        Row of x where it is attained; of several, the one with the largest s_rank / s_1.
    point : Tensor
        That sample.
    singular_values : Tensor
        Of Jf(point), (min(d_in, d_out),).
    rtol : float
        Values above ``rtol`` times the largest at the same sample count.
    """

    rank: int
    witness: int
    point: Tensor
    singular_values: Tensor
    rtol: float


def jacobians(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
    kink_rtol: float | None = KINK_RTOL,
) -> Iterator[Tensor]:
    """Iterate over Jf(x_i), chunks of shape (n, d_out, d_in) in the order of the samples.

    MLPs: the product W_L D_{L-1} ... D_1 W_1 (docs/theory.md), from its narrower end, at kinks with the derivative
    s that PyTorch takes. Other modules: one backward pass per output. Inputs and outputs with more dimensions are
    flattened. Parameters that are shared make no difference.

    Parameters
    ----------
    net : torch.nn.Module
        Any module that treats samples one by one; in eval mode, left as it was.
    x : Tensor or ndarray
        Samples, (N, ...), floating point.
    chunk : int, optional
        Samples at a time; by default a number that bounds the memory (MLPs: 2^20 numbers, others: 2^24).
    dtype : torch.dtype
        Precision.
    tangent : Tensor or ndarray, optional
        Basis of the tangent space of the data, columns of shape (d_in, m) or, one per sample, (N, d_in, m). It is
        orthonormalized (Gram-Schmidt, so an orthonormal one is kept) to Q, and the result is the restriction
        Jf(x_i) Q, (n, d_out, m).
    kink_rtol : float or None
        A sample is near a kink if a preactivation z = w.a + b that depends on x (along the tangents) has
        |z| <= kink_rtol (sum_j |w_j| |a_j| + |b|); 0 means on it. Of modules other than MLP the arguments of relu and
        the like are looked at, against the largest argument of the same operation. One :class:`KinkWarning` per call,
        after the last chunk, says how many there are. None: they are not looked for.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the module has NaN or infinite parameters or cannot be run on x, its output is
        not differentiable in x, the output for one sample depends on the others, or the tangents are linearly
        dependent.

    Warns
    -----
    KinkWarning
        If samples lie near a kink.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[2.0, -1.0]])
    >>> next(jacobians(torch.nn.ReLU(), x))
    tensor([[[1., 0.],
             [0., 0.]]], dtype=torch.float64)
    >>> next(jacobians(torch.nn.ReLU(), x, tangent=torch.tensor([[3.0], [4.0]])))
    tensor([[[0.6000],
             [0.0000]]], dtype=torch.float64)
    """
    return _warning(Points(net, x, chunk, dtype, tangent), _watch(kink_rtol))


def _warning(points: Points, watch: Watch | None) -> Iterator[Tensor]:
    for jacobian, _ in points.jacobians(watch):
        yield jacobian
    if watch is not None:
        watch.warn(2)


def singular_values(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
    kink_rtol: float | None = KINK_RTOL,
) -> Tensor:
    """Return the singular values of Jf(x_i), or of Jf(x_i) Q with tangents, for every sample.

    Parameters, errors and warnings are those of :func:`jacobians`.

    Returns
    -------
    Tensor
        (N, min(d_in, d_out)), with tangents (N, min(m, d_out)), float64, descending.

    Examples
    --------
    >>> import torch
    >>> singular_values(torch.nn.Softplus(), torch.zeros(1, 3))
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    watch = _watch(kink_rtol)
    values, _ = Points(net, x, chunk, dtype, tangent).singular_values(watch)
    if watch is not None:
        watch.warn(2)
    return values


def rank(
    net: nn.Module,
    x: Tensor | np.ndarray,
    rtol: float = 1e-6,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
    kink_rtol: float | None = KINK_RTOL,
) -> JacobianRank:
    """Return the largest rank of the Jacobian over the sample, with the sample where it is attained (T18).

    With tangents to the domain Omega, the rank of Jf on T_x Omega.

    Parameters
    ----------
    module, x, chunk, dtype, tangent, kink_rtol
        As in :func:`jacobians`.
    rtol : float
        Singular values above ``rtol`` times the largest at the same sample count.

    Returns
    -------
    JacobianRank
        Rank, witness, singular values and tolerance.

    Raises
    ------
    TypeError, ValueError
        As :func:`jacobians`, or if ``rtol`` is not in [0, 1).

    Examples
    --------
    >>> import torch
    >>> found = rank(torch.nn.ReLU(), torch.tensor([[-1.0, -1.0], [2.0, -1.0]]))
    >>> found.rank, found.witness
    (1, 1)
    """
    rtol = validation.rtol(rtol)
    watch = _watch(kink_rtol)
    values, _ = Points(net, x, chunk, dtype, tangent).singular_values(watch)
    if watch is not None:
        watch.warn(2)
    counts = (values > rtol * values[:, :1]).sum(1)
    most = int(counts.max())
    margin = values[:, max(most - 1, 0)] / values[:, 0].clamp(min=torch.finfo(torch.float64).tiny)
    witness = int(margin.argmax())  # where fewer values count, the margin is at most rtol
    point = example(net, x)[witness].detach().clone()
    return JacobianRank(most, witness, point, values[witness].cpu(), rtol)


def log_pseudo_determinant(
    net: nn.Module,
    x: Tensor | np.ndarray,
    rank: int | None = None,
    *,
    rtol: float = 1e-6,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
    kink_rtol: float | None = KINK_RTOL,
) -> Tensor:
    """Return log |Jf(x_i)|_+, the sum of the logs of the non-zero singular values, for every sample (T7).

    Parameters
    ----------
    module, x, chunk, dtype, tangent, kink_rtol
        As in :func:`jacobians`.
    rank : int, optional
        Take the largest ``rank`` singular values of every sample; -inf where one of them is 0.
    rtol : float
        Without ``rank``: take those above ``rtol`` times the largest; 0 (the empty product) where all are 0.

    Returns
    -------
    Tensor
        (N,), float64. Natural logarithm.

    Raises
    ------
    TypeError, ValueError
        As :func:`jacobians`, or if ``rank`` or ``rtol`` is out of range.

    Examples
    --------
    >>> import torch, math
    >>> values = log_pseudo_determinant(torch.nn.Softplus(), torch.zeros(1, 3))
    >>> math.isclose(values.item(), 3 * math.log(0.5))
    True
    """
    watch = _watch(kink_rtol)
    values, _ = Points(net, x, chunk, dtype, tangent).singular_values(watch)
    if watch is not None:
        watch.warn(2)
    return log_pseudo_determinant_of(values, rank, rtol)


def log_pseudo_determinant_of(values: Tensor, rank: int | None = None, rtol: float = 1e-6) -> Tensor:
    """Return log |.|_+, (N,), of matrices with the given singular values, (N, K) descending."""
    if rank is not None:
        rank = validation.integer(rank, "rank", 0)
        if rank > values.shape[1]:
            raise ValueError(f"rank: got {rank}, expected at most min(d_in, d_out) = {values.shape[1]}")
        return values[:, :rank].log().sum(1)
    counted = values > validation.rtol(rtol) * values[:, :1]
    return torch.where(counted, values, 1.0).log().sum(1)


def schatten(
    net: nn.Module,
    x: Tensor | np.ndarray,
    depth: int | None = None,
    *,
    rtol: float = 1e-12,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
    kink_rtol: float | None = KINK_RTOL,
) -> Tensor:
    """Return sum_k s_k(Jf(x_i))^{2/L}, the Schatten norm ||Jf||_{2/L}^{2/L}, for every sample (T4).

    L times it is at most ||theta||^2 of any network of depth L that computes f.

    Parameters
    ----------
    module, x, chunk, dtype, tangent, kink_rtol
        As in :func:`jacobians`.
    depth : int, optional
        L; by default the number of weight layers, where the module is a chain of them.
    rtol : float
        Singular values up to ``rtol`` times the largest of the same sample count as 0: what rounding leaves of a zero,
        1e-17, has the power 0.04 at L = 24.

    Returns
    -------
    Tensor
        (N,), float64.

    Raises
    ------
    TypeError, ValueError
        As :func:`jacobians`, or if ``rtol`` is out of range, or ``depth`` is missing for a module that is no chain.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    >>> for layer in net:
    ...     _ = layer.weight.data.copy_(torch.diag(torch.tensor([2.0, 3.0])))
    >>> schatten(net, torch.ones(1, 2))                       # singular values 4 and 9, L = 2
    tensor([13.], dtype=torch.float64)
    """
    rtol = validation.rtol(rtol)
    depth = _depth(net) if depth is None else validation.integer(depth, "depth")
    watch = _watch(kink_rtol)
    values, _ = Points(net, x, chunk, dtype, tangent).singular_values(watch)
    if watch is not None:
        watch.warn(2)
    return torch.where(values > rtol * values[:, :1], values, 0.0).pow(2 / depth).sum(1)


def near_kinks(
    net: nn.Module,
    x: Tensor | np.ndarray,
    rtol: float = KINK_RTOL,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    tangent: Tensor | np.ndarray | None = None,
) -> Tensor:
    """Say which samples are near a kink, where the Jacobian is that of one side only, by forward passes alone.

    Parameters and errors are those of :func:`jacobians`, ``rtol`` is its ``kink_rtol``.

    Returns
    -------
    Tensor
        (N,), bool.

    Examples
    --------
    >>> import torch
    >>> near_kinks(torch.nn.ReLU(), torch.tensor([[2.0, -1.0], [2.0, 0.0]]))
    tensor([False,  True])
    """
    watch = Watch(validation.number(rtol, "rtol", 0.0))
    Points(net, x, chunk, dtype, tangent).look(watch)
    return watch.found


def _depth(net: nn.Module) -> int:
    try:
        return as_mlp(net).depth
    except TypeError as error:
        reason = str(error).removeprefix("net: ")
        raise ValueError(f"depth: got None, expected L of a module that is no chain of layers ({reason})") from error


def _watch(kink_rtol: float | None) -> Watch | None:
    return None if kink_rtol is None else Watch(validation.number(kink_rtol, "kink_rtol", 0.0))
