"""Jacobians of the network function at samples: matrices, spectra, rank, log pseudo-determinant, Schatten norm."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures import kinks, ntk
from bnrank.measures.backward import Layers
from bnrank.measures.kinks import KinkWarning
from bnrank.measures.products import check_samplewise, differentiating
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, example, is_plain_mlp, unwrap

KINK_RTOL = 1e-12
CHUNK_ENTRIES = 2**24  # float64 entries of the Jacobians of a block, for modules other than MLP: 128 MiB


@dataclass(frozen=True)
class JacobianRank(Printed):
    """Largest rank of the Jacobian over a sample, with the point where it is attained.

    Attributes
    ----------
    rank : int
        max_i rank Jf(x_i): a lower bound on Rank_J(f), the maximum over the whole domain (T18).
    witness : int
        Row of x where the maximum is attained; of several, the one with the largest s_rank / s_1.
    point : Tensor
        That sample.
    singular_values : Tensor
        Singular values of Jf(point), (min(d_in, d_out),).
    rtol : float
        Singular values above ``rtol`` times the largest at the same sample count.
    """

    rank: int
    witness: int
    point: Tensor = field(repr=False)
    singular_values: Tensor = field(repr=False)
    rtol: float

    def __str__(self) -> str:
        shown = ", ".join(f"{s:.3g}" for s in self.singular_values[: self.rank + 2].tolist())
        more = ", ..." if len(self.singular_values) > self.rank + 2 else ""
        return f"rank {self.rank} at sample {self.witness} (rtol {self.rtol:g}); singular values {shown}{more}"


class Jacobian(Printed):
    """The Jacobians Jf(x_i) of a module at samples, computed when first accessed and cached.

    MLPs: the product W_L D_{L-1} ... D_1 W_1 (docs/theory/notation.md), from its narrower end, at kinks with the
    derivative s that PyTorch takes. Other modules: one backward pass per output. Inputs and outputs with more
    dimensions are flattened. Shared parameters are supported. Parameters are copied, so that later training of the
    module has no effect.

    Parameters
    ----------
    net : torch.nn.Module
        Any module that treats samples independently; evaluated in eval mode and left unchanged.
    x : Tensor or ndarray
        Samples, (N, ...), floating point.
    kink_rtol : float or None
        A sample is near a kink if a preactivation z = w.a + b that depends on x has
        |z| <= kink_rtol (sum_j |w_j| |a_j| + |b|); with 0, only samples on a kink count. For modules other than MLP,
        the arguments of relu and similar operations are compared with the largest argument of the same operation. The
        first computation issues one :class:`KinkWarning` with the number of such samples. None disables the search.
    chunk_size : int, optional
        Samples per block; by default as many as fit the cache (MLPs) or 2^24 numbers (others).
    dtype : torch.dtype
        Precision of the passes.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the module has NaN or infinite parameters or the tangents are linearly
        dependent; on first access, if the module cannot be run on x, its output is not differentiable in x, or the
        output for one sample depends on the others.

    Warns
    -----
    KinkWarning
        If samples lie near a kink.

    Examples
    --------
    >>> import torch
    >>> J = Jacobian(torch.nn.ReLU(), torch.tensor([[2.0, -1.0]]))
    >>> J.matrices
    tensor([[[1., 0.],
             [0., 0.]]], dtype=torch.float64)
    >>> print(J)
    Jacobian of ReLU at 1 sample of 2 inputs: rank 1 at sample 0 (rtol 1e-06); singular values 1, 0
    """

    def __init__(
        self,
        net: nn.Module,
        x: Data,
        *,
        kink_rtol: float | None = KINK_RTOL,
        chunk_size: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.net = net = unwrap(net)
        self.x = example(net, x).detach()
        floating = self.x.is_floating_point()
        validation.expect(floating, "x", f"dtype {self.x.dtype}", "floating point to differentiate by", TypeError)
        check_finite(net)
        self.dtype = dtype
        self.kink_rtol = None if kink_rtol is None else validation.number(kink_rtol, "kink_rtol", 0.0)
        self.chunk_size = None if chunk_size is None else validation.integer(chunk_size, "chunk_size")
        self._function: Layers | Functional
        self._function = Layers.of(net, dtype, copy=True) if is_plain_mlp(net) else Functional(net, dtype, whole=self.x)
        self._warned = False

    def __str__(self) -> str:
        n, d_in = len(self.x), self.x[0].numel()
        where = f"{n} sample{'s' if n > 1 else ''} of {d_in} inputs"
        return f"Jacobian of {type(self.net).__name__} at {where}: {self.rank()}"

    def chunks(self) -> Iterator[Tensor]:
        """Iterate over Jf(x_i) in blocks (n, d_out, d_in), in the order of the samples; nothing is cached."""
        return self._blocks(compact=False)

    @cached_property
    def matrices(self) -> Tensor:
        """Jf(x_i), (N, d_out, d_in)."""
        return torch.cat(list(self.chunks()))

    @cached_property
    def singular_values(self) -> Tensor:
        """Singular values of Jf(x_i), (N, min(d_in, d_out)), float64, descending.

        Examples
        --------
        >>> Jacobian(torch.nn.Softplus(), torch.zeros(1, 3)).singular_values
        tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
        """
        blocks = (self.matrices,) if "matrices" in vars(self) else self._blocks(compact=True)
        return torch.cat([self._spectrum(matrix) for matrix in blocks])

    @cached_property
    def ntk_trace(self) -> Tensor:
        """Tr Theta(x_i, x_i), (N,), float64 (see :func:`bnrank.ntk.trace`).

        For MLPs, the same pass gives ``singular_values``: the trace is a sum over norms of the products J(a~_l -> f),
        and the last of these, times W_1, is the Jacobian.

        Examples
        --------
        >>> import bnrank
        >>> net = bnrank.MLP([2, 2], bias=False)
        >>> _ = net.weights[0].data.copy_(torch.diag(torch.tensor([3.0, 4.0])))
        >>> J = Jacobian(net, torch.ones(1, 2))
        >>> J.ntk_trace, J.singular_values
        (tensor([4.], dtype=torch.float64), tensor([[4., 3.]], dtype=torch.float64))
        """
        self._warn_of_kinks()
        function, values, traces = self._function, [], []
        if isinstance(function, Layers) and "singular_values" not in vars(self):
            for part in self._parts(function.widths[-1]):
                trace, matrix = function.traced(function.forward(part))
                traces.append(trace)
                values.append(self._spectrum(matrix))
            vars(self)["singular_values"] = torch.cat(values)
            return ntk.finite(torch.cat(traces))
        ntk.check_unshared(self.net)
        return ntk.trace_of(self._function, self.x.to(self._function.device), self.chunk_size)

    def rank(self, rtol: float = 1e-6) -> JacobianRank:
        """Return the largest rank of the Jacobian over the samples, with the sample where it is attained (T18).

        Parameters
        ----------
        rtol : float
            Singular values above ``rtol`` times the largest at the same sample count.

        Raises
        ------
        TypeError, ValueError
            If ``rtol`` is not in [0, 1).

        Examples
        --------
        >>> found = Jacobian(torch.nn.ReLU(), torch.tensor([[-1.0, -1.0], [2.0, -1.0]])).rank()
        >>> found.rank, found.witness
        (1, 1)
        """
        rtol = validation.rtol(rtol)
        values = self.singular_values
        rank = int(linalg.rank(values, rtol).max())
        margin = values[:, max(rank - 1, 0)] / values[:, 0].clamp(min=torch.finfo(torch.float64).tiny)
        witness = int(margin.argmax())  # where fewer values count, the margin is at most rtol
        return JacobianRank(rank, witness, self.x[witness].clone(), values[witness].cpu(), rtol)

    def log_pseudo_determinant(self, rank: int | None = None, *, rtol: float = 1e-6) -> Tensor:
        """Return log |Jf(x_i)|_+, the sum of the logs of the non-zero singular values, (N,), float64 (T7).

        Parameters
        ----------
        rank : int, optional
            Take the largest ``rank`` singular values of every sample; -inf where one of them is 0.
        rtol : float
            Without ``rank``: take the values above ``rtol`` times the largest; the result is 0 (empty product) where
            all are 0.

        Raises
        ------
        TypeError, ValueError
            If ``rank`` or ``rtol`` is out of range.

        Examples
        --------
        >>> Jacobian(torch.nn.Softplus(), torch.zeros(1, 3)).log_pseudo_determinant() / 3       # log 0.5
        tensor([-0.6931], dtype=torch.float64)
        """
        return linalg.log_pseudo_determinant(self.singular_values, rank, rtol)

    def schatten(self, depth: int | None = None, *, rtol: float = 1e-12) -> Tensor:
        """Return sum_k s_k(Jf(x_i))^{2/L}, the Schatten norm ||Jf||_{2/L}^{2/L}, (N,), float64 (T4).

        L times this value is a lower bound on ||theta||^2 of any network of depth L that computes f.

        Parameters
        ----------
        depth : int, optional
            L; by default the number of weight layers if the module is a chain of them.
        rtol : float
            Singular values up to ``rtol`` times the largest of the same sample count as 0.

        Raises
        ------
        TypeError, ValueError
            If ``rtol`` is out of range, or ``depth`` is missing for a module that is not a chain.

        Examples
        --------
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        >>> for layer in net:
        ...     _ = layer.weight.data.copy_(torch.diag(torch.tensor([2.0, 3.0])))
        >>> Jacobian(net, torch.ones(1, 2)).schatten()                # singular values 4 and 9, L = 2
        tensor([13.], dtype=torch.float64)
        """
        if depth is None:
            try:
                depth = as_mlp(self.net).depth
            except TypeError as error:
                what = f"a module that is no chain of layers ({str(error).removeprefix('net: ')})"
                raise ValueError(f"depth: got None, expected L of {what}") from error
        return linalg.schatten(self.singular_values, validation.integer(depth, "depth"), rtol)

    def near_kinks(self, rtol: float | None = None) -> Tensor:
        """Return a mask of the samples near a kink, where the Jacobian is one-sided, (N,), bool.

        Requires forward passes only.

        Parameters
        ----------
        rtol : float, optional
            Tolerance as ``kink_rtol``, which is the default (1e-12 where that is None).

        Examples
        --------
        >>> Jacobian(torch.nn.ReLU(), torch.tensor([[2.0, -1.0], [2.0, 0.0]])).near_kinks()
        tensor([False,  True])
        """
        default = KINK_RTOL if self.kink_rtol is None else self.kink_rtol
        rtol = default if rtol is None else validation.number(rtol, "rtol", 0.0)
        function, parts = self._function, self._parts()
        if isinstance(function, Layers):
            return torch.cat([kinks.of_layers(function, function.forward(part), rtol) for part in parts])
        return torch.cat([kinks.of_module(function, part, rtol) for part in parts])

    def _spectrum(self, matrices: Tensor) -> Tensor:
        """Return the singular values of a block of Jacobians; those omitted by compact ones are 0."""
        if not bool(torch.isfinite(matrices).all()):
            raise validation.RangeError("net: its Jacobian has NaN or infinite entries, expected finite ones")
        values = torch.linalg.svdvals(matrices.double())
        if isinstance(self._function, Layers):
            ends = self._function.widths[0], self._function.widths[-1]
            values = nn.functional.pad(values, (0, min(ends) - values.shape[1]))
        return values

    def _blocks(self, *, compact: bool) -> Iterator[Tensor]:
        """Iterate over Jf(x_i) in blocks, of MLPs ``compact`` if requested."""
        function = self._function
        self._warn_of_kinks()
        for part in self._parts():
            if isinstance(function, Layers):
                yield (function.compact if compact else function).jacobian(function.forward(part))
            else:
                yield _by_autograd(function, part)

    def _warn_of_kinks(self) -> None:
        """Issue one warning of samples near kinks."""
        if self.kink_rtol is not None and not self._warned:
            self._warned = True
            message = kinks.describe(self.near_kinks(), self.kink_rtol)
            if message:
                warnings.warn(f"x: {message}", KinkWarning, _level_of_caller())

    def _parts(self, rows: int = 0) -> Iterator[Tensor]:
        """Iterate over blocks of samples, in the precision of the passes, for products of so many rows."""
        function, size = self._function, self.chunk_size
        if isinstance(function, Layers):
            size = size or function.block(rows or min(function.widths[0], function.widths[-1]))
        else:
            d_out = check_samplewise(function, self.x.to(function.device))
            size = size or max(1, CHUNK_ENTRIES // (self.x[0].numel() * d_out))
        return (part.to(function.device, self.dtype) for part in self.x.split(size))


def _by_autograd(function: Functional, x: Tensor) -> Tensor:
    """Return Jf(x_i), (n, d_out, d_in), by one backward pass per output."""
    x = x.clone().requires_grad_(True)
    with torch.enable_grad():
        out = function(x).reshape(len(x), -1)
        columns, ones = out.unbind(1), torch.ones_like(out[:, 0])
    if not out.requires_grad:
        raise ValueError(f"net: the output of {type(function.module).__name__} cannot be differentiated in x")
    with differentiating(function.module):
        rows = [
            torch.autograd.grad(column, x, ones, retain_graph=True, materialize_grads=True)[0].flatten(1)
            for column in columns
        ]
    return torch.stack(rows, 1)


def _level_of_caller() -> int:
    """Return the ``stacklevel`` of the first caller outside the library (and functools, of cached properties)."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("bnrank", "functools"):
        level, frame = level + 1, frame.f_back
    return level
