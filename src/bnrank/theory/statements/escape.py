"""Statements about how a bias-free ReLU network leaves the saddle at the origin (T36, T38, T39)."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

from bnrank._core import validation
from bnrank.theory.escape.localized import Localized, Ratio, residual_bound
from bnrank.theory.escape.stationarity import residual
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, Verdicts, assume, statement, statements_in

STATIONARY = 1e-2  # largest ||grad L0 + s theta|| / (s ||theta||) to which T36 applies
BALANCED = 1e-4  # tolerance of equal squared layer norms, relative to the larger
OPTIMAL = 1e-3  # largest gain by rank-one layers, relative to the speed, of a direction that counts as optimal
RATIOS = "tails of W_l and, for l < L, of sigma(Z_l), and ||sigma(Z_l) - Z_l||_F^2 / ||Z_l||_F^2"


@statement(
    "T36",
    "layers of an escape direction have one norm",
    "||W_l||_F^2 = ||theta||^2 / L, where grad L0(theta) = -s theta",
    source="Bantzis2025 definition 2.1 and Euler's identity for each layer",
)
def _same_norms(facts: Facts) -> Iterator[Sides]:
    found = _hidden(facts)
    left, at_least = residual_bound(facts.weights, found.layer_norms), "at least "
    if left <= STATIONARY:
        at_least = ""
        x, g = facts.all_x.flatten(1) / found.x_norm, facts.output_gradient / found.g_norm
        left = residual(facts.chain, x, g)
    ratio = f"||grad L0 + s theta|| / (s ||theta||) is {at_least}{left:.2g}, more than {STATIONARY:g}"
    assume(left <= STATIONARY, "an escape direction", ratio)
    assumptions = (f"stationary: {left:.1e} <= {STATIONARY:g}",)
    for layer, norm in enumerate(found.layer_norms.tolist(), start=1):
        # <W_l, grad_l L0> = L0 for every l, so that s (||W_l||^2 - 1) = <W_l, residual_l>
        explained = left * norm * math.sqrt(facts.depth)
        note = (
            f"layer {layer} of {facts.depth}, at ||theta||^2 = L; speed {found.sphere_speed:.6g}; the residual allows "
            f"a difference of {explained:.2g}"
        )
        yield Sides(norm**2, 1.0, "=", BALANCED, 0.0, assumptions, note, explained + 1e-9)


@statement(
    "T38",
    "deep layers of the fastest escape direction",
    f"{RATIOS} <= 8 c l^(-1/2) / (1 - c l^(-1/2)), c = (||X|| ||G|| / s) (2 log(||X|| ||G|| / s))^(1/2)",
    source="Bantzis2025 theorem 3.1, layers as in E21",
)
def _deep_layers(facts: Facts) -> Iterator[Sides]:
    found = _hidden(facts)
    c, start = found.constant, 0 if found.nonnegative else 1  # first of the layers among which one is near rank one
    compared, raised = [], 0.0
    for ratio in found.ratios:
        last = ratio.layer if ratio.activation else ratio.layer - 1
        base = start + int(found.activation_tails[start : last + 1].argmin()) if last >= start else ratio.layer
        # the layers after the one nearest to rank one must be as fast as rank-one layers; W_1 needs no such layer
        excess = found.excess(base) if base < ratio.layer else 0.0
        raised = max(raised, excess)
        k = c / math.sqrt(ratio.layer)
        compared.append((ratio, (8 * k + 2 * excess) / (1 - k) if k < 1 else math.inf))
    says = f"c = {c:.4g}: about layers beyond {math.floor(min((9 * c) ** 2, 1e300)):.6g}"
    return _judged(found, compared, raised, says, f"{says} of {facts.depth}")


@statement(
    "T38",
    "inputs near rank one",
    f"{RATIOS} <= 8 ||G|| eps / (s - ||G|| eps), where ||X - v u^T|| = eps, v >= 0",
    source="Bantzis2025 proposition 3.3, layers as in E21",
)
def _near_rank_one(facts: Facts) -> Iterator[Sides]:
    found = _hidden(facts)
    error, speed = found.part
    excess = max(speed - error - found.share, 0.0) / found.share
    bound = found.bound(error, excess)
    relative = f"||G|| eps / s = {error / found.share:.3g}"
    compared = [(ratio, bound) for ratio in found.ratios]
    return _judged(found, compared, excess, f"{relative}, eps = {error:.3g} ||X||", relative)


@statement(
    "T38",
    "near rank one at a layer, near rank one after it",
    f"{RATIOS}, for l > k, <= 8 ||G|| eps_k / (s - ||G|| eps_k), eps_k^2 = sum_{{i>=2}} s_i(sigma(Z_k))^2, k >= 1",
    source="Bantzis2025 proposition 3.3 for the layers after the k-th, as in theorem A.7",
)
def _once_near_rank_one(facts: Facts) -> Iterator[Sides]:
    found = _hidden(facts)
    excesses = [found.excess(k) for k in range(1, facts.depth)]
    bounds = [found.bound(float(found.errors[k]), excess) for k, excess in enumerate(excesses, 1)]
    compared = [(ratio, min(bounds[: ratio.layer - 1])) for ratio in found.ratios if ratio.layer > 1]
    errors = found.errors[1:] / found.share
    relative = f"||G|| eps_k / s = {float(errors.min()):.3g} at k = {int(errors.argmin()) + 1}, the smallest"
    return _judged(found, compared, max(excesses), relative, relative)


@statement(
    "T38",
    "few layers of high rank",
    "m t_(m) <= sum_l -log(1 - t_l) <= 2 log(||X|| ||G|| / s), t_l the tails of the L matrices X, sigma(Z_1), ..., "
    "sigma(Z_{L-1}), t_(m) the m-th largest, m = p L",
    source="Bantzis2025 proposition 3.4 and its proof",
)
def _few_layers(facts: Facts) -> Sides:
    found = _hidden(facts)
    tails = found.activation_tails
    right = -2 * math.log(found.share)
    most = float(found.activation_ranks.to(torch.float64).log().sum())
    half = math.floor(right / math.log(2))
    ordered = tails.sort(descending=True).values * torch.arange(1, len(tails) + 1)
    note = (
        f"the largest m t_(m) is {float(ordered.max()):.4g}, at m = {int(ordered.argmax()) + 1}; at most {half} of "
        f"{len(tails)} tails are 1/2 or more, and {int((tails >= 0.5).sum())} are; {_speed(found)}"
    )
    empty = f"the bound is {right:.4g}, and matrices of these shapes have at most {most:.4g}" if right >= most else ""
    return Sides(-float(torch.log1p(-tails).sum()), right, rtol=1e-9, scale=1.0, note=note, vacuous=empty)


@statement(
    "T39",
    "a deeper network leaves as fast",
    "s(theta) <= s(theta'), theta' of one layer more, both on ||theta||^2 = L",
    source="Bantzis2025 proposition 3.2, corrected (E18)",
)
def _deeper(facts: Facts) -> Sides:
    found = _hidden(facts)
    deeper = _deeper_of(facts)
    note = f"depths {facts.depth} and {facts.depth + 1}"
    return Sides(found.sphere_speed, deeper.sphere_speed, "<=", 1e-10, found.x_norm * found.g_norm, note=note)


@statement(
    "T39",
    "the deeper network ends in rank one",
    "tails of W_l and sigma(Z_l), l >= L - 1, ||sigma(Z_L) - Z_L||^2 / ||Z_L||^2, | ||theta'||^2 / (L + 1) - 1 | <= 0",
    source="Bantzis2025 proposition 3.2, corrected (E18)",
)
def _deeper_tail(facts: Facts) -> Iterator[Sides]:
    _hidden(facts)
    deeper, depth = _deeper_of(facts), facts.depth
    parts = {f"the tail of W_{depth - 1 + i}": float(tail) for i, tail in enumerate(deeper.weight_tails[-3:])}
    tails = deeper.activation_tails[-2:]
    parts |= {f"the tail of sigma(Z_{depth - 1 + i})": float(tail) for i, tail in enumerate(tails)}
    parts[f"the nonlinearity of Z_{depth}"] = float(deeper.nonlinearities[-1])
    parts["||theta'||^2 / (L + 1) - 1"] = abs(deeper.squared_norm / (depth + 1) - 1)
    shape = "the tails are 0 by their shapes, (1, n), (1, 1) and (d_out, 1); measured are the nonlinearity and the norm"
    for name, part in parts.items():
        if math.isnan(part):  # would count as a small number
            raise Inconclusive(f"{name} is not a number")
        yield Sides(
            part, 0.0, "<=", 1e-10, 1.0, least=-math.inf, note=f"{name}, the largest of {len(parts)} numbers; {shape}"
        )


STATEMENTS = statements_in(sys.modules[__name__])
"""T36, T38 and T39, for the network and G of a Facts; ``facts.altered(output_gradient=g)`` replaces G."""


def check(found: Any) -> Verdicts:
    """Return the verdicts of the statements about escape directions on an escape direction.

    Parameters
    ----------
    found : object
        The result of :func:`bnrank.escape.find`, or any object with these attributes: ``network``, a bias-free ReLU
        network; ``x``, samples (N, d_in); ``g``, (N, d_out), the gradient of the cost with respect to the outputs at
        zero output.

    Returns
    -------
    Verdicts
        The verdicts of T36, T38 and T39, as in :func:`bnrank.check`. The scale of the network is arbitrary.

    Raises
    ------
    TypeError, ValueError
        If an attribute is missing or has the wrong type, or the shapes do not match.

    Notes
    -----
    Source: T36, T38, T39; Bantzis2025, section 3. No search certifies that a direction is optimal. The proofs of T38
    need a weaker assumption: replacing all layers after some layer by layers of rank one does not increase the speed.
    The check evaluates this assumption. If the speed increases by more than 0.1 percent, T38 is not applicable; if it
    increases by less, the bounds are raised accordingly. Theorem 3.1 is checked as printed, for inputs of any sign. For
    inputs with negative entries its proof chooses among the layers 1, ..., l - 1, one fewer than l (E19), but has room
    for the difference.

    Examples
    --------
    >>> import bnrank, torch
    >>> from types import SimpleNamespace
    >>> net = bnrank.networks.from_layers([torch.eye(1), torch.eye(1), -torch.eye(1)])
    >>> found = SimpleNamespace(network=net, x=torch.tensor([[1.0], [2.0]]), g=torch.tensor([[1.0], [2.0]]))
    >>> [v.label for v in check(found) if v.id == "T38"]
    ['holds', 'holds', 'holds', 'holds (vacuous)']
    """
    missing = [name for name in ("network", "x", "g") if not hasattr(found, name)]
    if missing:
        raise TypeError(
            f"found: got {validation.describe(found)} without {', '.join(missing)}, expected what escape.find returns"
        )
    facts = Facts(found.network, found.x)
    g = validation.samples(found.g, "g", features=facts.outputs.shape[1]).detach().to(torch.float64)
    validation.expect(len(g) == facts.samples, "g", f"{len(g)} samples", f"as many as x has, {facts.samples}")
    facts = facts.altered(output_gradient=g)
    verdicts = tuple(each(facts) for each in STATEMENTS)
    about: dict[str, object] = {"network": type(facts.net).__name__, "samples": facts.samples}
    try:
        about |= {"depth": facts.depth, "widths": list(facts.chain.widths), "speed": facts.localized.sphere_speed}
    except NotApplicable as reason:
        about["no escape direction"] = str(reason)
    return Verdicts(verdicts, about)


def _hidden(facts: Facts) -> Localized:
    """Return the localized loss of a network with a hidden layer."""
    assume(facts.depth > 1, "there is a hidden layer", "the network has one layer")
    return facts.localized


def _deeper_of(facts: Facts) -> Localized:
    try:
        return facts.deeper
    except ValueError as error:  # a speed beyond the range of floats
        raise Inconclusive(f"the deeper network: {error}") from error


def _optimal(found: Localized) -> str:
    """Return the assumption that no rank-one layers are faster than those they replace, after checking it."""
    gains = found.tail_speeds / found.share - 1
    layer, gain = int(gains.argmax()), float(gains.max())
    if gain > OPTIMAL:
        where = f"the layers after the {layer}-th" if layer else "all layers"
        raise NotApplicable(
            "the escape direction is optimal", f"rank one in place of {where} is faster, by {gain:.2g} of the speed"
        )
    return f"no rank-one layers are faster than those they replace: by {gain:.2g} of the speed at most"


def _speed(found: Localized) -> str:
    return f"s = {found.speed:.6g} with layers of equal norm, ||X|| ||G|| / s = {1 / found.share:.4g}"


def _judged(
    found: Localized, compared: list[tuple[Ratio, float]], excess: float, says: str, empty: str
) -> Iterator[Sides]:
    """Yield the ratios whose bounds are below their largest possible values; if there are none, all, as vacuous."""
    assumption = _optimal(found)
    note = f"{says}; {_speed(found)}"
    if excess:
        note += f"; the right side is above the formula's, as rank one is faster by up to {excess:.2g} of the speed"
    biting = [(ratio, bound) for ratio, bound in compared if bound < ratio.largest]
    for ratio, bound in sorted(biting or compared, key=lambda pair: -pair[0].value):
        which = f"{ratio.name}, the closest of {len(biting or compared)} numbers; {note}"
        trivial = f"the bound is {bound:.3g}, and no such number can be above {ratio.largest:.3g}; {empty}"
        empty_ = "" if biting else trivial
        yield Sides(ratio.value, bound, "<=", 1e-9, 1.0, (assumption,), which, vacuous=empty_, least=-math.inf)
