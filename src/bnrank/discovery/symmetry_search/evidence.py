"""What moving samples says of fields: whether f changes by more than its error, in the model and in the data."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from bnrank.discovery.symmetry_search.domain import Domain
from bnrank.discovery.symmetry_search.fields import AffineFields, Coordinates, Family, transformed
from bnrank.discovery.symmetry_search.problem import Problem, Sample, outputs_of
from bnrank.discovery.symmetry_search.spectrum import EXACT, LARGEST, Found

WITHIN = 1.5  # in units of the relative error of f; smaller changes are indistinguishable from 0
EXCLUDED = 3.0  # the same where scores do not exclude a symmetry: errors are larger where samples are few
FLOWS = 8  # random one-parameter groups
INSIDE = 0.95  # quantile of the samples' distances to the mean that images may not exceed
TIMES = (1.0, 0.5)  # standard deviations by which samples move; the second where the first leads off the data
MAX_ERROR = 0.33  # a larger error hides too much to show a symmetry in the data: it leaves a tenth unexplained
VARIES = 0.8  # with a smaller error, f explains a third of the targets, and is not constant
NOT_SHOWN, VIOLATED = "not shown", "violated"


def change(
    net: nn.Module, x: Tensor, field: Tensor, where: Coordinates | None = None, domain: Domain | None = None
) -> float:
    """Return rms_i ||f(exp(v) x_i) - f(x_i)|| / rms_ij ||f(x_i) - f(x_j)|| for a field v, [A b] (d, d + 1).

    With coordinates ``where`` of the data, a sample counts only if its image is no farther from the mean than the 95
    percent quantile of the samples: an unbounded field, such as a boost or a scaling, moves others to where f is
    unknown. With a domain, it must also lie in the range of every column. NaN if fewer than a third of the samples
    count.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> round(change(torch.nn.Identity(), x, torch.pi * turn), 6)         # x -> -x
    2.0
    """
    return _between(net, x, moved(x, field), where, domain)


def _between(net: nn.Module, x: Tensor, images: Tensor, where: Coordinates | None, domain: Domain | None) -> float:
    """Return the change of f, as in `change`, between samples and their images (N, d)."""
    before = outputs_of(net, x)
    size = float((before - before.mean(0)).square().sum() / len(x))
    inside = torch.ones(len(x), dtype=torch.bool)
    if where is not None:
        inside = where.of(images).norm(dim=1) <= where.of(x).norm(dim=1).quantile(INSIDE)
    if domain is not None:
        inside &= domain.within(images).all(1)
    if 3 * int(inside.sum()) < len(x):
        return math.nan
    changes = (outputs_of(net, images[inside]) - before[inside]).square().sum(1)
    return (float(changes.mean()) / (2 * size)) ** 0.5


def moved(x: Tensor, field: Tensor) -> Tensor:
    """Return exp(v) x for a field v, [A b] (d, d + 1), and points (N, d)."""
    flow = torch.linalg.matrix_exp(torch.nn.functional.pad(field, (0, 0, 0, 1)))[:-1]
    return transformed(flow, x)


def change_along(field: Tensor, given: Problem, x: Tensor) -> float:
    """Return the change of f where samples (N, d) move along a field, [A b] (d, d + 1), by one standard deviation.

    By half of one where that leads too many samples off the data; NaN if that does, too.
    """
    size = float(given.where.from_x(field[None]).norm())
    changes = (change(given.net, x, time / size * field, given.where, given.domain) for time in TIMES)
    return next((found for found in changes if not math.isnan(found)), math.nan)


def judged(largest: float, given: Problem) -> str:
    """Return what the error of f says of a symmetry in the data along which f changes by ``largest``.

    "within the held-out error" (or the error that is known): at most 1.5 times the error, and the error is at most
    0.33; "violated": more; "not shown": the error is unknown or larger, or samples cannot move within the data.
    """
    rtol = given.rtol
    if rtol is None or math.isnan(largest):
        return NOT_SHOWN
    if largest > max(WITHIN * rtol, EXACT):
        return VIOLATED
    return f"within the {given.source}" if rtol <= MAX_ERROR else NOT_SHOWN


def along_flows(found: Found, family: Family, where: Coordinates, tested: Sample, given: Problem) -> Found:
    """Return a result of scores with what moving samples says, where the error of f is known.

    Unlike derivatives, values of f are comparable with its error. Samples move by one standard deviation of the data
    along random combinations of the fields found; coordinates along ignored directions are shuffled among samples: the
    joint effect of several such directions can be large even if each effect is small. If f changes by more than 1.5
    times its error, or if no field was found, the fields with the smallest values are followed one by one. The status
    is "none" if f changes by more than 1.5 times its error along each of them (3 times where scores do not exclude all
    fields), otherwise "undetermined".
    """
    rtol = given.rtol
    if not rtol or found.status == "exact" or not isinstance(family, AffineFields):
        return found
    if where.dimension == 1 and not family.constant and rtol <= VARIES and float(found.values[0]) > EXACT:
        reason = "f varies along the only direction that is left"
        return replace(found, vectors=found.vectors[:0], counts=0 * found.counts, status="none", reason=reason)
    words = ""
    if found.status == "approximate":
        largest, words = _joint(found.vectors, family, where, tested, given)
        if math.isnan(largest):
            return replace(found, reason=f"{found.reason}; {words}")
        if largest <= WITHIN * rtol:
            return replace(found, reason=f"{found.reason}; {words}")
        words = f", but {words}"
    changes = [_alone(vector, family, where, tested, given) for vector in found.lowest]
    limit = (WITHIN if found.status == "none" else EXCLUDED) * rtol
    known = [size for size in changes if not math.isnan(size)]
    within = sum(size <= limit for size in known)
    error = f"its error is {rtol:.2g}"
    if not known and found.status == "none":
        return found
    if known and not within and (len(known) == len(changes) or float(found.values[0]) > LARGEST):
        weakest = f"moving samples along the {len(known)} weakest changes f by {min(known):.2g} or more"
        reason = f"{found.reason}{words}" if words else f"every field changes f: {weakest}; {error}"
        return replace(found, vectors=found.vectors[:0], counts=0 * found.counts, status="none", reason=reason)
    start = f"{found.reason}{words}; " if found.status != "none" else ""
    if within:
        changed = f"{min(known):.2g}" if within == 1 else f"{min(known):.2g} or more"
        said = f"moving samples along {within} of the weakest fields changes f by only {changed}, and {error}"
    else:
        said = "samples moved along the weakest fields leave the data"
    reason = f"{start}{said}"
    possible = max(within or int((found.values <= LARGEST).sum()), len(found.vectors), 1)
    return replace(found, vectors=found.vectors[:0], status="undetermined", reason=reason, possible=possible)


def _joint(
    vectors: Tensor, family: AffineFields, where: Coordinates, tested: Sample, given: Problem
) -> tuple[float, str]:
    """Return the change of f along the fields together, and the same in words.

    Combinations along which samples can move have small components of fields along which they cannot. So fewer than
    half of them do not show that f is unchanged: NaN, unless f changes by more than 1.5 times its error.
    """
    generator = torch.Generator().manual_seed(given.seed)
    error = f"its error is {given.rtol:.2g}"
    if family.constant:
        largest = _shuffled(family.combined(vectors)[..., -1].T, where, tested, given, generator)
        if math.isnan(largest):
            return math.nan, "samples with shuffled coordinates leave the data, so that its error does not judge them"
        return largest, f"shuffling these coordinates among samples changes f by {largest:.2g}; {error}"
    weights = torch.randn(FLOWS, len(vectors), generator=generator, dtype=torch.float64)
    fields = where.to_x(family.combined(weights / weights.norm(dim=1, keepdim=True) @ vectors))
    changes = [change_along(field, given, tested.x) for field in fields]
    known = [size for size in changes if not math.isnan(size)]
    largest = max(known, default=math.nan)
    assert given.rtol is not None
    if 2 * len(known) < FLOWS and not largest > WITHIN * given.rtol:
        return math.nan, "samples moved along them leave the data, so that its error does not judge them"
    return largest, f"samples moved by one standard deviation along them change f by {largest:.2g}; {error}"


def _alone(vector: Tensor, family: AffineFields, where: Coordinates, tested: Sample, given: Problem) -> float:
    """Return the change of f along one field."""
    if family.constant:
        generator = torch.Generator().manual_seed(given.seed)
        return _shuffled(family.combined(vector[None])[..., -1].T, where, tested, given, generator)
    return change_along(where.to_x(family.combined(vector[None]))[0], given, tested.x)


def _shuffled(
    directions: Tensor, where: Coordinates, tested: Sample, given: Problem, generator: torch.Generator
) -> float:
    """Return the change of f where coordinates along directions z, (q, k), are shuffled among samples.

    As in `change`, a sample counts only if its image stays within the data.
    """
    values = tested.z @ directions
    order = torch.randperm(len(values), generator=generator)
    images = tested.x + (values[order] - values) @ (where.out @ directions).T
    return _between(given.net, tested.x, images, given.where, given.domain)
