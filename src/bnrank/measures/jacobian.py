"""Jacobians of the network function at the samples: spectra, rank and log pseudo-determinant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.measures.spectra import relative_tolerance
from bnrank.networks.functional import Functional, example, is_plain_mlp
from bnrank.networks.mlp import MLP, leaky_relu

__all__ = ["JacobianRank", "jacobians", "log_pseudo_determinant", "rank", "singular_values"]

CHUNK_ENTRIES = 2**24  # float64 numbers of the largest intermediate tensor: 128 MiB


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
    module: nn.Module,
    x: Tensor | np.ndarray,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Iterator[Tensor]:
    """Iterate over Jf(x_i), chunks of shape (n, d_out, d_in) in the order of the samples.

    MLPs: the product W_L D_{L-1} ... D_1 W_1 (theory.md section 0), at kinks with the derivative s that
    PyTorch takes. Other modules: one backward pass per output. Inputs and outputs with more dimensions
    are flattened.

    Parameters
    ----------
    module : torch.nn.Module
        Any module that treats samples one by one; in eval mode, left as it was.
    x : Tensor or ndarray
        Samples, (N, ...), floating point.
    chunk : int, optional
        Samples at a time; by default as many as keep a tensor within 2^24 numbers.
    dtype : torch.dtype
        Precision.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the module cannot be run on x, its output is not differentiable in x, or
        the output for one sample depends on the others.

    Examples
    --------
    >>> import torch
    >>> next(jacobians(torch.nn.ReLU(), torch.tensor([[2.0, -1.0]])))
    tensor([[[1., 0.],
             [0., 0.]]], dtype=torch.float64)
    """
    x = example(module, x)
    if not x.is_floating_point():
        raise TypeError(f"x: got dtype {x.dtype}, expected floating point to differentiate by")
    if chunk is not None:
        chunk = _validate.integer(chunk, "chunk")
    if is_plain_mlp(module):
        return _mlp_jacobians(module, x, chunk, dtype)
    return _any_jacobians(Functional(module, dtype), x, chunk)


def singular_values(
    module: nn.Module,
    x: Tensor | np.ndarray,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the singular values of Jf(x_i) for every sample.

    Parameters and errors are those of :func:`jacobians`.

    Returns
    -------
    Tensor
        (N, min(d_in, d_out)), float64, descending.

    Examples
    --------
    >>> import torch
    >>> singular_values(torch.nn.Softplus(), torch.zeros(1, 3))
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    values = []
    for jacobian in jacobians(module, x, chunk=chunk, dtype=dtype):
        if not bool(torch.isfinite(jacobian).all()):
            raise ValueError("module: its Jacobian has NaN or infinite entries, expected finite ones")
        values.append(torch.linalg.svdvals(jacobian.double()))
    return torch.cat(values)


def rank(
    module: nn.Module,
    x: Tensor | np.ndarray,
    rtol: float = 1e-6,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> JacobianRank:
    """Return the largest rank of the Jacobian over the sample, with the sample where it is attained (T18).

    Parameters
    ----------
    module, x, chunk, dtype
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
    rtol = relative_tolerance(rtol)
    values = singular_values(module, x, chunk=chunk, dtype=dtype)
    counts = (values > rtol * values[:, :1]).sum(1)
    most = int(counts.max())
    margin = values[:, max(most - 1, 0)] / values[:, 0].clamp(min=torch.finfo(torch.float64).tiny)
    witness = int(margin.argmax())  # where fewer values count, the margin is at most rtol
    point = example(module, x)[witness].detach().clone()
    return JacobianRank(most, witness, point, values[witness].cpu(), rtol)


