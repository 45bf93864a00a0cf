"""Statements about fits of rank one: cost, shortest paths through outputs, stability (T12, T13, T15, T17b, T26)."""

import math

import torch

from bnrank._core import linalg, validation
from bnrank.measures import regions
from bnrank.theory import stability, symmetry
from bnrank.theory.cost.search import rounded
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import counted_values, vectors
from bnrank.theory.tours import TourBound
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, Statement, assume, statement

FITTED = 1e-6  # largest mean squared error of a fit, relative to the mean square of the targets
TINY = 1e-280  # products below this value may have lost digits
RANK_ONE = ("a weight has rank one",)


@statement(
    "T12",
    "cost of rank-one interpolation",
    "L sum_k s_k(Jf)^{2/L} <= L + C_N, where the cost is at most that of a rank-one interpolant",
    source="Jacot2023a propositions 2 and 3",
)
def _rank_one_cost(facts: Facts) -> Sides:
    bound, assumptions, note = _interpolation(facts)
    sample = int(linalg.schatten(facts.jacobian_values, facts.depth, facts.rtol).argmax())
    left = facts.depth * float(linalg.schatten(counted_values(facts, sample), facts.depth, 0.0))
    most = facts.depth * facts.largest_rank * _reach(facts)
    return Sides(left, bound, "<=", 1e-9, bound, assumptions, note, most=most)


@statement(
    "T17b",
    "second singular value of cheap fits",
    "s_2(Jf)^{2/L} <= (1 + C_N / L) / 2, where the cost is at most that of a rank-one interpolant",
    source="Jacot2023a section 4, after proposition 3",
)
def _second_value(facts: Facts) -> Sides:
    assume(min(vectors(facts).shape[1], facts.outputs.shape[1]) >= 2, "there are at least two inputs and two outputs")
    bound, assumptions, note = _interpolation(facts)
    second = counted_values(facts, int(facts.jacobian_values[:, 1].argmax()))[1:2]
    left = float(second.sum()) ** (2 / facts.depth)
    return Sides(left, bound / (2 * facts.depth), "<=", 1e-9, 1.0, assumptions, note, most=_reach(facts))


@statement(
    "T13",
    "norm of rank-one functions",
    "L (TSP(f(X)) / diam(X))^{2/L} <= ||theta||^2",
    source="Jacot2023a theorem 2",
)
def _tour_norm(facts: Facts) -> Sides:
    note, found = _rank_one(facts), _tour(facts)
    note = f"TSP >= {found.path.lower:.6g} (a path of {found.path.upper:.6g}), diam {found.diameter:.6g}; {note}"
    return Sides(found.parameter_norm, facts.parameter_norm, "<=", 1e-9, TINY, RANK_ONE, note)


@statement(
    "T13",
    "slope of rank-one functions",
    "TSP(f(X)) / diam(X) <= max ||Jf||_op, on the segment between the outermost samples",
    source="Jacot2023a theorem 2, proof",
)
def _tour_slope(facts: Facts) -> Sides:
    note, found = _rank_one(facts), _tour(facts)
    x, net = vectors(facts), facts.rank_one.network
    z, _ = symmetry.rank_one_parts(net, x, facts.rank_one.layers[0])
    first, last = x[int(z.argmin())], x[int(z.argmax())]
    assume(bool((first != last).any()), "the hidden dimension tells samples apart", f"z = {float(z[0]):.6g} everywhere")
    pieces = regions.along_line(net, first, last)
    note = f"samples {int(z.argmin())} and {int(z.argmax())}, {len(pieces)} pieces between; {note}"
    slopes = pieces.singular_values[:, 0].tolist()
    if max(slopes) < found.slope and pieces.intervals is not None:
        middles = [first + float(t) * (last - first) for t in pieces.intervals.mean(1)]
        slopes = [s + rounded(net, middle)[1] for s, middle in zip(slopes, middles, strict=True)]
        note += "; right side with what rounding can have taken off"
    return Sides(found.slope, max(slopes), "<=", 1e-9, TINY, RANK_ONE, note)


@statement(
    "T15",
    "an almost rank-one layer (reported, not judged)",
    "min_l s_2(Z_l) / s_1(Z_l) = O(L^{-1/4}), for which the source gives no constant: inconclusive or not applicable",
    source="Jacot2023a proposition 4",
)
def _bottleneck_layer(facts: Facts) -> Sides:
    assume(facts.depth > 1, "there is a hidden layer", "depth 1")
    _interpolation(facts)
    spread = facts.outputs - facts.outputs.mean(0)
    assume(float(spread.abs().max()) > facts.rtol * float(facts.outputs.abs().max()), "the outputs are not constant")
    layer, ratio = symmetry.narrowest_layer(facts.inputs[1:])
    raise Inconclusive(
        f"s_2/s_1 is smallest at layer {layer}, {ratio:.3g}, where L^(-1/4) = {facts.depth**-0.25:.3g}; the source "
        "names no constant, and its proof has gaps (E6)"
    )


