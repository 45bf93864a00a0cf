"""What compression changed and what it saved, measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bnrank.discovery.compression.bounds import Bound
from bnrank.discovery.compression.costs import Latency
from bnrank.discovery.compression.judging import Change

__all__ = ["Certificate"]


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
        one stretch.
    rank : int or None
        Largest inner dimension of f^ = h o g through a collapsed stretch that is all of the module: f^ has bottleneck
        rank at most this, on all inputs (T18). None where nothing was collapsed.
    parameters_before, parameters : int
        Entries of all parameters.
    multiply_adds_before, multiply_adds : int
        Of linear and convolutional layers, per sample.
    latency_before, latency : Latency
        Seconds per forward pass, timed in turns.
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

    @property
    def met(self) -> bool:
        """Whether the change, relative to the spread of the outputs, is at most ``tol`` on x and on held-out data."""
        return max(self.on_x.centred, self.held_out.centred) <= self.tol

    @property
    def share_beyond(self) -> float:
        """Upper bound, with 95 percent confidence, of the share of new samples that change by more than any held out.

        Of new samples drawn like the n held-out ones and independently of them: 1 - 0.05^(1/n), whatever the
        distribution. "Change by more" means ||f^(x) - f(x)|| above ``held_out.worst`` times the root mean square
        output.
        """
        return 1 - 0.05 ** (1 / self.held_out.samples)

    def __str__(self) -> str:
        before, after = self.latency_before, self.latency
        rows = [
            ("", "before", "after", "ratio"),
            _row("parameters", self.parameters_before, self.parameters),
            _row("multiply-adds per sample", self.multiply_adds_before, self.multiply_adds),
            (
                f"latency, ms, batch {after.batch}",
                f"{1e3 * before.median:.3f}",
                f"{1e3 * after.median:.3f}",
                f"{before.median / after.median:.3g}",
            ),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        for label, found in (("on x", self.on_x), ("held out", self.held_out)):
            line = f"change {label} ({found.samples} samples): {_percent(found.relative)} of the outputs, "
            line += f"{_percent(found.centred)} of their spread, largest {_percent(found.worst)}"
            if not math.isnan(found.decisions):
                line += f", largest output another in {_percent(found.decisions)}"
            lines.append(line)
        verdict = "met" if self.met else "NOT met"
        lines.append(f"tolerance {_percent(self.tol)} of the spread: {verdict}")
        share = f"new samples beyond the largest held-out change: at most {_percent(self.share_beyond)}"
        lines.append(f"{share} (95 percent confidence)")
        if self.rank is not None:
            lines.append(f"bottleneck rank of the compressed network: at most {self.rank}, on all inputs")
        if self.bound is not None:
            at, more = _percent(self.bound.within(0.0)), _percent(self.bound.per_distance)
            lines.append(f"bound at distance r from the samples: {at} + {more} r of the outputs (Lipschitz constants)")
        return "\n".join(lines)


def _row(label: str, before: int, after: int) -> tuple[str, str, str, str]:
    return label, f"{before:,}", f"{after:,}", f"{before / max(after, 1):.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
