"""The stages of a reduction (collapse, narrow, factor), each within a share of the tolerance."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import nn

from bnrank.discovery.compression import budget
from bnrank.discovery.compression.fits import AffineFit, equivariant_fit, fit, pair
from bnrank.discovery.compression.judging import Judge
from bnrank.discovery.compression.lowrank import RULES, Choice, Factoring
from bnrank.discovery.compression.neurons import Ranking, balanced, narrowed, rankings, without_superfluous
from bnrank.discovery.compression.parts import Counts, Parts, cost, counts, is_linear, parameters, share

T = TypeVar("T")
U = TypeVar("U")

TRIALS = 8  # scales of the change tried for a share of the tolerance
NEARLY = 1.02  # times the fewest parameters: among outcomes with at most so many, the cheapest is selected
CLOSE = 0.98  # of the limit: a change above needs no further trial
LEAST = 0.1  # of the way between two scales
START = 8.0  # the first scale, in multiples of the share of the tolerance
COLLAPSE_SHARES = (0.3, 0.6, 0.85)  # shares of the tolerance for collapsing, as for narrowing below
NARROW_SHARES = (0.6, 0.9)
ABOVE = (0, 1, 2, 3, 5)  # increments to the smallest candidate rank that are tried for a pair of layers
AHEAD = 2  # layers tried beyond the first failure
MAX_SVD = 4e8  # N n1 min(N, n1), the cost of an SVD: at most seconds


@dataclass(frozen=True)
class Step:
    """One step of the reduction of a segment.

    Attributes
    ----------
    kind : str
        "fold", "prune", "collapse", "narrow", "factor", "zero" or "tune".
    where : str
        The segment, "" for the whole module, and its linear parts, counted from 1 before the step.
    what : str
        Description.
    change : float
        Change of the module's output after this step, on the samples of the search, see :class:`Judge`; 0 if exact.
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
        Why nothing was collapsed and, if every neuron or channel was kept, why; empty after a collapse.
    plain : bool
        Whether it is activation-aware SVD alone.
    """

    parts: Parts
    steps: tuple[Step, ...]
    cost: float
    change: float
    reason: str = ""
    plain: bool = False

    def then(self, step: Step, parts: Parts, cost: float, plain: bool = False) -> "Cut":
        """Return the segment after one more step."""
        return Cut(parts, (*self.steps, step), cost, step.change, plain=plain)


class Collapsing:
    """The search for runs of layers that can be replaced, with cached fits.

    Parameters
    ----------
    judge : Judge
        Measures changes.
    start : Cut
        The segment so far.
    name : str
        Name of the segment.
    whole : tuple of int
        The reference of relative costs, see :func:`~bnrank.discovery.compression.parts.counts`.
    """

    def __init__(self, judge: Judge, start: Cut, name: str, whole: Counts) -> None:
        self.judge = judge
        self.start = start
        self.parts = start.parts
        self.name = name
        self.whole = whole
        self.places = [i for i, part in enumerate(self.parts) if is_linear(part)]
        self.values, self.metrics = judge.trace(self.parts), judge.metrics(self.parts)
        self.nearest = math.inf
        """Smallest measured change of the output by a replacement of at least two layers."""
        self.skipped = 0
        """Number of runs of layers with too many values for a fit."""
        self._fitted: dict[tuple[int, int], tuple[str, AffineFit, float] | None] = {}
        self._tried: dict[tuple[int, int, int], Cut | None] = {}

    def best(self, limit: float) -> Cut | None:
        """Return the cheapest replacement of a run of layers with a change of at most ``limit``; None without any.

        For every first layer p, the last layer q increases as long as a rank is found. For p + 1 the search starts at
        that q, since a run inside a replaceable run is replaceable too. For p and q, the smallest rank within the limit
        is used, if it is cheaper than the layers.
        """
        found: list[Cut] = []
        reached = 1
        for p in range(len(self.places) - 1):
            misses = 0
            for q in range(max(p + 1, reached), len(self.places)):
                best = self._smallest(p, q, limit)
                if best is not None:
                    found.append(best)
                    reached, misses = q, 0
                else:
                    misses += 1
                if misses > AHEAD:
                    break
        return min(found, key=lambda c: (c.cost, c.change), default=None)

    def _smallest(self, p: int, q: int, limit: float) -> Cut | None:
        """Return the replacement of linear parts p to q (from 0) of smallest rank within the limit."""
        if (p, q) not in self._fitted:
            self._fitted[p, q] = self._fit(self.places[p], self.places[q])
        fit_ = self._fitted[p, q]
        if fit_ is None:
            return None
        _, fitted, size = fit_
        i, j = self.places[p], self.places[q]
        old = cost(self.parts[i : j + 1], self.values[i], self.whole)
        entries = self.values[i][0].numel() + self.values[j + 1][0].numel()
        affordable = int(old / share((1, 1, 0), self.whole) / entries)  # larger ranks cost more than the layers
        rank = len(fitted.reading)
        smallest = min(int((fitted.tails > limit * size).sum()), rank)
        for k in (smallest + more for more in ABOVE if smallest + more <= min(affordable, rank)):
            if (p, q, k) not in self._tried:
                self._tried[p, q, k] = self._replaced(p, q, k)
            found = self._tried[p, q, k]
            if found is not None:
                self.nearest = min(self.nearest, found.change)
                if found.change <= limit:
                    return found
        return None

    def _replaced(self, p: int, q: int, k: int) -> Cut | None:
        """Return the replacement of rank k, or None if it is not cheaper."""
        i, j, fit_ = self.places[p], self.places[q], self._fitted[p, q]
        assert fit_ is not None
        a, z2 = self.values[i], self.values[j + 1]
        middle = pair(self.parts[i], tuple(a.shape[1:]), tuple(z2.shape[1:]), fit_[1], k)
        new = (*self.parts[:i], *middle, *self.parts[j + 1 :])
        price = cost(new, self.judge.x, self.whole)
        if price >= self.start.cost:
            return None
        line = f"layers {p + 1} to {q + 1} became one linear map of rank {k}"
        line += ", fitted frequency by frequency" if fit_[0] == "frequency" else ""
        where = ", ".join(filter(None, (self.name, f"layers {p + 1} to {q + 1}")))
        return self.start.then(Step("collapse", where, line, self.judge(new), k), new, price)

    def _fit(self, i: int, j: int) -> tuple[str, AffineFit, float] | None:
        """Return the kind of fit of part j's output from part i's, the fit, and the scale of its tails."""
        a, z1, z2 = (self.values[at].double() for at in (i, i + 1, j + 1))
        smallest = min(len(a), z1[0].numel())
        if a.ndim < 2 or len(a) * smallest * max(z1[0].numel(), z2[0].numel()) > MAX_SVD:
            self.skipped += 1
            return None
        equivariant = equivariant_fit(self.parts[i : j + 1], z1, z2)
        if equivariant is not None:
            return "frequency", equivariant, float(equivariant.tails[0])
        metric = self.metrics.get(j) if z2.ndim == 2 else None
        fitted = fit(z1.flatten(1), z2.flatten(1), metric)
        return "samples", fitted, float(fitted.tails[0]) if metric is None else self.judge.scale


def fewest(outcomes: Sequence[Cut]) -> Cut:
    """Return the outcome of lowest cost among those of nearly the fewest parameters.

    Never one with more parameters than activation-aware SVD alone leaves.
    """
    sizes = [parameters(nn.Sequential(*cut.parts)) for cut in outcomes]
    plain = [size for size, cut in zip(sizes, outcomes, strict=True) if cut.plain]
    limit = min([NEARLY * min(sizes), *plain])
    near = [cut for size, cut in zip(sizes, outcomes, strict=True) if size <= max(limit, min(sizes))]
    return min(near, key=lambda cut: (cut.cost, cut.change))


def cut_down(judge: Judge, parts: Parts, name: str, tol: float) -> Cut:
    """Return the cheapest replacement of a segment within the tolerance.

    Exact removals come first. For several shares of the tolerance, runs of layers are then collapsed, and the result is
    narrowed and factored; the cheapest outcome is returned.
    """
    whole = counts(parts, judge.x)
    slim, removed, merged = without_superfluous(parts, judge.x)
    steps: list[Step] = []
    if removed or merged:
        what = f"{removed} dead or constant, {merged} parallel to others"
        steps.append(Step("prune", name, f"removed neurons and channels: {what}", 0.0))
    start = Cut(slim, tuple(steps), cost(slim, judge.x, whole), judge(slim))
    ranked = rankings(judge, slim, whole)
    outcomes = [start, *_narrowed_and_factored(judge, start, name, tol, whole, ranked)]
    search = Collapsing(judge, start, name, whole)
    collapsed: list[Cut] = []
    for share_ in COLLAPSE_SHARES:
        if budget.current().over:
            break
        found = search.best(share_ * tol)
        if found is not None and found not in collapsed:
            collapsed.append(found)
    for cut in collapsed:
        ranked_then = rankings(judge, cut.parts, whole)
        outcomes += [cut, *_narrowed_and_factored(judge, cut, name, tol, whole, ranked_then)]
    best = fewest(outcomes)
    reason = ""
    if all(step.kind != "collapse" for step in best.steps) and not budget.current().stopped:
        reason = _reason(parts, bool(collapsed), search, tol)
        if all(step.kind != "narrow" for step in best.steps):
            reason += _all_kept(slim, ranked, judge.scale, tol, bool(steps))
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


def _all_kept(parts: Parts, ranked: list[Ranking], scale: float, tol: float, pruned: bool) -> str:
    """Return why all neurons or channels stay, those left where some were pruned; "" if none is between two layers."""
    linear = [part for part in parts if is_linear(part)]
    if len(linear) < 2:
        return ""
    units = "channel" if any(type(part) is not nn.Linear for part in linear[:-1]) else "neuron"
    units = f"remaining {units}" if pruned else units
    if not ranked:
        return f"; every {units} stays: what stands between the layers mixes them"
    if all(len(ranking.order) == 1 for ranking in ranked):
        return f"; every {units} stays: each layer keeps at least one"
    change = min(float(ranking.tails[-2]) for ranking in ranked) / scale
    nearest = f"leaving out the one nearest to it changes the output by about {100 * change:.3g} percent"
    allowed = max(NARROW_SHARES) * tol
    why = "those that are linear in others save too little for the change that they make"
    if change > allowed:
        why = f"none is linear in others within the {100 * allowed:.3g} percent allowed"
    return f"; every {units} stays: {why} ({nearest})"


def _narrowed_and_factored(
    judge: Judge, cut: Cut, name: str, tol: float, whole: Counts, ranked: list[Ranking]
) -> list[Cut]:
    before = [len(ranking.order) for ranking in ranked]
    starts = {} if ranked else {cut.steps: cut}
    for share_ in NARROW_SHARES if ranked else ():
        narrow = cut
        got = most(lambda made: judge(made[0]), lambda t: narrowed(judge, cut.parts, ranked, t), share_ * tol)
        if got is not None and got[0][1] != before:
            (parts, kept), change = got
            what = ", ".join(f"{b} to {k}" for b, k in zip(before, kept, strict=True) if b != k)
            step = Step("narrow", name, f"neurons or channels: {what}", change)
            narrow = cut.then(step, parts, cost(parts, judge.x, whole))
        starts.setdefault(narrow.steps, narrow)
    found = []
    for narrow in starts.values():
        found.append(narrow)
        found += _factored(judge, narrow, name, tol, whole)
    return found


def _factored(judge: Judge, cut: Cut, name: str, tol: float, whole: Counts) -> list[Cut]:
    """Return a segment with layers factored by every rule."""
    numbers = {str(i): n for n, i in enumerate((i for i, p in enumerate(cut.parts) if is_linear(p)), 1)}
    factoring = Factoring(judge, nn.Sequential(*cut.parts), list(numbers), whole)
    found = []
    for rule in RULES:
        two = most(lambda made: factoring.change(made[0]), partial(factoring.at, rule=rule), tol)
        if two is None or not two[0][1]:
            continue
        (choice, ranks), change = two
        parts = inlined(cut.parts, choice)
        step = Step("factor", name, ", ".join(f"layer {numbers[layer]} to rank {k}" for layer, k in ranks), change)
        alone = rule == "plain" and all(step.kind == "prune" for step in cut.steps)
        found.append(cut.then(step, parts, cost(parts, judge.x, whole), alone))
    return found


def inlined(parts: Parts, choice: Choice) -> Parts:
    """Return parts with those named by their index replaced."""
    return tuple(new for i, part in enumerate(parts) for new in choice.get(str(i), (part,)))


def _between(low: float, limit: float, high: float) -> float:
    """Return where to look for a limit between two changes, as a fraction of the way, on logarithmic scales."""
    if not (0 < low < high and math.isfinite(high)):
        return 0.5
    return min(max(math.log(limit / low) / math.log(high / low), LEAST), 1 - LEAST)


def most(
    measure: Callable[[tuple[T, U]], float], make: Callable[[float], tuple[T, U]], limit: float
) -> tuple[tuple[T, U], float] | None:
    """Return the outcome at the largest scale that keeps the change within the limit, and the change, or None.

    Scales decrease by factors of 4 from START times the limit to the first that does, or increase to the first that
    does not or changes nothing. Between the last two the change is taken to be a power of the scale, until a change is
    within 2 percent of the limit; after two outcomes on the same side of it, the interval is halved. An outcome is a
    pair of which the second entry describes the first.
    """
    scale, below, above, best = START * limit, 0.0, math.inf, None
    change_below, change_above, sides = 0.0, 0.0, [False]
    known: list[tuple[U, float]] = []
    for _ in range(TRIALS):
        if budget.current().over:
            break
        budget.current().trial(f"scale {scale:.2g} for a change of {100 * limit:.2g} percent")
        made = make(scale)
        again = next((one for what, one in known if what == made[1]), None)
        found = measure(made) if again is None else again
        known.append((made[1], found))
        sides.append(found <= limit)
        if found <= limit:
            same = best is not None and best[0][1] == made[1]
            best, below, change_below = (made, found), scale, found
            if (above == math.inf and same) or found > CLOSE * limit:
                break
        else:
            above, change_above = scale, found
        if above == math.inf:
            scale *= 4
        else:
            guess = 0.5 if sides[-1] == sides[-2] else _between(change_below, limit, change_above)
            scale = below * (above / below) ** guess if below else scale / 4
    return best