@statement(
    "T26",
    "the NTK of rank-one functions grows",
    "e^{-c1} TSP^4 sum_{l in S} ||W_l||_op^{-2} / (64 diam^2) <= max Tr Theta(x, x)",
    source="Jacot2023b theorem 10, with its constant",
)
def _growth(facts: Facts) -> Sides:
    found = stability.growth_along(facts.rank_one, vectors(facts), _tour(facts))
    note = (
        f"c1 = {found.excess:.6g}, {len(found.layers)} layers of rank one, TSP >= {found.path.lower:.6g}, diam "
        f"{found.diameter:.6g}; the maximum is over a segment between two samples"
    )
    if not math.isfinite(found.bound) or not math.isfinite(found.measured):
        raise Inconclusive("the bound or the trace is beyond the range of floats")
    least = float(facts.biased[-1]) * facts.outputs.shape[1]  # the derivative by the last bias is the identity
    return Sides(found.bound, found.measured, assumptions=RANK_ONE, note=note, least=least)


def stable_at(step: float) -> Statement:
    """Return the statement T26 for a step size: gradient descent stays at a minimum of curvature at most 2 / step.

    Parameters
    ----------
    step : float
        Step size eta > 0 of full-batch gradient descent on the regularized loss C + lambda ||theta||^2.

    Returns
    -------
    Statement
        Call it with :class:`~bnrank.theory.facts.Facts`; not applicable unless the network fits its targets.

    Examples
    --------
    >>> import torch, bnrank
    >>> from bnrank.theory.facts import Facts
    >>> x, net = torch.ones(1, 1), bnrank.MLP([1, 1], bias=False)           # curvature 2
    >>> facts = Facts(net, x, net(x).detach())
    >>> stable_at(0.5)(facts).status, stable_at(2.0)(facts).status
    ('holds', 'violated')
    """
    step = validation.number(step, "step", 0.0, strict=True)

    def sides(facts: Facts) -> Sides:
        size = float((facts.targets**2).sum(1).mean())
        error = f"C = {facts.data_loss:.3g}, mean ||y||^2 = {size:.3g}"
        assume(facts.data_loss <= FITTED * size, "the network fits its targets", error)
        _all_samples(facts)
        found = stability.sharpness_bound(facts.net, facts.x, step, ridge=facts.ridge or 0.0)
        residual = (facts.data_loss / size) ** 0.5 if size else 0.0
        note = f"gradient descent stays there for steps up to {found.largest_step:.4g}"
        fits, tolerance = ("f(X) = Y",), 1e-9 + residual
        return Sides(found.curvature, found.limit, "<=", tolerance, assumptions=fits, note=note, least=-math.inf)

    return Statement(
        "T26", "stability of a minimum", "(2/N) ||J_theta f||_op^2 <= 2 / step", "Jacot2023b section 4 (E14)", sides
    )


def _reach(facts: Facts) -> float:
    """Return the largest s_1(Jf)^{2/L} of layers of these operator norms, (prod_l ||W_l||_op)^{2/L}."""
    norms = torch.stack([torch.linalg.matrix_norm(weight, 2) for weight in facts.weights])
    return float((2 * norms.log().mean()).exp())


def _all_samples(facts: Facts) -> None:
    assume(len(facts.x) == facts.samples, "all samples are checked", f"{len(facts.x)} of {facts.samples}")


def _interpolation(facts: Facts) -> tuple[float, tuple[str, ...], str]:
    """Return L + C_N, the assumption that the network costs no more than a rank-one interpolant, and a note."""
    x, y, ridge, depth = vectors(facts), facts.targets, facts.penalty, facts.depth
    _all_samples(facts)
    assume(depth >= 3, "depth at least 3", f"depth {depth}")
    assume(facts.slope != 1, "the network is not linear")
    net = facts.interpolant
    with torch.no_grad():
        miss = float(((net(x) - y) ** 2).sum(1).mean())
    bound = sum(float((p.detach() ** 2).sum()) for p in net.parameters()) + miss / ridge
    cost = facts.data_loss / ridge + facts.parameter_norm
    if cost > bound:
        wide = all(a >= b for a, b in zip(facts.chain.widths, net.widths, strict=True))
        if wide and facts.chain.bias:
            detail = f"(C + lambda ||theta||^2) / lambda is {cost:.6g}, and {bound:.6g} for an interpolant of rank one"
            raise NotApplicable("the network costs no more than a rank-one interpolant, as a minimum does", detail)
        detail = f"hidden widths {facts.chain.widths[1:-1]}{'' if facts.chain.bias else ' and no biases'}"
        raise NotApplicable(f"wide enough, hidden widths {net.widths[1:-1]} with biases, to interpolate", detail)
    cheaper = f"(C + lambda ||theta||^2) / lambda = {cost:.6g}, at most that of the interpolant"
    note = (
        f"C_N = {bound - depth:.6g}, of a network through the data of hidden dimension 1; given the assumption, this "
        "follows from T4"
    )
    return bound, (cheaper,), note


def _tour(facts: Facts) -> TourBound:
    """Return the bounds from the shortest path through the outputs."""
    vectors(facts)
    try:
        return facts.tour
    except validation.RangeError as error:
        raise Inconclusive(str(error)) from error


def _rank_one(facts: Facts) -> str:
    """Return a note on the hidden dimension of a network with weights of rank one."""
    exact = facts.rank_one
    cut = ", ".join(f"W_{layer}" for layer, ratio in zip(exact.layers, exact.ratios, strict=True) if ratio)
    rest = f", minus the rest of {cut} (s_2 / s_1 <= {max(exact.ratios):.1g})" if cut else ""
    return f"f = h o z through layer {exact.layers[0]}{rest}"
