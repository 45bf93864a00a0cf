"""Derivatives of a module at samples, in pieces: by products of weights for MLPs, else by automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import kinks
from bnrank.measures.backward import Layers, sweep
from bnrank.measures.kinks import Watch
from bnrank.networks.functional import Functional, check_finite, example, is_plain_mlp, unwrap

__all__ = ["Points", "check_samplewise", "orthonormal"]

CHUNK_ENTRIES = 2**24  # float64 numbers of the largest intermediate tensor of modules other than MLP: 128 MiB
INDEPENDENT = 1e-10  # least singular value, over the largest, of a basis with columns of length 1


class Points:
    """A module and samples to differentiate it at, checked.

    Parameters
    ----------
    module, x, chunk, dtype, tangent
        As in :func:`bnrank.jacobian.jacobians`.

    Attributes
    ----------
    x : Tensor
        (N, ...).
    tangent : Tensor or None
        Orthonormal, (d_in, m) or (N, d_in, m).
    layers : Layers or None
        Of an MLP.
    function : Functional or None
        Of any other module.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Tensor | np.ndarray,
        chunk: int | None = None,
        dtype: torch.dtype = torch.float64,
        tangent: Tensor | np.ndarray | None = None,
    ) -> None:
        net = unwrap(net)
        self.x = example(net, x).detach()
        if not self.x.is_floating_point():
            raise TypeError(f"x: got dtype {self.x.dtype}, expected floating point to differentiate by")
        check_finite(net)
        self.chunk = None if chunk is None else validation.integer(chunk, "chunk")
        self.layers: Layers | None = None
        self.function: Functional | None = None
        if is_plain_mlp(net):
            self.layers = Layers.of(net, dtype)
            self.x = self.x.to(self.layers.weights[0].device)
        else:
            self.function = Functional(net, dtype)
            self.x = self.x.to(self.function.device)
        self.tangent: Tensor | None = None
        if tangent is not None:
            basis = orthonormal(tangent, len(self.x), self.x[0].numel())
            self.tangent = basis.to(self.x.device, dtype)

    def jacobians(
        self, watch: Watch | None = None, *, compact: bool = False, trace: bool = False
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Iterate over Jf(x_i) Q, (n, d_out, m), and (MLPs) the NTK trace, (n,); see `sweep` for ``compact``."""
        if self.layers is None:
            return ((j, None) for j in self._automatic(watch))
        pieces = sweep(
            self.layers, self.x, chunk=self.chunk, trace=trace, compact=compact, tangent=self.tangent, watch=watch
        )
        return ((j, t) for j, t in pieces if j is not None)

    def singular_values(self, watch: Watch | None = None, *, trace: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return all singular values, (N, min(m, d_out)), and (MLPs, if asked for) the NTK traces, (N,)."""
        values, traces = [], []
        for jacobian, part in self.jacobians(watch, compact=True, trace=trace):
            if not bool(torch.isfinite(jacobian).all()):
                raise validation.RangeError("net: its Jacobian has NaN or infinite entries, expected finite ones")
            found = torch.linalg.svdvals(jacobian.double())
            if self.layers is not None:  # the rest, left out of a compact Jacobian, is 0
                m = self.layers.widths[0] if self.tangent is None else self.tangent.shape[-1]
                found = nn.functional.pad(found, (0, min(m, self.layers.widths[-1]) - found.shape[1]))
            values.append(found)
            if part is not None:
                traces.append(part.double())
        return torch.cat(values), torch.cat(traces) if traces else None

    def look(self, watch: Watch) -> None:
        """Tell ``watch`` which samples are near a kink, by forward passes alone."""
        if self.layers is None:
            assert self.function is not None
            check_samplewise(self.function, self.x)
            for part, basis in self._parts(self.chunk or 4096):
                watch.add(kinks.of_module(self.function, part, watch.rtol, basis))
            return
        for _ in sweep(self.layers, self.x, chunk=self.chunk, jacobian=False, tangent=self.tangent, watch=watch):
            pass

    def _parts(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Iterate over samples in the function's precision, with their tangents."""
        assert self.function is not None
        for begin in range(0, len(self.x), size):
            here = slice(begin, begin + size)
            basis = self.tangent[here] if self.tangent is not None and self.tangent.ndim == 3 else self.tangent
            yield self.x[here].to(self.function.dtype), basis

    def _automatic(self, watch: Watch | None) -> Iterator[Tensor]:
        function = self.function
        assert function is not None
        d_out = check_samplewise(function, self.x)
        for piece, basis in self._parts(self.chunk or max(1, CHUNK_ENTRIES // (self.x[0].numel() * d_out))):
            if watch is not None:
                watch.add(kinks.of_module(function, piece, watch.rtol, basis))
            part = piece.clone().requires_grad_(True)
            with torch.enable_grad():
                out = function(part).reshape(len(part), -1)
                columns, ones = out.unbind(1), torch.ones_like(out[:, 0])
            if not out.requires_grad:
                raise ValueError(f"net: the output of {type(function.module).__name__} cannot be differentiated in x")
            rows = []
            for j in range(d_out):
                (row,) = torch.autograd.grad(columns[j], part, ones, retain_graph=True, materialize_grads=True)
                rows.append(row.flatten(1))
            jacobian = torch.stack(rows, 1)
            yield jacobian if basis is None else jacobian @ basis


def orthonormal(tangent: object, n: int, d_in: int) -> Tensor:
    """Return the Gram-Schmidt basis of the columns, float64, (d_in, m) or (N, d_in, m); refuse dependent ones."""
    if isinstance(tangent, np.ndarray) and tangent.dtype.kind == "f":
        tangent = torch.from_numpy(np.ascontiguousarray(tangent))
    if not isinstance(tangent, Tensor) or not tangent.is_floating_point():
        raise TypeError(f"tangent: got {validation.describe(tangent)}, expected a floating-point Tensor or ndarray")
    shape = tuple(tangent.shape)
    if len(shape) not in (2, 3) or shape[-2] != d_in or not 1 <= shape[-1] <= d_in or shape[:-2] not in ((), (n,)):
        raise ValueError(
            f"tangent: got shape {shape}, expected columns (d_in, m) or (N, d_in, m) with d_in = {d_in}, N = {n} and "
            f"1 <= m <= {d_in}"
        )
    basis = tangent.detach().double()
    if not bool(torch.isfinite(basis).all()):
        raise ValueError("tangent: got NaN or infinite entries, expected finite ones")
    largest = basis.abs().amax(-2, keepdim=True)
    basis = basis / torch.where(largest > 0, largest, 1.0)  # so that no square under- or overflows
    lengths = torch.linalg.vector_norm(basis, dim=-2, keepdim=True)
    basis = basis / torch.where(lengths > 0, lengths, 1.0)
    values = torch.linalg.svdvals(basis).reshape(-1, shape[-1])
    dependent = (values[:, -1] <= INDEPENDENT * values[:, 0]).nonzero().flatten()
    if len(dependent):
        where = f" at sample {int(dependent[0])}" if len(shape) == 3 else ""
        raise ValueError(f"tangent: got linearly dependent columns{where}, expected a basis")
    q, r = torch.linalg.qr(basis)
    return q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)


def check_samplewise(function: Functional, x: Tensor) -> int:
    """Return d_out; raise if the output for a sample depends on the other samples, as with batch statistics."""
    with torch.no_grad():
        together = function(x[:2])[:1]
        alone = function(x[:1]) if x.shape[0] > 1 else together
    scale = float(together.abs().max()) + float(alone.abs().max())
    tolerance = 1e-6 if function.dtype == torch.float64 else 1e-3
    if together.shape != alone.shape or float((together - alone).abs().max()) > tolerance * scale:
        raise ValueError(
            f"net: the output of {type(function.module).__name__} for one sample depends on the others in its "
            "batch, expected a function of one sample (batch normalization without running statistics?)"
        )
    return together.numel()