def log_pseudo_determinant(
    module: nn.Module,
    x: Tensor | np.ndarray,
    rank: int | None = None,
    *,
    rtol: float = 1e-6,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return log |Jf(x_i)|_+, the sum of the logs of the non-zero singular values, for every sample (T7).

    Parameters
    ----------
    module, x, chunk, dtype
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
    values = singular_values(module, x, chunk=chunk, dtype=dtype)
    return log_pseudo_determinant_of(values, rank, rtol)


def log_pseudo_determinant_of(values: Tensor, rank: int | None = None, rtol: float = 1e-6) -> Tensor:
    """Return log |.|_+, (N,), of matrices with the given singular values, (N, K) descending."""
    if rank is not None:
        rank = _validate.integer(rank, "rank", 0)
        if rank > values.shape[1]:
            raise ValueError(f"rank: got {rank}, expected at most min(d_in, d_out) = {values.shape[1]}")
        return values[:, :rank].log().sum(1)
    counted = values > relative_tolerance(rtol) * values[:, :1]
    return torch.where(counted, values, 1.0).log().sum(1)


def mlp_forward(net: MLP, x: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return the layers' inputs a_0, ..., a_{L-1} and the slopes diag D_1, ..., D_{L-1}, each (n, n_l)."""
    weights, biases = [w.detach().to(dtype) for w in net.weights], [b.detach().to(dtype) for b in net.biases]
    inputs, slopes = [x.to(weights[0].device, dtype)], []
    for i, weight in enumerate(weights[:-1]):
        z = inputs[-1] @ weight.T + (biases[i] if biases else 0.0)
        slopes.append(torch.where(z > 0, 1.0, net.slope).to(dtype))  # s at 0, as autograd has it
        inputs.append(leaky_relu(z, net.slope))
    return inputs, slopes


def _mlp_jacobians(net: MLP, x: Tensor, chunk: int | None, dtype: torch.dtype) -> Iterator[Tensor]:
    weights = [w.detach().to(dtype) for w in net.weights]
    from_output = net.widths[-1] <= net.widths[0]
    if chunk is None:
        chunk = max(1, CHUNK_ENTRIES // (max(net.widths) * min(net.widths[0], net.widths[-1])))
    for part in x.split(chunk):
        _, slopes = mlp_forward(net, part, dtype)
        if from_output:
            product = weights[-1].expand(len(part), -1, -1)  # (n, d_out, n_l)
            for weight, d in zip(weights[-2::-1], slopes[::-1], strict=True):
                product = (product * d[:, None, :]) @ weight
        else:
            product = weights[0].expand(len(part), -1, -1)  # (n, n_l, d_in)
            for weight, d in zip(weights[1:], slopes, strict=True):
                product = weight @ (d[:, :, None] * product)
        yield product


def _any_jacobians(function: Functional, x: Tensor, chunk: int | None) -> Iterator[Tensor]:
    x = x.detach().to(function.device, function.dtype)
    d_out = _check_samplewise(function, x)
    for piece in x.split(chunk or max(1, CHUNK_ENTRIES // (x[0].numel() * d_out))):
        part = piece.clone().requires_grad_(True)
        with torch.enable_grad():
            out = function(part).flatten(1)
        if not out.requires_grad:
            raise ValueError(f"module: the output of {type(function.module).__name__} cannot be differentiated in x")
        rows = []
        for j in range(d_out):
            (row,) = torch.autograd.grad(out[:, j].sum(), part, retain_graph=True, materialize_grads=True)
            rows.append(row.flatten(1))
        yield torch.stack(rows, 1)


def _check_samplewise(function: Functional, x: Tensor) -> int:
    """Return d_out; raise if the output for a sample depends on the other samples, as with batch statistics."""
    with torch.no_grad():
        together = function(x[:2])[:1]
        alone = function(x[:1]) if x.shape[0] > 1 else together
    scale = float(together.abs().max()) + float(alone.abs().max())
    tolerance = 1e-6 if function.dtype == torch.float64 else 1e-3
    if together.shape != alone.shape or float((together - alone).abs().max()) > tolerance * scale:
        raise ValueError(
            f"module: the output of {type(function.module).__name__} for one sample depends on the others in its "
            "batch, expected a function of one sample (batch normalisation without running statistics?)"
        )
    return together.numel()
