"""The stages of a reduction: collapse, narrow, factor, each within a share of the tolerance."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bnrank.discovery.compression.chain import Parts, convolution, is_linear
from bnrank.discovery.compression.costs import Counts, cost, counts
from bnrank.discovery.compression.judging import Judge
from bnrank.discovery.compression.neurons import Ranking, balanced, narrowed, rankings, without_superfluous
from bnrank.discovery.compression.replacements import Collapsing, factored

T = TypeVar("T")

TRIALS = 8  # scales of the change tried for a share of the tolerance
START = 8.0  # times the share of the tolerance: the first of them
COLLAPSE_SHARES = (0.3, 0.6, 0.85)  # of the tolerance, as below
NARROW_SHARES = (0.6, 0.9)


@dataclass(frozen=True)
class Step:
    """One step of the reduction of a segment.

    Attributes
    ----------
    kind : str
        "fold", "prune", "collapse", "narrow", "factor" or "tune".
    where : str
        The segment, "" for the whole module, and its linear parts, counted from 1 before the step.
    what : str
        Description.
    change : float
        Change of the module's output after this step, on the samples that decided, see :class:`Judge`; 0 where exact.
    rank : int or None
        Rank of a collapse.
    """

    kind: str
    where: str
    what: str
    change: float
    rank: int | None = None


@dataclass(frozen=True)
class Cut:
    """A reduced segment, with the steps and the reason for steps not taken.

    Attributes
    ----------
    parts : tuple of torch.nn.Module
        The reduced segment.
    steps : tuple of Step
        In order.
    cost : float
        Mean of the relative numbers of parameters, multiply-adds and linear parts.
    change : float
        Measured change of the output.
    reason : str
        Why nothing was collapsed, and, where so, why every neuron or channel stays; empty after a collapse.
    """

    parts: Parts
    steps: tuple[Step, ...]
    cost: float
    change: float
    reason: str = ""


def cut_down(judge: Judge, parts: Parts, name: str, tol: float) -> Cut:
    """Return the cheapest replacement of a segment within the tolerance.

    Exact removals come first. For several shares of the tolerance, runs of layers are then collapsed, and the result
    is narrowed and factored; the cheapest outcome wins.
    """
    whole = counts(parts, judge.x)
    slim, removed, merged = without_superfluous(parts, judge.x)
    steps: list[Step] = []
    if removed or merged:
        what = f"{removed} dead or constant, {merged} parallel to others"
        steps.append(Step("prune", _where(name), f"removed neurons and channels: {what}", 0.0))
    start = Cut(slim, tuple(steps), cost(slim, judge.x, whole), judge(slim))
    ranked = rankings(judge, slim, whole)
    outcomes = [start, *_narrowed_and_factored(judge, start, name, tol, whole, ranked)]
    search = Collapsing(judge, slim, whole)
    collapsed: dict[tuple[int, int, int], Cut] = {}
    for share in COLLAPSE_SHARES:
        found = search.best(share * tol)
        if found is not None:
            line = f"layers {found.first} to {found.last} became one linear map of rank {found.rank}"
            line += ", fitted frequency by frequency" if found.by == "frequency" else ""
            where = _where(name, f"{found.first} to {found.last}")
            step = Step("collapse", where, line, found.change, found.rank)
            cut = Cut(found.parts, (*start.steps, step), found.cost, found.change)
            collapsed.setdefault((found.first, found.last, found.rank), cut)
    for cut in collapsed.values():
        ranked_then = rankings(judge, cut.parts, whole)
        outcomes += [cut, *_narrowed_and_factored(judge, cut, name, tol, whole, ranked_then)]
    best = min(outcomes, key=lambda c: (c.cost, c.change))
    reason = ""
    if all(step.kind != "collapse" for step in best.steps):
        reason = _reason(parts, bool(collapsed), search, tol)
        if all(step.kind != "narrow" for step in best.steps):
            reason += _all_kept(slim, ranked, judge.scale, tol)
    return Cut(balanced(best.parts, judge.x), best.steps, best.cost, best.change, reason)


def _reason(parts: Parts, collapsible: bool, search: Collapsing, tol: float) -> str:
    """Return the reason why nothing was collapsed."""
    if sum(map(is_linear, parts)) < 2:
        return "no bottleneck across depth: a single linear layer"
    if collapsible:
        return "a bottleneck could be collapsed, but narrowing and factoring the layers one by one is cheaper"
    if math.isfinite(search.nearest):
        allowed = 100 * tol * max(COLLAPSE_SHARES)
        why = f"the best of the cheaper linear maps changes the output by {100 * search.nearest:.3g} percent"
        return f"no bottleneck across depth: {why}, more than the {allowed:.3g} percent allowed"
    if search.skipped:
        runs = "1 run of layers has" if search.skipped == 1 else f"{search.skipped} runs of layers have"
        return f"no bottleneck found: {runs} too many values at either end for a linear map to be fitted"
    return "no bottleneck across depth: no linear map of low rank is cheaper than the layers that it would replace"


def _all_kept(parts: Parts, ranked: list[Ranking], scale: float, tol: float) -> str:
    """Return the reason why no neuron or channel was removed; "" where there are none between two layers."""
    linear = [part for part in parts if is_linear(part)]
    if len(linear) < 2:
        return ""
    units = "channel" if any(map(convolution, linear[:-1])) else "neuron"
    if not ranked:
        return f"; every {units} stays: what stands between the layers mixes them"
    change = min(float(ranking.tails[-2]) for ranking in ranked) / scale
    least = f"leaving out the one nearest to it changes the output by about {100 * change:.3g} percent"
    allowed = max(NARROW_SHARES) * tol
    why = "those that are linear in others save too little for the change that they make"
    if change > allowed:
        why = f"none is linear in others within the {100 * allowed:.3g} percent allowed"
    return f"; every {units} stays: {why} ({least})"


def _narrowed_and_factored(
    judge: Judge, cut: Cut, name: str, tol: float, whole: Counts, ranked: list[Ranking]
) -> list[Cut]:
    found = []
    narrow_seen = set()
    for share in NARROW_SHARES if ranked else (0.0,):
        narrow = cut
        if share:
            got = _most(judge, lambda t: narrowed(judge, cut.parts, ranked, t), share * tol)
            if got is not None:
                parts, kept, change = got
                before = [len(r.order) for r in ranked]
                if kept != before:
                    what = ", ".join(f"{b} to {k}" for b, k in zip(before, kept, strict=True) if b != k)
                    step = Step("narrow", _where(name), f"neurons or channels: {what}", change)
                    narrow = Cut(parts, (*cut.steps, step), cost(parts, judge.x, whole), change)
        if narrow.steps in narrow_seen:
            continue
        narrow_seen.add(narrow.steps)
        found.append(narrow)
        two = _most(judge, lambda t, parts=narrow.parts: factored(judge, parts, t, whole), tol)  # type: ignore[misc]
        if two is not None and two[1]:
            parts, ranks, change = two
            what = ", ".join(f"layer {layer} to rank {k}" for layer, k in ranks)
            step = Step("factor", _where(name), what, change)
            found.append(Cut(parts, (*narrow.steps, step), cost(parts, judge.x, whole), change))
    return found


def _most(judge: Judge, make: Callable[[float], tuple[Parts, T]], limit: float) -> tuple[Parts, T, float] | None:
    """Return the outcome of the largest scale that keeps the change within the limit; None where none does.

    Scales decrease by factors of 4 from START times the limit to the first that does, then the gap is bisected.
    """
    scale, above, best = START * limit, math.inf, None
    for _ in range(TRIALS):
        parts, about = make(scale)
        found = judge(parts)
        if found <= limit:
            best, below = (parts, about, found), scale
            if above == math.inf:
                break
            scale = math.sqrt(below * above)
        else:
            above = scale
            scale = math.sqrt(below * above) if best is not None else scale / 4
    return best


def _where(name: str, layers: str = "") -> str:
    inside = f"layers {layers}" if layers else ""
    return ", ".join(part for part in (name, inside) if part)
