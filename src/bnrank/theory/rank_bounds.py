"""Brackets of the rank of a nonlinear function: the Jacobian rank and an explicit factorization."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.measures import regions
from bnrank.measures.backward import Layers
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional
from bnrank.networks.mlp import MLP
from bnrank.theory.constructions import compose
from bnrank.theory.factorization import Basis, Cut, cuts

__all__ = ["RankBracket", "rank"]


@dataclass(frozen=True)
class RankBracket(Printed):
    """Bounds on the rank of F = h o g, which equals f on the data to within ``error``.

    lower <= Rank_J(F) <= R0(F) <= Rank_BN(F) <= upper (T5, T18).

    Attributes
    ----------
    lower : int
        Rank JF(witness), the largest found.
    upper : int
        Inner dimension of the factorization.
    domain : str
        "everywhere": F equals f on all inputs, to the precision of the parameters, and the bracket is one of f itself.
        "on the data": F equals f on x, to within ``error``, and on every input whose representation at the cut lies in
        the affine span (linear span without biases) of those of the data; elsewhere it is f of the nearest point of
        that span.
    everywhere : int
        The smallest upper bound that holds everywhere, min_l rank W_l for a chain.
    jacobian_rank : int
        max_i rank Jf(x_i), of f itself. It is larger than ``lower`` if f varies in directions in which the data do not
        vary, or varies by less than the tolerance.
    witness : Tensor
        A point where JF has rank ``lower``; of several samples, the one with the largest s_lower / s_1.
    index : int or None
        Its row in x; None for a point that is not a sample.
    singular_values : Tensor
        Singular values of JF(witness), descending.
    complete : bool
        Whether all linear regions of F in ``box`` were enumerated, so that ``lower`` is Rank_J(F; box).
    h, g : torch.nn.Module
        The networks, in the module's precision. If ``upper`` is 0, they are connected by one number that is always 0.
    error, relative_error : float
        max |f(x_i) - h(g(x_i))| over samples and outputs, evaluated in float64; the same divided by max |f(x_i)|.
    layer, place : int, str
        The place of the cut: after ``layer`` layers (parts of a Sequential), at the "input", a "preactivation", an
        "activation" or the "output".
    rtol, output_rtol : float
        As given.

    Examples
    --------
    >>> import torch, bnrank
    >>> net, x = bnrank.MLP([5, 8, 2, 8, 5], seed=0, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    >>> found = bnrank.rank(net, x)                                             # a bnrank.theory.RankBracket
    >>> found.upper, found.everywhere, found.layer, found.error < 1e-12
    (2, 2, 2, True)
    """

    lower: int
    upper: int
    domain: str
    everywhere: int
    jacobian_rank: int
    witness: Tensor
    index: int | None
    singular_values: Tensor
    complete: bool
    h: nn.Module
    g: nn.Module
    error: float
    relative_error: float
    layer: int
    place: str
    rtol: float
    output_rtol: float

    @property
    def exact(self) -> bool:
        """Whether both bounds are equal, so that Rank_J(F) = Rank_BN(F) = upper."""
        return self.lower == self.upper

    def _content(self) -> list[Part]:
        where = "a point that is no sample" if self.index is None else f"sample {self.index}"
        regions = ", the largest over all linear regions in the box" if self.complete else ""
        values = ", ".join(f"{value:.3g}" for value in self.singular_values[: self.lower + 1].tolist())
        below = f"rank of the Jacobian of h o g at {where}{regions}; singular values {values}"
        above = f"inner dimension of h o g, which equals f {self.domain}; cut at {self.place} {self.layer}"
        rows = [
            {"bound": "lower", "rank": self.lower, "evidence": below},
            {"bound": "upper", "rank": self.upper, "evidence": above},
        ]
        return [
            f"rank in [{self.lower}, {self.upper}] ({self.domain}), cut at {self.place} {self.layer}, "
            f"relative error {self.relative_error:.2g}",
            Table("Bounds and their evidence", rows, printed=False),
        ]


def rank(
    net: nn.Module,
    x: Tensor | np.ndarray,
    rtol: float = 1e-6,
    *,
    output_rtol: float | None = None,
    domain: Literal["data", "everywhere"] = "data",
    box: Any = None,
    max_regions: int = 100_000,
) -> RankBracket:
    """Return bounds on the rank of the network function, from a Jacobian and a factorization f = h o g (T5, T18).

    Upper bound: f is cut where its representation is narrowest. If the representation a of the data at a cut lies in
    {mu + Q z : z in R^k}, the cut gives g = Q^T (a - mu), and h is the rest of the network after mu + Q z. The upper
    bound is the smallest k, over all cuts (input, before and after every activation, output) and principal subspaces,
    such that F = h o g equals f on the data to within ``output_rtol``; among several cuts, the one with the smallest
    error is chosen. Everywhere, f passes through the image of every W_l, of dimension rank W_l; this bound is returned
    if no factorization on the data has a smaller k.

    Lower bound: the largest rank of JF at the samples, and in the linear regions of a box. The
    bracket applies to F, since a loose tolerance changes the function: a trained network may be within 1% of a function
    of rank 2 and have a Jacobian of full rank. Since J(h o g) = Jh Jg, always lower <= upper. Samples close to a kink,
    where the computed Jacobian may not belong to any region, are skipped. If all samples are close to a kink, they are
    displaced at random by about 1e-6 times the largest |x|.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers (MLP, or Sequential of Linear and ReLU or LeakyReLU) is cut everywhere; any other
        Sequential between its parts; any other module at input and output.
    x : Tensor or ndarray
        Samples, (N, ...), floating point. N samples span at most N - 1 dimensions: few samples give a small bound on
        the data, and no information elsewhere.
    rtol : float
        The rank of a Jacobian is the number of singular values above ``rtol`` times the largest.
    output_rtol : float, optional
        Largest max |f - h o g| over the data, relative to max |f|. Default: 1e-9, but at least 100 times the resolution
        of the module's precision (1.2e-5 in float32).
    domain : "data" or "everywhere"
        Where the upper bound must hold.
    box : array_like, optional
        Rows (low, high), (d_in, 2): enumerate all linear regions of F in the box, see
        :func:`bnrank.measures.regions.enumerate`. Small chains only.
    max_regions : int
        Limit on the number of regions in the box.

    Returns
    -------
    RankBracket
        Bounds, witness, the networks h and g and their error.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, parameters are not finite, or the module cannot be run on x and differentiated.

    Notes
    -----
    Sources: Jacot2023a proposition 1 and theorem 1; properties in T6.

    Examples
    --------
    >>> import torch, bnrank
    >>> found = rank(bnrank.MLP([5, 8, 2, 8, 5], seed=0), torch.randn(50, 5, dtype=torch.float64))
    >>> found.lower, found.upper, found.exact, found.layer, found.domain
    (2, 2, True, 2, 'everywhere')
    """
    jacobian = Jacobian(net, x, kink_rtol=None)
    net, x = jacobian.net, jacobian.x.clone()  # the module may work in place
    rtol, max_regions = validation.rtol(rtol), validation.integer(max_regions, "max_regions")
    validation.choice(domain, "domain", ("data", "everywhere"))
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64)
    eps = torch.finfo(dtype).eps
    output_rtol = validation.number(max(1e-9, 100 * eps) if output_rtol is None else output_rtol, "output_rtol", 0.0)

    places = cuts(net, x)
    f = validation.finite(places[-1].values, "net: its outputs")
    validation.expect(f.shape[1], "net", "a network without outputs", "at least one output")
    size = float(f.abs().max())
    globally = _everywhere(places, f, max(output_rtol * size, 10 * eps * _terms(net, x, size)))
    everywhere = globally.everywhere.dimension
    on_data = None if domain == "everywhere" else _on_data(places, f, output_rtol * size, everywhere)
    cut, basis = on_data or (globally, globally.everywhere)
    upper = basis.dimension
    h, g = (part.to(f.device, dtype) for part in cut.split(basis))
    chains = isinstance(h, MLP) and isinstance(g, MLP)
    composition = compose(as_mlp(h), as_mlp(g)) if chains else nn.Sequential(g, h)
    with torch.no_grad():
        of_x = composition(x.flatten(1).to(f)) if chains else Functional(composition)(x).flatten(1)
        error = float((of_x - f).abs().max())

    factored = Jacobian(composition, x, kink_rtol=None) if on_data else jacobian
    lower, witness, index, values = _witness(factored, upper, rtol)
    found = None if box is None else regions.enumerate(composition, box, rtol=rtol, max_regions=max_regions)
    if found is not None and min(found.rank, upper) > lower:
        lower, index = min(found.rank, upper), None
        witness, values = found.witness.point, found.witness.singular_values[:upper]
    return RankBracket(
        lower=lower,
        upper=upper,
        domain="on the data" if on_data else "everywhere",
        everywhere=everywhere,
        jacobian_rank=int(linalg.rank(jacobian.singular_values[:, :everywhere], rtol).max()),
        witness=witness,
        index=index,
        singular_values=values,
        complete=found is not None and found.complete,
        h=h,
        g=g,
        error=error,
        relative_error=error / size if size else (0.0 if error == 0 else float("inf")),
        layer=cut.layer,
        place=cut.place,
        rtol=rtol,
        output_rtol=output_rtol,
    )


def _terms(net: nn.Module, x: Tensor, size: float) -> float:
    """Return the largest sum of absolute terms of an output of a chain; max |f| for any other module."""
    try:
        chain = as_mlp(net, multiply_out=True)
    except TypeError:
        return size
    last = Layers.of(chain, torch.float64).forward(x.flatten(1)).inputs[-1]
    return max(size, float((last.abs() @ chain.weights[-1].detach().abs().T).max()))


def _everywhere(places: list[Cut], f: Tensor, allowed: float) -> Cut:
    """Return the cut whose factorization has the smallest rank for all inputs; among ties, one between neurons.

    The tolerance for the rank of a weight is its own rounding error, but a product of weights may be of that size. So a
    factorization through the image of a weight must also equal f on the data.
    """
    ordered = sorted(places, key=lambda c: (c.everywhere.dimension, c.everywhere.directions is not None))
    # the cut at the input keeps the whole space
    return next(c for c in ordered if c.everywhere.directions is None or _error(c, c.everywhere, f) <= allowed)


def _on_data(places: list[Cut], f: Tensor, allowed: float, known: int) -> tuple[Cut, Basis] | None:
    """Return the factorization of smallest rank that equals f on the data, or None if none has a rank below ``known``.

    Ties are broken by the smallest error; errors below a tenth of ``allowed`` count as equal, since they are rounding.
    """
    best: tuple[Cut, Basis] | None = None
    best_key = (known, 0.0)
    for cut in sorted(places, key=lambda c: int((c.spread > 1e-12 * c.spread[:1]).sum())):
        k = min(best_key[0] if best else known - 1, len(cut.spread))
        if k < 0 or _error(cut, cut.principal(k), f) > allowed:
            continue
        low = -1  # the error decreases, if not quite monotonically, with k
        while k - low > 1:
            middle = (k + low) // 2
            if _error(cut, cut.principal(middle), f) > allowed:
                low = middle
            else:
                k = middle
        key = (k, max(_error(cut, cut.principal(k), f), 0.1 * allowed))
        if key < best_key:
            best, best_key = (cut, cut.principal(k)), key
    return best


def _error(cut: Cut, basis: Basis, f: Tensor) -> float:
    with torch.no_grad():
        return float((cut.rest(basis.project(cut.values)) - f).abs().max())


def _witness(jacobian: Jacobian, upper: int, rtol: float) -> tuple[int, Tensor, int | None, Tensor]:
    """Return the largest rank of the Jacobian at samples off the kinks, or near the samples if all are on kinks.

    With a point of that rank, its row in x, and its singular values.
    """
    x, rows = jacobian.x, (~jacobian.near_kinks()).nonzero()[:, 0]
    points, values = x[rows.to(x.device)], jacobian.singular_values[rows.to(jacobian.singular_values.device)]
    if not len(rows):
        points = _beside(x)
        values = Jacobian(jacobian.net, points, kink_rtol=None).singular_values
    values = values[:, :upper]
    lower = int(linalg.rank(values, rtol).max())
    margin = values[:, lower - 1] / values[:, 0].clamp(min=torch.finfo(torch.float64).tiny) if lower else values.sum(1)
    best = int(margin.argmax())
    return lower, points[best].clone(), int(rows[best]) if len(rows) else None, values[best]


def _beside(x: Tensor) -> Tensor:
    """Return points near samples, in float64."""
    draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.double() + 1e-6 * max(float(x.abs().max()), 1e-300) * draw.to(x.device)
