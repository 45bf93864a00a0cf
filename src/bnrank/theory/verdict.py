"""Verdicts: whether a statement of the theory holds on a given network, with both of its sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import torch

if TYPE_CHECKING:
    from bnrank.theory.facts import Facts

__all__ = [
    "HOLDS",
    "INCONCLUSIVE",
    "NOT_APPLICABLE",
    "VIOLATED",
    "Inconclusive",
    "NotApplicable",
    "Sides",
    "Statement",
    "Verdict",
    "Verdicts",
    "statement",
]

HOLDS = "holds"
VIOLATED = "violated"
NOT_APPLICABLE = "not applicable"
INCONCLUSIVE = "inconclusive"

ROUNDING = 1e-12  # of the larger side: a difference that float64 alone explains


class NotApplicable(Exception):  # noqa: N818
    """An assumption of a statement fails; raised inside a statement."""

    def __init__(self, assumption: str, detail: str = "") -> None:
        super().__init__(f"{assumption}: {detail}" if detail else assumption)


class Inconclusive(Exception):  # noqa: N818
    """The two sides cannot be told apart, or one of them cannot be had; raised inside a statement."""


@dataclass(frozen=True)
class Sides:
    """Both sides of a statement, as measured.

    Attributes
    ----------
    left, right : float
        The two numbers compared; of a statement about many samples or layers, those where it is closest to failing.
    relation : str
        "<=" or "=".
    tolerance : float
        Relative to max(|left|, |right|, scale): a failure by less is put down to numerical error, and an equation
        up to it holds.
    scale : float
        Absolute size of what was summed to get the sides, where cancellation may leave them smaller than their error.
    assumptions : tuple of str
        What was checked and found true before comparing.
    note : str
        Where, on how many samples, with which constants.
    explained : float
        Of an equation: a difference beyond the tolerance, up to this (absolute), is explained by something else than a
        violation, such as a gradient that is not quite 0; the verdict is then inconclusive.
    vacuous : str
        Of a bound that cannot fail, because the right side is at least the largest value that the left side can have:
        why; else empty.
    """

    left: float
    right: float
    relation: str = "<="
    tolerance: float = 1e-9
    scale: float = 0.0
    assumptions: tuple[str, ...] = ()
    note: str = ""
    explained: float = 0.0
    vacuous: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of a statement on a network.

    Attributes
    ----------
    id : str
        The statement's id, e.g. "T4".
    name : str
        Its name in words, e.g. "Jacobian bound".
    formula : str
        What is compared, left side and right side.
    source : str
        Where it comes from: paper key and number.
    status : str
        "holds", "violated", "not applicable" (an assumption fails: see ``reason``) or "inconclusive" (within numerical
        error, or a side cannot be had: see ``reason``).
    left, right : float
        The two sides; NaN where they were not computed.
    relation : str
        "<=" or "=".
    slack : float
        right - left for "<=", so that negative means violated; -|left - right| for "=".
    tolerance : float
        The relative tolerance of the comparison.
    assumptions : tuple of str
        What was checked and found true.
    reason : str
        The assumption that fails, or why it is inconclusive.
    note : str
        Where, on how many samples, with which constants.
    vacuous : str
        Of a statement that holds because it says nothing here (its bound is at least the largest value possible): why;
        else empty.
    """

    id: str
    name: str
    formula: str
    source: str
    status: str
    left: float = math.nan
    right: float = math.nan
    relation: str = "<="
    slack: float = math.nan
    tolerance: float = 0.0
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""
    vacuous: str = ""

    @property
    def label(self) -> str:
        """The status as it is shown: "holds (vacuous)" where the statement says nothing, else the status."""
        return f"{self.status} (vacuous)" if self.vacuous else self.status


def judge(sides: Sides) -> tuple[str, float, str]:
    """Return status, slack and reason of a comparison."""
    left, right = sides.left, sides.right
    if math.isnan(left) or math.isnan(right):
        return INCONCLUSIVE, math.nan, "a side is not a number"
    size = max((abs(v) for v in (left, right, sides.scale) if math.isfinite(v)), default=0.0)
    if sides.relation == "=":
        slack = 0.0 if left == right else -abs(left - right)
        if -slack <= sides.tolerance * size:
            return HOLDS, slack, ""
        if -slack <= sides.explained:
            return INCONCLUSIVE, slack, f"they differ by {-slack:.2g}, of which {sides.explained:.2g} are explained"
        return VIOLATED, slack, ""
    if sides.relation != "<=":
        raise ValueError(f"relation: got {sides.relation!r}, expected '<=' or '='")
    slack = 0.0 if left == right else right - left
    if slack >= -ROUNDING * size:
        return HOLDS, slack, ""
    if slack >= -sides.tolerance * size:
        return INCONCLUSIVE, slack, f"fails by {-slack:.2g}, within the numerical error {sides.tolerance * size:.2g}"
    return VIOLATED, slack, ""


