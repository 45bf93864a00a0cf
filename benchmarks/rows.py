"""What a benchmark gives back: rows of a table, each a number against its target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Row", "Spread", "skipped"]


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of several measurements.

    ``best`` is a ratio of the least times of either side, over all rounds: what is left when a busy machine has
    disturbed some of them.
    """

    median: float
    low: float
    high: float
    best: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], best: float | None = None) -> Spread:
        """Summarize measurements."""
        return cls(statistics.median(values), min(values), max(values), best)


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes
    ----------
    subject : str
        The file it comes from.
    name, against : str
        What was measured, against what.
    value : Spread or None
        The number; None if it could not be measured, and then ``note`` says why.
    at_least, at_most : float or None
        Target; neither for a number that is only reported.
    aim : float or None
        What is hoped for beyond the target.
    unit : str
        Printed after the number.
    note : str
        Whatever else one should know.
    """

    subject: str
    name: str
    against: str
    value: Spread | None
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    unit: str = "×"
    note: str = ""

    @property
    def verdict(self) -> str:
        """One of "met", "missed", "reported" and "skipped"."""
        if self.value is None:
            return "skipped"
        if self.at_least is None and self.at_most is None:
            return "reported"
        low = self.at_least is None or self.value.median >= self.at_least
        high = self.at_most is None or self.value.median <= self.at_most
        return "met" if low and high else "missed"

    @property
    def target(self) -> str:
        """The target in words, with the aim behind it."""
        bounds = [
            f"{sign} {number:.3g}" for sign, number in (("≥", self.at_least), ("≤", self.at_most)) if number is not None
        ]
        return ", ".join(bounds + ([f"aim {self.aim:.3g}"] if self.aim is not None else []))

    def cells(self) -> list[str]:
        """Return the row of the table: name, against, number, spread, best, target, verdict, note."""
        number = f"{self.value.median:.3g} {self.unit}".strip() if self.value else "–"
        spread = f"{self.value.low:.3g} to {self.value.high:.3g}" if self.value else ""
        best = f"{self.value.best:.3g}" if self.value and self.value.best is not None else ""
        return [self.name, self.against, number, spread, best, self.target, self.verdict, self.note]


def skipped(subject: str, name: str, against: str, reason: str) -> list[Row]:
    """Return one row that says why there is no number."""
    return [Row(subject, name, against, None, note=f"skipped: {reason}")]
