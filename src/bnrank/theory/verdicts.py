"""Verdicts: whether a statement of the theory holds on a given network, with both of its sides."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank._core.content import Part
from bnrank._core.results import Printed
from bnrank.theory import listing

if TYPE_CHECKING:
    import pandas as pd

HOLDS = "holds"
VIOLATED = "violated"
NOT_APPLICABLE = "not applicable"
INCONCLUSIVE = "inconclusive"
STATUSES = (HOLDS, VIOLATED, NOT_APPLICABLE, INCONCLUSIVE)
ORDER = (VIOLATED, INCONCLUSIVE, HOLDS)  # the worst first: a statement gets the worst status of its comparisons

TINY = sys.float_info.min  # the smallest normal float, about 2.2e-308
NUMBERS = ("left", "right", "rtol", "scale", "explained", "least", "most", "atol")  # fields of Sides
ROUNDING = 1e-12  # relative to the larger side: differences up to this are rounding errors of float64


class NotApplicable(Exception):  # noqa: N818
    """Raised by a statement if one of its assumptions fails."""

    def __init__(self, assumption: str, detail: str = "") -> None:
        super().__init__(f"{assumption}: {detail}" if detail else assumption)


class Inconclusive(Exception):  # noqa: N818
    """Raised by a statement if one of its sides cannot be evaluated."""


def assume(condition: bool, assumption: str, detail: str = "") -> None:
    """Raise :class:`NotApplicable` with the assumption unless the condition is true.

    Examples
    --------
    >>> assume(2 > 1, "order")
    >>> assume(1 > 2, "order", "1 is at most 2")
    Traceback (most recent call last):
        ...
    bnrank.theory.verdicts.NotApplicable: order: 1 is at most 2
    """
    assumption, detail = validation.text(assumption, "assumption"), validation.text(detail, "detail")
    if not validation.flag(condition, "condition"):
        raise NotApplicable(assumption, detail)


def assuming(assumption: str) -> AbstractContextManager[None]:
    """Return a context that raises :class:`NotApplicable` with the assumption at a TypeError or ValueError.

    A RangeError (values out of the range of floats) is not converted.

    Examples
    --------
    >>> with assuming("depth is an integer"):
    ...     int("deep")
    Traceback (most recent call last):
        ...
    bnrank.theory.verdicts.NotApplicable: depth is an integer: invalid literal for int() with base 10: 'deep'
    """
    return _assuming(validation.text(assumption, "assumption"))


@contextmanager
def _assuming(assumption: str) -> Iterator[None]:
    try:
        yield
    except validation.RangeError:
        raise
    except (TypeError, ValueError) as error:
        raise NotApplicable(assumption, str(error).removeprefix("net: ")) from error


@dataclass(frozen=True)
class Sides:
    """Both sides of a statement, as measured.

    Attributes
    ----------
    left, right : float
        The two numbers to compare.
    relation : str
        "<=" or "=".
    rtol : float
        Tolerance relative to max(|left|, |right|, scale). An inequality that fails by at most this is inconclusive, or
        holds if rounding explains it; an equation whose sides differ by at most this holds.
    scale : float
        Absolute size of the terms whose sums the sides are. After cancellation, the sides can be smaller than their
        rounding error.
    assumptions : tuple of str
        The assumptions that are checked and satisfied.
    note : str
        The sample or layer, how many of them are compared, and the constants.
    explained : float
        For an equation: an absolute difference, beyond the tolerance, that has another cause than a violation, such as
        a gradient that is not exactly 0. The verdict is then inconclusive.
    vacuous : str
        Another reason why the statement cannot fail; see :func:`triviality`.
    least : float
        Smallest possible value of the right side of an inequality, by default 0: norms, ranks and traces are not
        negative. -inf where a left side of 0 is a success, such as a deviation that a bound of 0 limits.
    most : float
        Largest possible value of the left side of an inequality, such as the smaller side of a matrix for its rank.
    atol : float
        Absolute tolerance, added to ``rtol``'s: rounding errors of other numbers than the terms in ``scale``.

    Raises
    ------
    TypeError, ValueError
        If a side is not a number, or the relation is neither "<=" nor "=".

    Examples
    --------
    >>> judge(Sides(1.0, 2.0)), judge(Sides(2.0, 1.0))
    (('holds', 1.0, ''), ('violated', -1.0, ''))
    """

    left: float
    right: float
    relation: str = "<="
    rtol: float = 1e-9
    scale: float = 0.0
    assumptions: tuple[str, ...] = ()
    note: str = ""
    explained: float = 0.0
    vacuous: str = ""
    least: float = 0.0
    most: float = math.inf
    atol: float = 0.0

    def __post_init__(self) -> None:
        validation.choice(self.relation, "relation", ("<=", "="))
        for name in NUMBERS:
            value = getattr(self, name)
            one = isinstance(value, float | int | np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
            validation.expect(one, name, value, "a number", TypeError)
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError as error:
                raise validation.RangeError(f"{name}: got {validation.describe(value)}, expected a float") from error


@dataclass(frozen=True)
class Verdict(Printed):
    """The verdict on one statement.

    Attributes
    ----------
    id : str
        The statement's id, e.g. "T4".
    name : str
        Its name in words, e.g. "Jacobian bound".
    formula : str
        The formula, with left side and right side.
    source : str
        Paper key and number.
    status : str
        "holds", "violated", "not applicable" (``reason`` names the assumption that fails) or "inconclusive"
        (``reason`` gives the cause: within numerical error, or a side cannot be evaluated).
    left, right : float
        The two sides; NaN if they are not computed.
    relation : str
        "<=" or "=".
    slack : float
        right - left for "<=", negative if violated; -|left - right| for "=".
    rtol : float
        Relative tolerance of the comparison.
    assumptions : tuple of str
        The assumptions that are checked and satisfied.
    reason : str
        The assumption that fails, or the reason why the verdict is inconclusive.
    note : str
        The sample or layer, how many of them are compared, and the constants.
    vacuous : str
        Reason why a statement that holds cannot fail for this network, such as a bound that is infinite or at least the
        largest possible value; empty if it can.
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
    rtol: float = 0.0
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""
    vacuous: str = ""

    @property
    def label(self) -> str:
        """The status, followed by "(vacuous)" if the statement cannot fail."""
        return f"{self.status} (vacuous)" if self.vacuous else self.status

    def __str__(self) -> str:
        sides = "" if math.isnan(self.left) else f", {self.left:.6g} {self.relation} {self.right:.6g}"
        remarks = "; ".join(filter(None, (self.reason, self.vacuous, self.note)))
        return f"{self.id}, {self.name}: {self.label}{sides}{f' ({remarks})' if remarks else ''}"