@dataclass(frozen=True)
class Statement:
    """A statement of the theory as code.

    Attributes
    ----------
    id, name, formula, source : str
        As in :class:`Verdict`.
    sides : callable
        Takes the :class:`~bnrank.theory.facts.Facts` of a network and returns :class:`Sides`; raises
        :class:`NotApplicable` or :class:`Inconclusive`.
    """

    id: str
    name: str
    formula: str
    source: str
    sides: Callable[[Facts], Sides]

    def __call__(self, facts: Facts) -> Verdict:
        """Return the verdict on a network."""
        verdict = Verdict(self.id, self.name, self.formula, self.source, NOT_APPLICABLE)
        try:
            sides = self.sides(facts)
        except NotApplicable as failed:
            return replace(verdict, reason=str(failed))
        except Inconclusive as unclear:
            return replace(verdict, status=INCONCLUSIVE, reason=str(unclear))
        except (OverflowError, torch.linalg.LinAlgError) as error:  # values beyond the range of floats
            return replace(verdict, status=INCONCLUSIVE, reason=str(error))
        status, slack, reason = judge(sides)
        return replace(
            verdict,
            status=status,
            left=float(sides.left),
            right=float(sides.right),
            relation=sides.relation,
            slack=slack,
            tolerance=sides.tolerance,
            assumptions=sides.assumptions,
            reason=reason,
            note=sides.note,
            vacuous=sides.vacuous if status == HOLDS else "",
        )


def statement(id: str, name: str, formula: str, *, source: str) -> Callable[[Callable[[Facts], Sides]], Statement]:
    """Make a :class:`Statement` of a function that computes both sides.

    Examples
    --------
    >>> @statement("T0", "norms", "0 <= ||theta||^2", source="obvious")
    ... def norms(facts):
    ...     return Sides(0.0, facts.parameter_norm)
    >>> norms.id
    'T0'
    """

    def wrap(sides: Callable[[Facts], Sides]) -> Statement:
        return Statement(id, name, formula, source, sides)

    return wrap


@dataclass(frozen=True)
class Verdicts(Sequence[Verdict]):
    """The verdicts on one network, in the order of the statements.

    ``verdicts["T4"]`` is the first verdict of that id; ``print(verdicts)`` shows a table.

    Attributes
    ----------
    verdicts : tuple of Verdict
        All of them.
    about : dict
        The network, the data and the tolerances: depth, widths, slope, samples, parameter norm, rank ...
    """

    verdicts: tuple[Verdict, ...]
    about: dict[str, object]

    def __len__(self) -> int:
        return len(self.verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @overload
    def __getitem__(self, key: int | str) -> Verdict: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Verdict, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Verdict | tuple[Verdict, ...]:
        if isinstance(key, str):
            found = [v for v in self.verdicts if v.id == key]
            if not found:
                raise KeyError(f"{key}: expected one of {', '.join(sorted({v.id for v in self.verdicts}))}")
            return found[0]
        return self.verdicts[key]

    def having(self, status: str) -> tuple[Verdict, ...]:
        """Return the verdicts of one status, e.g. ``"violated"``."""
        return tuple(v for v in self.verdicts if v.status == status)

    @property
    def counts(self) -> dict[str, int]:
        """How many verdicts have each status; those that hold vacuously count as "holds"."""
        return {status: len(self.having(status)) for status in (HOLDS, VIOLATED, NOT_APPLICABLE, INCONCLUSIVE)}

    @property
    def ok(self) -> bool:
        """Whether no statement is violated."""
        return not self.having(VIOLATED)

    def __str__(self) -> str:
        rows = [("id", "statement", "status", "left", "", "right", "slack", "why")]
        for v in self.verdicts:
            numbers = [format(n, ".6g") if not math.isnan(n) else "" for n in (v.left, v.right, v.slack)]
            relation = v.relation if numbers[0] else ""
            why = v.reason or v.vacuous
            rows.append((v.id, v.name, v.label, numbers[0], relation, numbers[1], numbers[2], why))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)
