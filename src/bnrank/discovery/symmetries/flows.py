"""Carrying fields out: what f does where samples are moved along them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from bnrank.discovery.symmetries.algebra import only_constants
from bnrank.discovery.symmetries.coordinates import Coordinates
from bnrank.discovery.symmetries.fields import AffineFields, Family
from bnrank.discovery.symmetries.finding import CLOSED, Found, Sample
from bnrank.discovery.symmetries.finite import WITHIN
from bnrank.discovery.symmetries.models import outputs_of

__all__ = ["carried_out", "change", "shuffled"]

FLOWS = 8  # random one-parameter groups that are carried out
INSIDE = 0.95  # share of the samples that are nearer to the mean than an image may be


def change(net: nn.Module, x: Tensor, field: Tensor, where: Coordinates | None = None) -> float:
    """Return rms_i ||f(exp(v) x_i) - f(x_i)|| / rms_ij ||f(x_i) - f(x_j)|| for a field v, [A b] (d, d + 1).

    With coordinates ``where`` of the data, only of samples whose images are no farther from the mean than 95 percent of
    the samples: a field that is not bounded, such as a boost or a scaling, carries the others to where f was not
    learned. NaN if these are fewer than a third.

    Examples
    --------
    >>> import torch
    >>> turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> round(change(torch.nn.Identity(), x, torch.pi * turn), 6)         # x -> -x
    2.0
    """
    flow = torch.linalg.matrix_exp(torch.nn.functional.pad(field, (0, 0, 0, 1)))[:-1]
    before, images = outputs_of(net, x), x @ flow[:, :-1].T + flow[:, -1]
    size = float((before - before.mean(0)).square().sum() / len(x))
    inside = torch.ones(len(x), dtype=torch.bool)
    if where is not None:
        inside = where.of(images).norm(dim=1) <= where.of(x).norm(dim=1).quantile(INSIDE)
    if 3 * int(inside.sum()) < len(x):
        return math.nan
    changes = (outputs_of(net, images[inside]) - before[inside]).square().sum(1)
    return (float(changes.mean()) / (2 * size)) ** 0.5


def shuffled(net: nn.Module, tested: Sample, directions: Tensor, values: Tensor, generator: torch.Generator) -> float:
    """Return the change of f when coordinates ``values`` (N, m) along ``directions`` (d, m) go to other samples.

    Directions along each of which f changes little can matter much together; this moves along all.
    """
    order = torch.randperm(len(values), generator=generator)
    before = outputs_of(net, tested.x)
    after = outputs_of(net, tested.x + (values[order] - values) @ directions.T)
    return float((after - before).norm() / (before - before.mean(0)).norm()) / 2**0.5


def carried_out(
    net: nn.Module, found: Found, family: Family, where: Coordinates, tested: Sample, error: float | None, seed: int
) -> Found:
    """Move samples along approximate symmetries, and refuse these if f changes by more than 1.5 times its error.

    Random fields of the span found are carried out for as long as an average sample takes to move by one standard
    deviation of the data. Of directions that f ignores, the coordinates are shuffled among samples. Unlike derivatives,
    that compares values of f, and so with its error. Fields below a gap that does not count are moved along as well:
    where f stays within its error, the answer is "undetermined", not "none".
    """
    doubtful = found.status == "none" and 0 < len(found.doubtful) < len(family) and not found.gap.defect > CLOSED
    vectors = found.doubtful if doubtful else found.vectors
    if not error or not (doubtful or found.status == "approximate") or not isinstance(family, AffineFields):
        return found
    generator = torch.Generator().manual_seed(seed)
    if only_constants(family):
        directions = family.combined(vectors)[..., -1].T
        most = shuffled(net, tested, where.out @ directions, tested.z @ directions, generator)
        words = f"shuffling these coordinates among samples changes f by {most:.2g}; its error is {error:.2g}"
    else:
        weights = torch.randn(FLOWS, len(vectors), generator=generator, dtype=torch.float64)
        fields = where.to_x(family.combined(weights / weights.norm(dim=1, keepdim=True) @ vectors))
        changes = [change(net, tested.x, field, where) for field in fields]
        most = max((size for size in changes if not math.isnan(size)), default=math.nan)
        words = f"samples moved by one standard deviation along them change f by {most:.2g}; its error is {error:.2g}"
    if doubtful:
        within = most <= WITHIN * error
        return replace(found, status="undetermined", reason=f"{found.reason}, yet {words}") if within else found
    if math.isnan(most):
        words = "samples moved along them leave the data, so that its error does not judge them"
        return replace(found, reason=f"{found.reason}; {words}")
    if most > WITHIN * error:
        reason = f"{found.reason}, but {words}"
        return replace(found, vectors=found.vectors[:0], counts=0 * found.counts, status="none", reason=reason)
    return replace(found, reason=f"{found.reason}; {words}")