def judge(sides: Sides) -> tuple[str, float, str]:
    """Return status, slack and reason of a comparison."""
    left, right = sides.left, sides.right
    if math.isnan(left) or math.isnan(right):
        return INCONCLUSIVE, math.nan, "a side is not a number"
    equation = sides.relation == "="
    difference = 0.0 if left == right else right - left
    slack = 0.0 - abs(difference) if equation else difference
    size = max((abs(v) for v in (left, right, sides.scale) if math.isfinite(v)), default=0.0)
    error = sides.rtol * size + sides.atol
    if -slack <= (error if equation else ROUNDING * size) + TINY:  # below, floats lose digits
        return HOLDS, slack, ""
    if equation and -slack <= sides.explained:
        return INCONCLUSIVE, slack, f"they differ by {-slack:.2g}, of which {sides.explained:.2g} are explained"
    if -slack <= error:
        return INCONCLUSIVE, slack, f"fails by {-slack:.2g}, within the numerical error {error:.2g}"
    return VIOLATED, slack, ""


def triviality(sides: Sides) -> str:
    """Return the reason why sides cannot fail whatever the theory says; empty if they can.

    An inequality cannot fail if its right side is beyond the range of floats or at least the largest possible left
    side, or if its left side is at most the smallest possible right side, up to the smallest normal float. An equation
    cannot fail if both sides and all their terms are 0, or within half the absolute tolerance. Equations with an
    infinite side compare nothing either.

    Examples
    --------
    >>> triviality(Sides(3.0, math.inf)), triviality(Sides(0.0, 1.0))
    ('the right side is beyond the range of floats', 'the left side is 0, and the right side is at least 0')
    >>> triviality(Sides(2.0, 2.0, most=2.0)), triviality(Sides(1.0, 2.0, most=2.0, vacuous="said before"))
    ('the right side is 2, and the left side is at most 2', 'said before')
    >>> triviality(Sides(1.0, 2.0)), triviality(Sides(0.0, 0.0, "=")), triviality(Sides(0.0, 0.0, "=", scale=1.0))
    ('', 'all terms are 0', '')
    """
    if sides.vacuous:
        return sides.vacuous
    left, right = sides.left, sides.right
    if sides.relation == "=":
        if math.isinf(left) or math.isinf(right):
            return "both sides are infinite"
        size = max(abs(left), abs(right), sides.scale)
        if size == 0:
            return "all terms are 0"
        if size < TINY:
            return "all terms are below the smallest normal float"
        return f"all terms are within half the tolerance {sides.atol:.2g}" if 2 * size <= sides.atol else ""
    if right >= sys.float_info.max or left <= -sys.float_info.max:
        return f"the {'right' if right >= sys.float_info.max else 'left'} side is beyond the range of floats"
    if left <= sides.least + TINY:
        return f"the left side is {left:.4g}, and the right side is at least {sides.least:.4g}"
    if right >= sides.most:
        return f"the right side is {right:.4g}, and the left side is at most {sides.most:.4g}"
    return ""


