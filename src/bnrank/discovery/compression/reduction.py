"""The reduction of the segments of a module, one after another, and what it led to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.discovery.compression import judging
from bnrank.discovery.compression.judging import Judge, Outputs, tuned
from bnrank.discovery.compression.parts import Parts, Segment, counts, parameters
from bnrank.discovery.compression.result import replaced
from bnrank.discovery.compression.returned import Judged
from bnrank.discovery.compression.stages import Cut, Step, cut_down, fewest
from bnrank.discovery.compression.wholes import TUNED, put
from bnrank.networks import Skipped
from bnrank.networks.replicas import copied


@dataclass
class Search:
    """The reduction of segments, one after another.

    Attributes
    ----------
    x : Tensor
        The samples of the search.
    judged : Judged
        The outputs whose change is bounded.
    reference : list of Tensor
        These outputs of the module on x.
    fitted : int
        Number of samples for fits, which come first.
    real : int
        Number of given (not interpolated) samples, which come last.
    tune : int
        Iterations.
    new : dict
        From names of segments to their replacements.
    steps, reasons, skipped : list
        What was done, why no more, and what cannot be replaced.
    tried : set of str
        Layers that were measured one by one, to be factored.
    """

    x: Tensor
    judged: Judged
    reference: Outputs
    fitted: int
    real: int
    tune: int
    new: dict[str, Parts] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

    def cut(self, work: nn.Module, found: list[Segment], tol: float) -> None:
        """Reduce the segments of a module, in place.

        After each segment the squared change is at most its share: the fraction of the parameters considered so far.
        """
        sizes = [parameters(nn.Sequential(*segment.parts)) for segment in found]
        done = 0
        for segment, size in zip(found, sizes, strict=True):
            done += size
            limit = tol * (done / max(sum(sizes), 1)) ** 0.5
            try:
                judge = self._judge(work, segment)
                judge(segment.parts)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                why = f"the module cannot be run with another module in its place: {error}"
                self.skipped.append(Skipped(segment.name, "segment", why))
                continue
            cut = _cut(judge, segment, limit, self.tune)
            own = list(cut.steps)
            if segment.folded:
                what = f"{segment.folded} batch normalization(s) into the layers before"
                own.insert(0, Step("fold", segment.name, what, 0.0))
            if cut.reason:
                self.reasons.append(f"{segment.name}: {cut.reason}" if segment.name else cut.reason)
            if own and cut.change <= limit:
                self.steps += own
                self.new[segment.name] = cut.parts
                work = replaced(work, segment.name, nn.Sequential(*cut.parts))

    @property
    def given(self) -> Outputs:
        """The outputs on the samples that are not interpolated."""
        return [values[-self.real :] for values in self.reference]

    def judge(self) -> Judge:
        """Return the judge of whole modules."""
        first, second = (
            (self.x[rows], self.judged, [values[rows] for values in self.reference])
            for rows in (slice(0, self.fitted), slice(self.fitted, None))
        )
        return Judge(first, second, self.given)

    def _judge(self, work: nn.Module, segment: Segment) -> Judge:
        with torch.no_grad():
            given = judging.entering(work, segment.name, self.x).detach()
        first, second = (
            (given[rows], self._rest(work, segment.name, self.x[rows]), [values[rows] for values in self.reference])
            for rows in (slice(0, self.fitted), slice(self.fitted, None))
        )
        return Judge(first, second, self.given)

    def _rest(self, work: nn.Module, name: str, x: Tensor) -> Callable[[Any], Outputs]:
        """Return the map from a segment's output to the module's outputs, for given samples."""
        if not name:
            return self.judged
        stub: Any = nn.Module()
        around = put(copied(work), name, stub)

        def rest(value: Tensor) -> Outputs:
            stub.forward = lambda input: value  # the name that nn.Sequential has
            return self.judged(around(x.clone()))

        return rest


def _cut(judge: Judge, segment: Segment, limit: float, tune: int) -> Cut:
    """Return a reduced segment; with tuning, the cheapest of the cuts at multiples of the limit that end within it.

    A tuned outcome counts only if it has no more parameters and multiply-adds than the outcome without tuning: in the
    cost alone, fewer layers could outweigh more of either.
    """
    plain = cut_down(judge, segment.parts, segment.name, limit)
    if not tune:
        return plain
    outcomes = [plain]
    size = counts(plain.parts, judge.x)[:2]
    for factor in TUNED:
        cut = plain if factor == 1 else cut_down(judge, segment.parts, segment.name, factor * limit)
        if not cut.steps or not no_larger(counts(cut.parts, judge.x)[:2], size):
            continue
        parts, found = tuned(judge, cut.parts, tune)
        step = Step("tune", segment.name, f"at most {tune} iterations of L-BFGS at fixed size", found)
        if found < cut.change:
            cut = replace(cut, parts=parts, steps=(*cut.steps, step), change=found)
        if cut.change <= limit:
            outcomes.append(cut)
    return fewest(outcomes)


def no_larger(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether no entry is larger than the other."""
    return all(one <= other for one, other in zip(a, b, strict=True))
