"""The two sides of a statement, the assumptions under which they compare, and the status that follows."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation

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
    """Raised by a statement if one of its assumptions fails.

    Examples
    --------
    >>> import torch, bnrank
    >>> def bound(facts):
    ...     raise bnrank.theory.NotApplicable("depth 3", f"the depth is {facts.depth}")
    >>> own = bnrank.theory.Statement("X1", "own", "0 <= 1", "nowhere", bound)
    >>> own(bnrank.theory.Facts(bnrank.MLP([2, 3, 1]), torch.ones(4, 2))).reason
    'depth 3: the depth is 2'
    """

    def __init__(self, assumption: str, detail: str = "") -> None:
        super().__init__(f"{assumption}: {detail}" if detail else assumption)


class Inconclusive(Exception):  # noqa: N818
    """Raised by a statement if one of its sides cannot be evaluated.

    Examples
    --------
    >>> import torch, bnrank
    >>> def bound(facts):
    ...     raise bnrank.theory.Inconclusive("the search found no bound")
    >>> own = bnrank.theory.Statement("X1", "own", "0 <= 1", "nowhere", bound)
    >>> own(bnrank.theory.Facts(bnrank.MLP([2, 3, 1]), torch.ones(4, 2))).status
    'inconclusive'
    """


def assume(condition: bool | np.bool_ | np.ndarray | Tensor, assumption: str, detail: str = "") -> None:
    """Raise :class:`NotApplicable` with the assumption unless the condition is true.

    The condition is a bool, or an array or tensor of one bool, such as ``(facts.x >= 0).all()``.

    Examples
    --------
    >>> assume(2 > 1, "order")
    >>> assume(1 > 2, "order", "1 is at most 2")
    Traceback (most recent call last):
        ...
    bnrank.theory.sides.NotApplicable: order: 1 is at most 2
    """
    assumption, detail = validation.text(assumption, "assumption"), validation.text(detail, "detail")
    if isinstance(condition, np.ndarray | Tensor):
        one = condition.dtype in (torch.bool, np.bool_) and math.prod(condition.shape) == 1
        validation.expect(one, "condition", condition, "one bool, such as that of .all() or .any()", TypeError)
        condition = bool(condition)
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
    bnrank.theory.sides.NotApplicable: depth is an integer: invalid literal for int() with base 10: 'deep'
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
        The two numbers to compare: real numbers of any kind, or arrays and tensors of one element.
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
        If a side is not a real number, or the relation is neither "<=" nor "=".

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
            object.__setattr__(self, name, _real(getattr(self, name), name))


def _real(value: object, name: str) -> float:
    """Return a real number, NaN and infinity included, or the only entry of an array or tensor, as a float."""
    number: Any = value.detach() if isinstance(value, Tensor) else value
    if isinstance(value, Tensor):
        real = value.numel() == 1 and not (value.is_complex() or value.is_meta)
    elif isinstance(value, np.ndarray | np.generic):
        real = value.size == 1 and value.dtype.kind in "fiub" and not np.ma.is_masked(value)
        number = value.item() if real else value
    else:
        real = isinstance(value, numbers.Real)
    validation.expect(real, name, validation.describe(value), "a real number", TypeError)
    try:
        return float(number)
    except OverflowError as error:
        raise validation.RangeError(f"{name}: got {validation.describe(value)}, expected a float") from error


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