def closest(candidates: Iterable[Sides]) -> Sides:
    """Return the sides that are closest to failing: of those with the worst status, those with the smallest slack.

    Slack is relative to the largest of both sides and the scale, plus the tolerance. Among sides that hold, those that
    can fail come first (:func:`triviality`).

    Raises
    ------
    NotApplicable
        If there are no candidates.

    Examples
    --------
    >>> closest([Sides(1.0, 2.0, note="layer 1"), Sides(1.0, 1.5, note="layer 2")]).note
    'layer 2'
    """

    def order(sides: Sides) -> tuple[int, bool, float]:
        status, slack, _ = judge(sides)
        size = max((abs(v) for v in (sides.left, sides.right, sides.scale) if math.isfinite(v)), default=0.0)
        trivial = status == HOLDS and bool(triviality(sides))
        return ORDER.index(status), trivial, 0.0 if math.isnan(slack) else slack / (size or 1.0) + sides.rtol

    found = list(candidates)
    if not found:
        raise NotApplicable("there is something to compare")
    return min(found, key=order)


@dataclass(frozen=True)
class Statement:
    """A statement of the theory as code, usually made by the decorator :func:`statement`.

    Attributes
    ----------
    id, name, formula, source : str
        As in :class:`Verdict`.
    sides : callable
        Takes the :class:`~bnrank.theory.facts.Facts` of a network and returns :class:`Sides`, or several, such as one
        per sample or layer; the verdict is on those closest to failing. It may raise :class:`NotApplicable` or
        :class:`Inconclusive`.

    Examples
    --------
    >>> from bnrank import MLP
    >>> from bnrank.theory import Facts
    >>> positive = Statement("T0", "norms", "0 <= ||theta||^2", "obvious", lambda facts: Sides(0, facts.parameter_norm))
    >>> positive(Facts(MLP([2, 3, 1]), torch.ones(4, 2))).label
    'holds (vacuous)'
    """

    id: str
    name: str
    formula: str
    source: str
    sides: Callable[[Any], Sides | Iterable[Sides]]

    def __post_init__(self) -> None:
        for name in ("id", "name", "formula", "source"):
            validation.text(getattr(self, name), name)
        validation.expect(callable(self.sides), "sides", self.sides, "a function of facts", TypeError)

    def __call__(self, facts: Any) -> Verdict:
        """Return the verdict on the facts of a network.

        Raises
        ------
        TypeError
            If ``sides`` returns anything else than :class:`Sides` or several of them.
        """
        verdict = Verdict(self.id, self.name, self.formula, self.source, NOT_APPLICABLE)
        try:
            with np.errstate(over="raise"):
                found = self.sides(facts)
                sides = found if isinstance(found, Sides) else closest(self._several(found))
        except NotApplicable as failed:
            return replace(verdict, reason=str(failed))
        except Inconclusive as unclear:
            return replace(verdict, status=INCONCLUSIVE, reason=str(unclear))
        except (ArithmeticError, torch.linalg.LinAlgError, np.linalg.LinAlgError) as error:
            return replace(verdict, status=INCONCLUSIVE, reason=f"values leave the range of floats: {error}")
        status, slack, reason = judge(sides)
        shared = {name: getattr(sides, name) for name in ("relation", "rtol", "assumptions", "note")}
        vacuous = triviality(sides) if status == HOLDS else ""
        verdict = replace(verdict, left=float(sides.left), right=float(sides.right), **shared)
        return replace(verdict, status=status, slack=slack, reason=reason, vacuous=vacuous)

    def _several(self, found: Any) -> list[Sides]:
        """Return the sides that the function returned or yielded."""
        several = list(found) if isinstance(found, Iterable) and not isinstance(found, Tensor) else [found]
        for one in several:
            name = f"sides of {self.id}, {self.name}"
            validation.expect(isinstance(one, Sides), name, one, "bnrank.theory.Sides, or several", TypeError)
        return several


