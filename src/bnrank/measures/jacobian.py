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
from bnrank.measures import kinks
from bnrank.measures.derivatives import OfMLP, derivatives, spectrum
from bnrank.measures.kinks import KINK_RTOL, KinkWarning
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, example, unwrap


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
        self.kink_rtol = None if kink_rtol is None else validation.number(kink_rtol, "kink_rtol", 0.0)
        chunk_size = None if chunk_size is None else validation.integer(chunk_size, "chunk_size")
        self._derivatives = derivatives(net, self.x, dtype, chunk_size)
        self._warned = False

    def __str__(self) -> str:
        n, d_in = len(self.x), self.x[0].numel()
        where = f"{n} sample{'s' if n > 1 else ''} of {d_in} inputs"
        return f"Jacobian of {type(self.net).__name__} at {where}: {self.rank()}"

    def chunks(self) -> Iterator[Tensor]:
        """Iterate over Jf(x_i) in blocks (n, d_out, d_in), in the order of the samples; nothing is cached."""
        self._warn_of_kinks()
        yield from self._derivatives.jacobians(self.x)

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
        self._warn_of_kinks()
        return spectrum(self.matrices) if "matrices" in vars(self) else self._derivatives.spectra(self.x)

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
        if isinstance(self._derivatives, OfMLP) and "singular_values" not in vars(self):
            traces, vars(self)["singular_values"] = self._derivatives.traces_and_spectra(self.x)
            return traces
        return self._derivatives.traces(self.x)

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
        return self._derivatives.near_kinks(self.x, rtol)

    def _warn_of_kinks(self) -> None:
        """Issue one warning of samples near kinks."""
        if self.kink_rtol is not None and not self._warned:
            self._warned = True
            near = self.near_kinks()
            if bool(near.any()):
                message = kinks.describe(near, self.kink_rtol)
                warnings.warn(f"x: {message}", KinkWarning, _level_of_caller())


def _level_of_caller() -> int:
    """Return the ``stacklevel`` of the first caller outside the library (and functools, of cached properties)."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("bnrank", "functools"):
        level, frame = level + 1, frame.f_back
    return level
