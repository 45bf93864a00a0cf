"""What a result says of itself: lines, tables, folded parts and curves, from which text and HTML are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bnrank._core import text

FEW = 6  # remarks that are shown without a fold

STATUS = {
    **dict.fromkeys(("pass", "converged", "holds", "exact", "approximate"), "good"),
    **dict.fromkeys(("fail", "failed", "diverged", "violated"), "bad"),
    **dict.fromkeys(
        ("interrupted", "stalled", "holds (vacuous)", "inconclusive", "off the data", "undetermined"), "warn"
    ),
}
"""Mark of an entry in a column "result" or "status"."""


@dataclass(frozen=True)
class Headline:
    """A line above a table that is shown in HTML only; elsewhere the first line of a result is its headline."""

    text: str

    def lines(self) -> list[str]:
        """Return no lines."""
        return []


@dataclass(frozen=True)
class Table:
    """Rows from column to value, as of :mod:`bnrank._core.text`; the caption is shown in HTML only.

    A table that is not ``printed`` is shown in HTML only.
    """

    caption: str
    rows: Sequence[text.Row]
    printed: bool = True

    def lines(self) -> list[str]:
        """Return the lines of text; none without rows."""
        return text.render(self.rows).splitlines() if self.rows and self.printed else []


@dataclass(frozen=True)
class Fold:
    """Parts that are folded in HTML under a title, and the lines that stand for them in text.

    Without parts the lines are folded.
    """

    title: str
    plain: Sequence[str]
    parts: Sequence[Part] = ()

    def lines(self) -> list[str]:
        """Return the lines of text."""
        return list(self.plain)


@dataclass(frozen=True)
class Curves:
    """Small curves over one axis, (curves, points), drawn in HTML only; NaN where a curve has no value."""

    caption: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]

    def lines(self) -> list[str]:
        """Return no lines."""
        return []


Part = str | Headline | Table | Fold | Curves


def remarks(lines: Iterable[str], what: str) -> list[Part]:
    """Return remarks as lines, or folded under their number if there are many.

    Examples
    --------
    >>> remarks(["skipped 1", "skipped 2"], "skipped")
    ['skipped 1', 'skipped 2']
    >>> remarks([f"skipped {i}" for i in range(12)], "skipped")[0].title
    '12 skipped'
    """
    found = list(lines)
    return list(found) if len(found) <= FEW else [Fold(f"{len(found)} {what}", found)]


def as_text(parts: Iterable[Part]) -> str:
    """Return the parts as lines of text.

    Examples
    --------
    >>> print(as_text(["two layers", Table("Layers", [{"layer": 1, "rank": 5}, {"layer": 2, "rank": 12}])]))
    two layers
    layer  rank
        1     5
        2    12
    """
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part.lines()))