def statement(
    id: str, name: str, formula: str, *, source: str
) -> Callable[[Callable[[Any], Sides | Iterable[Sides]]], Statement]:
    """Return a decorator that turns a function of facts into a :class:`Statement`.

    Parameters
    ----------
    id, name, formula, source : str
        As in :class:`Verdict`.

    Raises
    ------
    TypeError
        If one of them is not a text, or what is decorated is not a function.

    Examples
    --------
    >>> @statement("T0", "norms", "0 <= ||theta||^2", source="obvious")
    ... def norms(facts):
    ...     return Sides(0.0, facts.parameter_norm)
    >>> norms.id
    'T0'
    """
    for argument, value in (("id", id), ("name", name), ("formula", formula), ("source", source)):
        validation.text(value, argument)
    return lambda sides: Statement(id, name, formula, source, sides)


def statements_in(module: ModuleType) -> tuple[Statement, ...]:
    """Return the statements that a module defines, in their order in the file."""
    return tuple(value for value in vars(module).values() if isinstance(value, Statement))


@dataclass(frozen=True)
class Verdicts(Printed, Sequence[Verdict]):
    """The verdicts on one network, in the order of the statements.

    ``verdicts["T4"]`` is the first verdict with that id; ``print(verdicts)`` shows a table of those that
    apply, and why the others do not.

    Attributes
    ----------
    verdicts : tuple of Verdict
        All verdicts.
    about : dict
        The network, the data and the tolerances: depth, widths, slope, samples, parameter norm, rank ...
    """

    verdicts: tuple[Verdict, ...]
    about: dict[str, object]

    def __len__(self) -> int:
        return len(self.verdicts)

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
        """Return the verdicts with a status, e.g. ``"violated"``."""
        validation.choice(status, "status", STATUSES)
        return tuple(v for v in self.verdicts if v.status == status)

    @property
    def counts(self) -> dict[str, int]:
        """Number of verdicts of each status; those that hold vacuously count as "holds"."""
        return {status: len(self.having(status)) for status in (HOLDS, VIOLATED, NOT_APPLICABLE, INCONCLUSIVE)}

    @property
    def ok(self) -> bool:
        """Whether no statement is violated."""
        return not self.having(VIOLATED)

    @property
    def applied(self) -> tuple[Verdict, ...]:
        """The verdicts on statements that apply to the network."""
        return tuple(v for v in self.verdicts if v.status != NOT_APPLICABLE)

    @property
    def headline(self) -> str:
        """The number of statements, and of verdicts of each status, in a line."""
        return listing.headline(self)

    def unmet(self) -> dict[str, tuple[Verdict, ...]]:
        """Return the verdicts that are not applicable by reason, the most frequent reason first.

        Reasons are "assumption: what was found instead". Where several assumptions fail for one cause, the verdicts
        are listed together under the cause.

        Examples
        --------
        >>> chain, convolution = "the network is a chain", "there is a convolution"
        >>> reasons = [f"{chain}: got GELU", f"{convolution}: none", f"{chain}: got GELU"]
        >>> verdicts = [Verdict(f"T{i}", "", "", "", NOT_APPLICABLE, reason=r) for i, r in enumerate(reasons)]
        >>> [(reason, len(found)) for reason, found in Verdicts(tuple(verdicts), {}).unmet().items()]
        [('the network is a chain: got GELU', 2), ('there is a convolution: none', 1)]
        """
        by_cause: dict[str, list[Verdict]] = {}
        for verdict in self.having(NOT_APPLICABLE):
            by_cause.setdefault(verdict.reason.split(": ", 1)[-1], []).append(verdict)
        found = sorted(by_cause.items(), key=lambda item: -len(item[1]))
        return {own[0].reason if len({v.reason for v in own}) == 1 else cause: tuple(own) for cause, own in found}

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per verdict and one column per attribute."""
        import pandas as pd

        return pd.DataFrame([asdict(verdict) for verdict in self.verdicts])

    def _content(self) -> list[Part]:
        return listing.content(self)
