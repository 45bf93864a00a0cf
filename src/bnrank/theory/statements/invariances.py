"""Statements about quantities that gradient flow conserves, for modules with a computation graph (T42, T44-T49)."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.theory.facts import DIFFERENTIABLE, Facts
from bnrank.theory.invariants import conserved
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.patterns import Pair
from bnrank.theory.neurons.neurons import NeuronGraph
from bnrank.theory.verdicts import Inconclusive, Sides, assume, assuming, statement

PATHS = 10_000  # largest number of weights, edges and paths of a network that is decomposed
SAMPLES = 10  # number of samples at which it is decomposed
RTOL = 1e-9  # tolerance of a rate, relative to the sum of the absolute values of its terms
NOISE = 1e-5  # allowance for rounding errors of the gradient in these sums, relative to the mean of ||f||^2
STEP = 0.1  # largest length of the gradient step of T49, in units of ||theta||


@statement(
    "T42",
    "a network is a tree of weights +1 and -1, applied to its paths",
    "f(x; w) = mu(h(x; w)), h_p = x_p times the weights along path p, mu a tree that depends on the signs of w",
    source="LeJegelka2022 lemma 1",
)
def _paths(facts: Facts) -> Sides:
    graph = facts.findings.graph
    weights = sum(facts.function.parameters[node.weight].numel() for node in graph if node.op in ("linear", "conv"))
    assume(weights <= PATHS, "a network of few paths", f"{weights} weights, more than {PATHS}")
    with assuming("a small network without parts outside the theory"):
        neurons = NeuronGraph.from_operations(graph, max_edges=PATHS)
    count = neurons.count()
    assume(count <= PATHS, "a network of few paths", f"{count} paths, more than {PATHS}")
    assume(count > 0, "a path leads from the input to the output", "there is none")
    x = facts.x[:SAMPLES]
    h, tree = neurons.enumerate(x), neurons.decompose()
    if not bool(h.isfinite().all()):
        raise Inconclusive("values leave the range of floats")
    scale = float(h.abs().sum(1).max())
    note = f"{count} paths, {len(tree)} nodes, {len(x)} samples; sum of |h_p| up to {scale:.3g}"
    return _furthest(tree(h), facts.outputs[:SAMPLES].cpu(), torch.tensor(scale, dtype=torch.float64), note, rtol=1e-10)


@statement(
    "T44",
    "vertex invariance",
    "d/dt (sum of squared in-weights - sum of squared out-weights) = 0 of every hidden vertex with learnable edges",
    source="LeJegelka2022 lemma 2, equation 4",
)
def _vertices(facts: Facts) -> Iterator[Sides]:
    found = _some(facts, " of a vertex", "vertex", "matrix")  # on the diagonal of a matrix
    return _still(facts, found, "channels", {q.name: torch.eye(q.size, dtype=torch.bool) for q in found})


@statement(
    "T45",
    "matrix invariance",
    "d/dt (W1 W1^T - W2^T W2) = 0 where nothing but learnable free linear maps touches a value",
    source="LeJegelka2022 theorem 1, corrected (E20)",
)
def _matrices(facts: Facts) -> Iterator[Sides]:
    return _still(facts, _some(facts, " of kind 'matrix'", "matrix"), "entries")


@statement(
    "T45",
    "pairs with the same activation pattern",
    "d/dt (W1 W1^T - W2^T W2)_uv = 0, u and v active on the same samples",
    source="LeJegelka2022 lemma 2, equation 5, and theorem 1",
)
def _same_patterns(facts: Facts) -> Iterator[Sides]:
    found = [pair for pair in _pairs(facts) if bool(facts.patterns[pair.name].any())]
    assume(len(found) > 0, f"two channels are active on the same of the {len(facts.few[0])} samples", "no two are")
    return _still(facts, found, f"entries of {_many(facts)}, pairs active on the same", facts.patterns)


@statement(
    "T46",
    "layer invariance",
    "d/dt (sum of squares over one cut - over another) = 0, each crossed exactly once by every path",
    source="LeJegelka2022 lemma 3, corrected (E20)",
)
def _layers(facts: Facts) -> Iterator[Sides]:
    return _still(facts, _some(facts, " of kind 'layer'", "layer"), "pairs of cuts")


@statement(
    "T47",
    "rate of pairs with different activation patterns",
    "d/dt (in - out)_uv = sum_i (D_ui - D_vi)(g_vi p_ui - g_ui p_vi)",
    source="LeJegelka2022 lemma 4",
)
def _different_patterns(facts: Facts) -> Iterator[Sides]:
    loss, y, formula = facts.loss
    masks = {}
    for pair in _pairs(facts):
        same, parts = facts.patterns[pair.name], torch.from_numpy(pair.parts)
        masks[pair] = (parts[:, None] == parts).to(same.device) & same.logical_not().fill_diagonal_(False)
    number = sum(int(mask.sum()) // 2 for mask in masks.values())
    assume(number > 0, "two channels are active on different samples", f"none of {len(facts.few[0])} samples")
    for pair, mask in masks.items():
        if bool(mask.any()):
            rate, size = pair.rate_along(facts.function.parameters, facts.gradient)
            closed = pair.closed_form_rate(facts.net, facts.few[0], y, loss)
            size = torch.maximum(size, torch.maximum(rate.abs(), closed.abs()))
            note = f"{pair.name}, of {number} pairs of {_many(facts)}; {_said(facts, formula)}"
            yield _furthest(rate, closed, size, note, mask, floor=_floor(facts))


@statement(
    "T47",
    "one sample changes pairs by a matrix of low rank",
    "rank d/dt (in - out) <= sum over places of min(4, 2 m), the loss of one sample, m channels unlike the others",
    source="LeJegelka2022 remark 1",
)
def _low_rank_rate(facts: Facts) -> Iterator[Sides]:
    loss, y, formula = facts.loss
    x = facts.few[0][:1]
    with assuming(DIFFERENTIABLE):
        gradient = conserved.gradient(facts.net, x, lambda out: conserved.cost(out.flatten(1), y[:1], loss))[1]
    for pair in _pairs(facts):
        rate, size = pair.rate_along(facts.function.parameters, gradient)
        noise = RTOL * (float(size.max()) + _floor(facts))
        if not (math.isfinite(noise) and bool(rate.isfinite().all())):
            raise Inconclusive("values leave the range of floats")
        rank = int(linalg.rank(torch.linalg.svdvals(rate), 1e-9, noise * pair.size))
        note = f"{pair.name}, {pair.size} channels, at the first sample; {_said(facts, formula)}"
        yield Sides(rank, pair.rate_rank(facts.net, x), rtol=0.0, note=note, most=pair.size)


@statement(
    "T48",
    "linear tails are of low rank",
    "(||W_j||_F^2 - kappa_j) / (d 2^{N_j} M_j) <= ||W_j||_op^2, kappa_j from the conserved matrices after layer j, d "
    "the smaller side of the last layer",
    source="LeJegelka2022 theorem 2, corrected (E20), constants as in docs/low-rank-tails.md",
)
def _tail(facts: Facts) -> Iterator[Sides]:
    tail, parameters = facts.tail, facts.function.parameters
    assume(len(tail) > 1, "the network ends in two linear layers or more", tail.why)
    bounds = tail.bounds(parameters)[:-1]  # for the last layer it is trivial: a matrix of rank d has rank d
    names = {name for layer in tail.layers for name in layer.parameters}
    size = sum(float(parameters[name].square().sum()) for name in names)  # scale of the rounding error of kappa
    for j, bound in enumerate(bounds):
        note = (
            f"{bound.layer}, of {len(tail)} layers ({tail.why}); d 2^N M = {bound.factor}, N = {tail.blocks[j]}, "
            f"M = {tail.multiplicities[j]:g}, kappa = {bound.constant:.4g}, ||W||_F^2 = {bound.frobenius:.6g}"
        )
        yield Sides(bound.right, bound.left, "<=", 1e-10, size, note=note, least=bound.trivial)


@statement(
    "T49",
    "one step of gradient descent",
    "Q(theta - eta g) = Q(theta) + eta^2 Q(g), Q = in - out, g = grad C",
    source="LeJegelka2022 section 4, for steps: T49",
)
def _step(facts: Facts) -> Iterator[Sides]:
    return _stepped(facts, 0.0)


@statement(
    "T49",
    "one step of gradient descent with a ridge",
    "Q(theta - eta (g + 2 lambda theta)) = (1 - 2 eta lambda)^2 Q(theta) + eta^2 Q(g), Q = in - out, g = grad C",
    source="LeJegelka2022 section 4, for steps: T49",
)
def _ridge_step(facts: Facts) -> Iterator[Sides]:
    return _stepped(facts, facts.penalty)


def _some(facts: Facts, what: str, *kinds: str) -> list[Conserved]:
    """Return the conserved quantities of the given kinds; NotApplicable if there are none."""
    found = [q for q in facts.findings if q.kind in kinds]
    assume(len(found) > 0, f"the network has a conserved quantity{what}", _nothing(facts))
    return found


def _nothing(facts: Facts) -> str:
    others = sorted({q.kind for q in facts.findings})
    return f"it has {', '.join(others)} only" if others else facts.findings.why_nothing


def _pairs(facts: Facts) -> list[Pair]:
    """Return up to four quantities of pairs of channels that go through an activation."""
    found = [q for q in facts.findings if isinstance(q, Pair) and q.name in facts.patterns]
    assume(len(found) > 0, "two channels go through an activation", _nothing(facts))
    return found


def _many(facts: Facts) -> str:
    return f"{len(facts.patterns)} of {len(facts.findings.having('pair'))} values at {len(facts.few[0])} samples"


def _floor(facts: Facts) -> float:
    """Return the allowance for rounding errors of the gradient, which matters at a minimum."""
    y, size = facts.loss[1], float(facts.outputs.square().sum(1).mean())
    return NOISE * (size + float(y.square().sum(1).mean()) if y.is_floating_point() else size**0.5)


def _still(
    facts: Facts, found: Sequence[Conserved], what: str, masks: dict[str, Tensor] | None = None
) -> Iterator[Sides]:
    """Yield, for every quantity, the rate furthest from 0 relative to the terms that cancel in it."""
    for quantity in found:
        rate, size = quantity.rate_along(facts.function.parameters, facts.gradient)
        mask = masks[quantity.name].to(rate.device) if masks is not None and rate.ndim == 2 else None
        number = rate.numel() if mask is None else int(mask.sum())
        note = f"{quantity.name}, {number} {what}; {_said(facts, facts.loss[2])}"
        yield _furthest(rate, torch.zeros_like(rate), size, note, mask, floor=_floor(facts))


def _stepped(facts: Facts, ridge: float) -> Iterator[Sides]:
    """Yield, for every quantity, Q after a step and the value predicted by T49."""
    theta, gradient = facts.function.parameters, facts.gradient
    found = _some(facts, "", "vertex", "matrix", "layer")
    names = list(dict.fromkeys(name for q in found for name in q.parameters))
    direction = {name: gradient[name] + 2 * ridge * theta[name] for name in names}
    length = sum(float(d.square().sum()) for d in direction.values()) ** 0.5
    norm = sum(float(theta[name].square().sum()) for name in names) ** 0.5
    assume(length > 0, "the gradient is not 0")
    eta = min(1.0, STEP * norm / length) if norm else 1.0
    moved = {name: theta[name] - eta * direction[name] for name in names}
    for quantity in found:
        right = (1 - 2 * eta * ridge) ** 2 * quantity.of(theta) + eta**2 * quantity.of(gradient)
        size = quantity.scale(theta) + eta**2 * quantity.scale(gradient)
        note = f"{quantity.name}, of {len(found)} quantities; eta = {eta:.3g}; {_said(facts, facts.loss[2])}"
        yield _furthest(quantity.of(moved), right, size, note, floor=_floor(facts))


def _furthest(
    left: Tensor,
    right: Tensor,
    size: Tensor,
    note: str,
    mask: Tensor | None = None,
    rtol: float = RTOL,
    floor: float = 0.0,
) -> Sides:
    """Return both sides at the entry where two tensors differ most, relative to ``size`` + ``floor``."""
    far = (left - right).abs() / (size + floor).clamp(min=torch.finfo(torch.float64).tiny)
    far, weight = (t if mask is None else t.where(mask, -1.0) for t in (far, size.expand_as(left)))
    i = int((far if float(far.max()) else weight).argmax())  # the most terms, where no entry differs
    sides = [float(t.expand_as(left).flatten()[i]) for t in (left, right, size)]
    at = f"entry {tuple(map(int, np.unravel_index(i, left.shape)))} of " if left.ndim else ""
    return Sides(sides[0], sides[1], "=", rtol, sides[2], note=at + note, atol=rtol * floor)


def _said(facts: Facts, formula: str) -> str:
    outside = ", ".join(dict.fromkeys(f"{o.name} ({o.type})" for o in facts.findings.outside))
    return f"{formula}; outside the theory: {outside}" if outside else formula
