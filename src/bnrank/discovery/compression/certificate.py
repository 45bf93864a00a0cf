"""The certificate of a compression: what changed and what was saved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnrank.discovery.compression import costs
from bnrank.discovery.compression.bounds import Bound, lipschitz
from bnrank.discovery.compression.chain import Parts, trace
from bnrank.discovery.compression.costs import Latency
from bnrank.discovery.compression.judging import Change, change
from bnrank.discovery.compression.samples import Parted, outputs
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.functional import Functional, unwrap

__all__ = ["Accuracy", "Certificate", "certified"]


@dataclass(frozen=True)
class Accuracy:
    """Share of the samples whose largest output is their class, before and after."""

    before: float
    after: float
    samples: int


@dataclass(frozen=True)
class Certificate:
    """What was measured of a network before and after compression.

    Attributes
    ----------
    tol : float
        As given.
    on_x : Change
        Over all of x that was given.
    held_out : Change
        Over samples that decided nothing.
    bound : Bound or None
        On all inputs near the samples; None where a part has no known Lipschitz constant, or the module is more than
        one segment.
    rank : int or None
        The fewest numbers that a sample passes through on its way: f^ = h o g with this inner dimension, so that its
        bottleneck rank is no larger, on all inputs (T18). None where the module is more than one segment.
    parameters_before, parameters : int
        Entries of all parameters.
    multiply_adds_before, multiply_adds : int
        Of linear and convolutional layers, per sample.
    latency_before, latency : Latency
        Seconds per forward pass, timed in turns; the same numbers where nothing changed.
    rank_before : int or None
        As ``rank``, of the module as it was.
    jacobian_rank, jacobian_rank_before : int or None
        Largest rank of the Jacobian (singular values above 1e-6 of its largest) at up to 64 samples: the bottleneck
        rank is no less (T5). None where x is no floats, or inputs times outputs are more than 2e7.
    accuracy, held_out_accuracy : Accuracy or None
        On x and on the held-out samples; None without their classes.
    """

    tol: float
    on_x: Change
    held_out: Change
    bound: Bound | None
    rank: int | None
    parameters_before: int
    parameters: int
    multiply_adds_before: int
    multiply_adds: int
    latency_before: Latency
    latency: Latency
    rank_before: int | None = None
    jacobian_rank: int | None = None
    jacobian_rank_before: int | None = None
    accuracy: Accuracy | None = None
    held_out_accuracy: Accuracy | None = None

    @property
    def met(self) -> bool:
        """Whether the change, relative to the spread of the outputs, is at most ``tol`` on x and on held-out data."""
        return max(self.on_x.centered, self.held_out.centered) <= self.tol

    @property
    def speedup(self) -> float:
        """How many times less a forward pass takes: least time before / least time after, 1 where nothing changed.

        The least of several times is what other work on the machine disturbs least.
        """
        return self.latency_before.least / self.latency.least

    @property
    def speedup_certain(self) -> bool:
        """Whether the times before and after are apart, or the same since nothing changed.

        They are apart where the ranges between their quartiles do not overlap, on the side that ``speedup`` says.
        """
        before, after = self.latency_before, self.latency
        if before == after:
            return True
        return before.low > after.high if self.speedup > 1 else after.low > before.high

    @property
    def share_beyond(self) -> float:
        """Upper bound, with 95 percent confidence, of the share of new samples that change by more than any held out.

        Of new samples drawn like the n held-out ones and independently of them: 1 - 0.05^(1/n), whatever the
        distribution. "Change by more" means ||f^(x) - f(x)|| above ``held_out.worst`` times the root mean square
        output.
        """
        return 1 - 0.05 ** (1 / self.held_out.samples)

    def __str__(self) -> str:
        return "\n".join([*self._table(), *self._changes(), *self._ranks()])

    def _table(self) -> list[str]:
        before, after = self.latency_before, self.latency
        rows = [
            ("", "before", "after", "ratio"),
            _row("parameters", self.parameters_before, self.parameters),
            _row("multiply-adds per sample", self.multiply_adds_before, self.multiply_adds),
            (
                f"least latency, ms, batch {after.batch}",
                f"{1e3 * before.least:.3f}",
                f"{1e3 * after.least:.3f}",
                f"{self.speedup:.3g}",
            ),
        ]
        note = "" if self.speedup_certain else "  (uncertain: quartiles of the times overlap)"
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return [*lines[:-1], lines[-1] + note]

    def _changes(self) -> list[str]:
        lines = []
        for label, found in (("on x", self.on_x), ("held out", self.held_out)):
            line = f"change {label} ({found.samples} samples): {_percent(found.relative)} of the outputs, "
            spread = (
                "their spread is 0" if math.isinf(found.centered) else f"{_percent(found.centered)} of their spread"
            )
            line += f"{spread}, largest {_percent(found.worst)}"
            if not math.isnan(found.decisions):
                line += f", largest output another in {_percent(found.decisions)}"
            lines.append(line)
        for label, of in (("on x", self.accuracy), ("held out", self.held_out_accuracy)):
            if of is not None:
                lines.append(f"accuracy {label}: {100 * of.before:.2f} % before, {100 * of.after:.2f} % after")
        verdict = "met" if self.met else "NOT met"
        lines.append(f"tolerance {_percent(self.tol)} of the spread: {verdict}")
        share = f"new samples beyond the largest held-out change: at most {_percent(self.share_beyond)}"
        return [*lines, f"{share} (95 percent confidence)"]

    def _ranks(self) -> list[str]:
        lines = []
        for label, rank, least in (
            ("before", self.rank_before, self.jacobian_rank_before),
            ("after", self.rank, self.jacobian_rank),
        ):
            if rank is not None:
                below = "" if least is None else f", Jacobians of rank {least} on the samples"
                lines.append(f"bottleneck rank {label}: at most {rank}, on all inputs{below}")
        if self.bound is not None:
            lines.append(str(self.bound))
        return lines


def _row(label: str, before: int, after: int) -> tuple[str, str, str, str]:
    return label, f"{before:,}", f"{after:,}", f"{before / max(after, 1):.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


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
