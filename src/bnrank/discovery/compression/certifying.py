"""What a certificate says, measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnrank.discovery.compression import costs
from bnrank.discovery.compression.arguments import outputs
from bnrank.discovery.compression.bounds import Bound, lipschitz
from bnrank.discovery.compression.certificate import Accuracy, Certificate
from bnrank.discovery.compression.chain import Parts, trace
from bnrank.discovery.compression.judging import change
from bnrank.discovery.compression.sampling import Parted
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.functional import Functional, unwrap

__all__ = ["certified"]

POINTS = 64  # samples that Jacobians are taken at
ENTRIES = 2e7  # of all these Jacobians
RTOL = 1e-6  # singular values of a Jacobian above, relative to its largest, count


def certified(
    before: nn.Module,
    after: nn.Module,
    parted: Parted,
    tol: float,
    reference: tuple[Tensor, Tensor],
    whole: tuple[Parts, Parts] | None,
    batch: int,
    repeats: int,
) -> Certificate:
    """Measure what two networks have in common and what they cost.

    Parameters
    ----------
    before, after : torch.nn.Module
        Without and with compression.
    parted : Parted
        Samples.
    tol : float
        As given.
    reference : tuple of Tensor
        Outputs of the first on all samples and on those held out, (N, outputs) in float64.
    whole : tuple of parts, optional
        The parts of both, where these are all of the module.
    batch, repeats : int
        Of the measured latency.
    """
    x, kept = parted.x, parted.kept
    same = unwrap(after) is before
    g = None if same else Functional(after)
    on_x, on_kept = (
        (known, known if g is None else outputs(g, part, "x")) for known, part in zip(reference, (x, kept), strict=True)
    )
    sample = _like(before, x[:1])
    parts = whole or (None, None)
    (rank_before, jacobian_before), (rank, jacobian_after) = (
        _ranks(some, net, sample, x) for some, net in zip(parts, (before, after), strict=True)
    )
    timed = costs.latency([before] if same else [before, after], x, batch=batch, repeats=repeats)
    return Certificate(
        tol,
        change(*on_x),
        change(*on_kept),
        None if whole is None else _bound(whole, sample.double(), on_x),
        rank,
        costs.parameters(before),
        costs.parameters(after),
        costs.multiply_adds(before, sample),
        costs.multiply_adds(after, sample),
        timed[0],
        timed[-1],
        rank_before=rank_before,
        jacobian_rank=jacobian_after,
        jacobian_rank_before=jacobian_before,
        accuracy=None if parted.y is None else _accuracy(on_x, parted.y),
        held_out_accuracy=None if parted.y_kept is None else _accuracy(on_kept, parted.y_kept),
    )


def _like(net: nn.Module, x: Tensor) -> Tensor:
    """Return x on the module's device and, where it is no integers, in its precision."""
    first = next(net.parameters(), None)
    if first is None:
        return x
    return x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)


def _bound(whole: tuple[Parts, Parts], sample: Tensor, found: tuple[Tensor, Tensor]) -> Bound | None:
    before, after = (lipschitz(parts, sample) for parts in whole)
    if before is None or after is None:
        return None
    each = (found[0] - found[1]).norm(dim=1)
    return Bound(before, after, float(each.max()), float(found[0].norm()) / len(each) ** 0.5)


def _ranks(parts: Parts | None, net: nn.Module, sample: Tensor, x: Tensor) -> tuple[int | None, int | None]:
    """Return the least number of entries that a sample passes through, and the largest rank of a Jacobian."""
    if parts is None:
        return None, None
    with torch.no_grad():
        values = trace(parts, sample.double() if sample.is_floating_point() else sample)
    upper = min(value[0].numel() for value in values)
    entries = values[0][0].numel() * values[-1][0].numel()
    points = min(POINTS, len(x), int(ENTRIES / max(entries, 1)))
    if not points or not x.is_floating_point():
        return upper, None
    with torch.enable_grad():
        some = x[:points]
        some = some[~Jacobian(net, some).near_kinks().cpu()]
        if not len(some):
            return upper, None
        found = Jacobian(net, some, kink_rtol=None).singular_values
    return upper, int((found > RTOL * found[:, :1]).sum(1).max())


def _accuracy(found: tuple[Tensor, Tensor], y: Tensor) -> Accuracy:
    before, after = (float((out.argmax(1) == y).double().mean()) for out in found)
    return Accuracy(before, after, len(y))
