"""Statements about what gradient flow keeps, for any module with a computation graph (T42, T44 to T49)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnrank.networks.graph.layers import LayerGraph
from bnrank.theory.facts import Facts
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.patterns import Pair
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, Statement, statement

__all__ = ["STATEMENTS"]

PATHS = 10_000  # of a network that is decomposed, and edges
SAMPLES = 10  # it is decomposed at
TOLERANCE = 1e-9  # of the sum of the absolute values of the products that a rate is a sum of
NOISE = 1e-5  # of mean ||f||^2: times the tolerance, the rate that rounding of the loss's gradient can leave
BEYOND = "values leave the range of floats"
STEP = 0.1  # length of the gradient step of T49, in units of ||theta||


@statement(
    "T42",
    "a network is a tree of weights +1 and -1, applied to its paths",
    "f(x; w) = mu(h(x; w)), h_p = x_p times the weights along path p, mu a tree that depends on the signs of w",
    source="LeJegelka2022 lemma 1",
)
def _paths(facts: Facts) -> Sides:
    graph = _graph(facts)
    weights = sum(facts.function.parameters[node.weight].numel() for node in graph if node.op in ("linear", "conv"))
    if weights > PATHS:
        raise NotApplicable("a network of few paths", f"{weights} weights and a path through each, more than {PATHS}")
    try:
        neurons = graph.neurons(facts.net, limit=PATHS)
    except ValueError as error:
        raise NotApplicable("a small network without parts outside the theory", str(error)) from error
    count = neurons.count()
    if count > PATHS:
        raise NotApplicable("a network of few paths", f"{count} paths, more than {PATHS}")
    if not count:
        raise NotApplicable("a path leads from the input to the output", "there is none")
    x = facts.x[:SAMPLES]
    h, tree = neurons.enumerate(x), neurons.decompose()
    given = facts.outputs[:SAMPLES].cpu()
    if not bool(h.isfinite().all()):
        raise Inconclusive(BEYOND)
    out = tree(h)
    scale = float(h.abs().sum(1).max())
    worst = int((out - given).abs().argmax())
    note = f"{count} paths, {len(tree)} nodes, {len(x)} samples; sum of |h_p| up to {scale:.3g}"
    return Sides(float(out.flatten()[worst]), float(given.flatten()[worst]), "=", 1e-10, scale, note=note)


@statement(
    "T44",
    "vertex invariance",
    "d/dt (sum of squared in-weights - sum of squared out-weights) = 0 of every hidden vertex with learnable edges",
    source="LeJegelka2022 lemma 2, equation 4",
)
def _vertices(facts: Facts) -> Sides:
    found = [q for q in facts.findings if q.kind in ("vertex", "matrix")]  # a vertex's is on the matrix's diagonal
    if not found:
        raise NotApplicable("the network has a conserved quantity of a vertex", _nothing(facts))
    return _still(facts, found, "channels", {q.name: torch.eye(q.size, dtype=torch.bool) for q in found})


@statement(
    "T45",
    "matrix invariance",
    "d/dt (W1 W1^T - W2^T W2) = 0 where nothing but learnable free linear maps touches a value",
    source="LeJegelka2022 theorem 1, corrected (E20)",
)
def _matrices(facts: Facts) -> Sides:
    return _still(facts, _some(facts, "matrix"), "entries")


@statement(
    "T45",
    "pairs with the same activation pattern",
    "d/dt (W1 W1^T - W2^T W2)_uv = 0, u and v active on the same samples",
    source="LeJegelka2022 lemma 2, equation 5, and theorem 1",
)
def _same_patterns(facts: Facts) -> Sides:
    pairs = _pairs(facts)
    found = [(pair, mask) for pair, mask in pairs if bool(mask.any())]
    number = sum(int(mask.sum()) // 2 for _, mask in found)
    if not found:
        raise NotApplicable(f"two channels are active on the same of the {len(facts.few[0])} samples", "no two are")
    sides = _still(facts, [p for p, _ in found], "entries", {p.name: mask for p, mask in found})
    where = f"of {_many(facts, len(pairs))}, active on the same of {len(facts.few[0])} samples"
    return replace(sides, note=f"{number} pairs {where}; {sides.note}")


@statement(
    "T46",
    "layer invariance",
    "d/dt (sum of squares over one cut - over another) = 0, each crossed exactly once by every path",
    source="LeJegelka2022 lemma 3, corrected (E20)",
)
def _layers(facts: Facts) -> Sides:
    return _still(facts, _some(facts, "layer"), "pairs of cuts")


@statement(
    "T47",
    "rate of pairs with different activation patterns",
    "d/dt (in - out)_uv = sum_i (D_ui - D_vi)(g_vi p_ui - g_ui p_vi)",
    source="LeJegelka2022 lemma 4",
)
def _different_patterns(facts: Facts) -> Sides:
    loss, y, formula = facts.loss
    found, number, pairs = [], 0, _pairs(facts)
    for pair, same in pairs:
        parts = torch.from_numpy(np.asarray(pair.parts)).to(same.device)
        mask = (parts[:, None] == parts) & same.logical_not().fill_diagonal_(False)
        if not bool(mask.any()):
            continue
        number += int(mask.sum()) // 2
        rate, size = _rate(facts, pair)
        closed = pair.closed_form_rate(facts.net, facts.few[0], y, loss)
        size = torch.maximum(size, torch.maximum(rate.abs(), closed.abs())) + _floor(facts)
        found.append(_furthest(pair.name, rate, closed, size, mask))
    if not found:
        raise NotApplicable("two channels are active on different samples", f"none are, of {len(facts.few[0])} samples")
    worst = max(found)
    where = f"of {_many(facts, len(pairs))} at {len(facts.few[0])} samples"
    note = f"{worst.place}, the furthest of {number} pairs {where}; {_said(facts, formula)}"
    return Sides(worst.left, worst.right, "=", TOLERANCE, worst.size, note=note)


@statement(
    "T48",
    "linear tails are of low rank",
    "(||W_j||_F^2 - kappa_j) / (d 2^{N_j} M_j) <= ||W_j||_op^2, kappa_j from the conserved matrices after layer j, d "
    "the least side of the last layer",
    source="LeJegelka2022 theorem 2, corrected (E20), constants as in docs/low-rank-tails.md",
)
def _tail(facts: Facts) -> Sides:
    _graph(facts)
    tail = facts.tail
    if len(tail) < 2:
        raise NotApplicable("the network ends in two linear layers or more", tail.why)
    parameters = facts.function.parameters
    bounds = tail.bounds(parameters)[:-1]  # of the last one it says that a matrix of rank d has rank d
    names = {name for layer in tail.layers for name in layer.parameters}
    size = sum(float(parameters[name].square().sum()) for name in names)  # what kappa is rounded at, last layer too
    least = max(1e-10 * size, torch.finfo().tiny)
    shapes = [min(layer.written(parameters).shape) for layer in tail.layers]
    biting = [b for b, side in zip(bounds, shapes, strict=False) if b.right * side > b.frobenius]
    chosen = min(biting or bounds, key=lambda b: (b.left - b.right) / max(b.frobenius, least))
    j = tail.names.index(chosen.layer)
    note = (
        f"{chosen.layer}, the closest of {len(biting or bounds)} layers of {len(tail)} ({tail.why}); d 2^N M = "
        f"{chosen.factor}, N = {tail.blocks[j]}, M = {tail.multiplicities[j]:g}, kappa = {chosen.constant:.4g}, "
        f"||W||_F^2 = {chosen.frobenius:.6g}"
    )
    trivial = chosen.frobenius / shapes[j]
    return Sides(
        chosen.right,
        chosen.left,
        "<=",
        1e-10,
        size,
        note=note,
        vacuous="" if biting else f"the bound is {chosen.right:.4g}, and ||W||_F^2 / {shapes[j]} = {trivial:.4g}",
    )


@statement(
    "T49",
    "one step of gradient descent",
    "Q(theta - eta g) = Q(theta) + eta^2 Q(g), Q = in - out, g = grad C",
    source="LeJegelka2022 section 4, for steps: T49",
)
def _step(facts: Facts) -> Sides:
    return _stepped(facts, 0.0)


@statement(
    "T49",
    "one step of gradient descent with a ridge",
    "Q(theta - eta (g + 2 lambda theta)) = (1 - 2 eta lambda)^2 Q(theta) + eta^2 Q(g), Q = in - out, g = grad C",
    source="LeJegelka2022 section 4, for steps: T49",
)
def _ridge_step(facts: Facts) -> Sides:
    return _stepped(facts, facts.penalty)


STATEMENTS: tuple[Statement, ...] = (
    _paths,
    _vertices,
    _matrices,
    _same_patterns,
    _layers,
    _different_patterns,
    _tail,
    _step,
    _ridge_step,
)
"""T42 and T44 to T49, for any module whose computation graph is known."""


def _graph(facts: Facts) -> LayerGraph:
    return facts.findings.graph


def _some(facts: Facts, kind: str) -> list[Conserved]:
    """Return the conserved quantities of a kind."""
    found = list(facts.findings.having(kind))
    if not found:
        raise NotApplicable(f"the network has a conserved quantity of kind {kind!r}", _nothing(facts))
    return found


def _nothing(facts: Facts) -> str:
    others = sorted({q.kind for q in facts.findings})
    return f"it has {', '.join(others)} only" if others else facts.findings.why_nothing


def _pairs(facts: Facts) -> list[tuple[Pair, Tensor]]:
    """Return pairs of channels that go through an activation, and which have the same pattern; of a few values."""
    found = [q for q in facts.findings.having("pair") if isinstance(q, Pair) and q.name in facts.patterns]
    if not found:
        raise NotApplicable("two channels go through an activation", _nothing(facts))
    return [(pair, facts.patterns[pair.name]) for pair in found]


def _many(facts: Facts, looked_at: int) -> str:
    """Say at how many of the values that go through an activation was looked."""
    number = len(facts.findings.having("pair"))
    return f"{number} values" if number == looked_at else f"{looked_at} of {number} values"


def _rate(facts: Facts, quantity: Conserved) -> tuple[Tensor, Tensor]:
    """Return dQ/dt = -2 B(theta, grad C), and the sum of the absolute values of what cancels in it."""
    theta, gradient = facts.function.parameters, facts.gradient
    rate = -2 * quantity.between(theta, gradient)
    if quantity.kind in ("vertex", "layer"):
        products = {name: (theta[name] * gradient[name]).abs().sqrt() for name in quantity.parameters}
        return rate, 2 * quantity.scale(products)
    weights, slopes = (quantity.scale(t).diagonal().sqrt() for t in (theta, gradient))
    outer = torch.outer(weights, slopes)
    return rate, outer + outer.T


def _floor(facts: Facts) -> float:
    """Return below which rates are noise: at a minimum the gradient is what rounding leaves of it."""
    outputs, y = facts.outputs, facts.loss[1]
    size = float(outputs.square().sum(1).mean())
    if y.is_floating_point():
        return NOISE * (size + float(y.square().sum(1).mean()))
    return NOISE * size**0.5


def _still(facts: Facts, found: list[Conserved], what: str, masks: dict[str, Tensor] | None = None) -> Sides:
    """Return the rate that is furthest from 0, of what cancels in it."""
    all_of_them, number = [], 0
    for quantity in found:
        rate, size = _rate(facts, quantity)
        mask = torch.ones_like(rate, dtype=torch.bool)
        if masks is not None and rate.ndim == 2:
            mask = masks[quantity.name].to(rate.device)
        number += int(mask.sum())
        all_of_them.append(_furthest(quantity.name, rate, torch.zeros_like(rate), size + _floor(facts), mask))
    worst = max(all_of_them)
    note = f"{worst.place}: the furthest of {number} {what} of {len(found)} quantities; {_said(facts, facts.loss[2])}"
    return Sides(worst.left, 0.0, "=", TOLERANCE, worst.size, note=note)


def _stepped(facts: Facts, ridge: float) -> Sides:
    """Compare Q after a step with what T49 says, where it is furthest."""
    theta, gradient = facts.function.parameters, facts.gradient
    found = [q for q in facts.findings if q.kind != "pair"]
    if not found:
        raise NotApplicable("the network has a conserved quantity", _nothing(facts))
    names = list(dict.fromkeys(name for q in found for name in q.parameters))
    direction = {name: gradient[name] + 2 * ridge * theta[name] for name in names}
    length = sum(float(d.square().sum()) for d in direction.values()) ** 0.5
    norm = sum(float(theta[name].square().sum()) for name in names) ** 0.5
    if not length:
        raise NotApplicable("the gradient is not 0")
    eta = min(1.0, STEP * norm / length) if norm else 1.0
    moved = {name: theta[name] - eta * direction[name] for name in names}
    compared = []
    for quantity in found:
        right = (1 - 2 * eta * ridge) ** 2 * quantity.of(theta) + eta**2 * quantity.of(gradient)
        size = quantity.scale(theta) + eta**2 * quantity.scale(gradient) + _floor(facts)
        compared.append(_furthest(quantity.name, quantity.of(moved), right, size))
    worst = max(compared)
    note = f"{worst.place}, the furthest of {len(found)} quantities; eta = {eta:.3g}; {_said(facts, facts.loss[2])}"
    return Sides(worst.left, worst.right, "=", TOLERANCE, worst.size, note=note)


@dataclass(frozen=True, order=True)
class _Entry:
    """An entry of a quantity and what it is compared with; the larger, the further they are apart."""

    far: float
    left: float
    right: float
    size: float
    place: str


def _furthest(name: str, left: Tensor, right: Tensor, size: Tensor, mask: Tensor | None = None) -> _Entry:
    """Return the entry where two tensors are furthest apart, in units of a third."""
    far = (left - right).abs() / size.clamp(min=torch.finfo(torch.float64).tiny)
    far = far if mask is None else far.where(mask, -1.0)
    if bool(far.isnan().any()):
        raise Inconclusive(BEYOND)
    i = int(far.argmax())
    place = f", channel {i}" if left.ndim == 1 else ""
    if left.ndim == 2:
        place = f", channels {i // left.shape[1]} and {i % left.shape[1]}"
    there = [float(t.flatten()[i]) for t in (far, left, right, size)]
    return _Entry(there[0], there[1], there[2], there[3], name + place)


def _said(facts: Facts, formula: str) -> str:
    outside = facts.findings.outside
    if not outside:
        return formula
    return f"{formula}; outside the theory: {', '.join(dict.fromkeys(f'{o.name} ({o.type})' for o in outside))}"
