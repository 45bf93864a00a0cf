"""Verdicts: whether a statement of the theory holds on a given network, with both of its sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
from bnrank.theory.sides import (  # noqa: F401, some names are only passed on
    HOLDS,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    STATUSES,
    VIOLATED,
    Inconclusive,
    NotApplicable,
    Sides,
    assume,
    assuming,
    closest,
    judge,
    triviality,
)

if TYPE_CHECKING:
    import pandas as pd


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

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), 3 * torch.eye(2)])
    >>> verdict = bnrank.check(net, torch.ones(5, 2), only="T4")["T4"]      # a bnrank.theory.Verdict
    >>> verdict.status, round(verdict.left, 9), verdict.relation, round(verdict.right, 9)
    ('holds', 12.0, '<=', 20.0)
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

    Examples
    --------
    >>> import torch, bnrank
    >>> verdicts = bnrank.check(bnrank.MLP([3, 8, 2], seed=0), torch.ones(5, 3), only=["T4", "T14"])
    >>> verdicts.ok, verdicts["T4"].status, [verdict.id for verdict in verdicts.having("not applicable")]
    (True, 'holds', ['T14', 'T14'])
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
