"""Subadditivity of the corrections to the cost under composition and addition of functions (T7, T8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.theory.cost.expansion import ALPHA, Array, Expansion, expand, half_widths, least_squares, numbers, with_term
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, Sides, Statement, Verdict, Verdicts

RULES = ("composition", "addition")
COMBINED = ("costs at finite depth", "R1 is subadditive", "R2 is subadditive")  # what the networks of the parts prove
SEEDED = "the costs of the whole are at most those of the networks of the parts, combined"
PARTS = ("the first part", "the second part", "the whole")


def subadditivity(
    depths: Sequence[int] | ArrayLike,
    first: Sequence[float] | ArrayLike,
    second: Sequence[float] | ArrayLike,
    whole: Sequence[float] | ArrayLike,
    *,
    rule: str = "composition",
    atol: float = 0.0,
    sigma: float | None = None,
    from_parts: bool = False,
) -> Verdicts:
    r"""Return the verdicts on R1 and R2 of h o g, or of f + g, against those of its parts, from costs over depths.

    The costs of both parts and of the whole are fitted by :func:`expand`, R = L R0 + R1 + R2 / L. Five statements are
    judged (Jacot2023b theorem 3 and proposition 4):

    1. The costs themselves: R(h o g; L1 + L2) <= R(h; g(Omega), L1) + R(g; L2) at all depths that occur, or
       R(f + g; L) <= R(f; L) + R(g; L). Networks that are composed or put in parallel prove it if g(Omega) >= 0, or
       the last biases of f and g are orthogonal (E27).
    2. R0, the assumption of the others: the same for all three (composition), or that of the whole is the sum.
    3. R1 of the whole is at most the sum of R1 of the parts.
    4. R2 >= 0, for all three.
    5. Where R1 is additive: sqrt(R2) of the whole is at most the sum of both roots (composition), or R2 at most the sum
       (addition).

    Statements 3 to 5 compare 95 percent intervals of right - left: a statement holds if the interval is above -atol, is
    violated if it is below, and is inconclusive if it contains -atol. They come from fits of R1 + R2 / L + R3 / L^2 to
    the costs minus L R0, R0 rounded. If the costs follow no expansion, or R0 does not satisfy 2, the statements do not
    apply.

    If the networks of the whole are those of the parts, composed or in parallel, or come from searches that start
    there, 1 cannot fail, and 3 and 5 can fail only by the errors of the fits. With ``from_parts``, these are marked as
    vacuous where they hold.

    Costs from :func:`solve` are upper bounds. A violation of 1 shows that the norm of the whole is not minimal, since
    the networks of the parts, composed, have less. Fits to upper bounds do not prove 3 to 5; they test them under the
    assumption that the search has found the minima.

    Parameters
    ----------
    depths : sequence of int
        L, at least 3 different ones; repeated for several norms of one depth, of which 1 compares the smallest.
    first, second : sequence of float
        Costs of the parts at these depths: of h on g(Omega) and of g on Omega; or of f and g.
    whole : sequence of float
        Costs of h o g, or of f + g.
    rule : "composition" or "addition"
        Which.
    atol : float
        Differences up to this, in units of R1 and R2, count as 0.
    sigma : float, optional
        Standard deviation of the costs about the expansion, as in :func:`expand`.
    from_parts : bool
        Whether the costs of the whole are at most those of networks that combine the networks of the parts.

    Returns
    -------
    Verdicts
        The five verdicts; ``about`` has the fitted terms.

    Raises
    ------
    TypeError, ValueError
        If the costs do not match the depths, or an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> from bnrank.theory.cost import linear
    >>> depths, g, h = [4, 6, 8, 12, 16, 24], torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.diag(torch.tensor([0.5, 3]))
    >>> found = subadditivity(depths, *([linear(a, L) for L in depths] for a in (h, g, h @ g)), atol=0.1)
    >>> [verdict.status for verdict in found]
    ['holds', 'holds', 'holds', 'holds', 'holds']
    """
    validation.choice(rule, "rule", RULES)
    atol, from_parts = validation.number(atol, "atol", 0.0), validation.flag(from_parts, "from_parts")
    L = numbers(depths, "depths")
    norms = [numbers(v, n) for v, n in ((first, "first"), (second, "second"), (whole, "whole"))]
    for values, name in zip([L, *norms], ("depths", "first", "second", "whole"), strict=True):
        validation.expect(values.ndim == 1, name, values, "a sequence of numbers", TypeError)
        validation.expect(len(values) == len(L), name, f"{len(values)} numbers", f"as many as depths, {len(L)}")
    sigma = None if sigma is None else validation.number(sigma, "sigma", 0.0, strict=True)
    fits = [expand(L, values, sigma=sigma) for values in norms]
    verdicts = [_costs(L, norms, rule), _ranks(fits, rule)]
    blocked = verdicts[1]
    ranks = [fit.rank for fit in fits]
    rests = [values - L * rank for values, rank in zip(norms, ranks, strict=True)]
    terms = [Terms.of(L, rest, sigma) for rest in rests]
    terms.append(Terms.of(L, rests[0] + rests[1] - rests[2], None if sigma is None else math.sqrt(3) * sigma))
    verdicts += [make(terms, rule, atol, blocked) for make in (_regularity, _signs, _second)]
    if from_parts:
        verdicts = [replace(v, vacuous=SEEDED) if v.name in COMBINED and v.status == HOLDS else v for v in verdicts]
    about: dict[str, object] = {"rule": rule, "from parts": from_parts}
    for name, fit in zip(PARTS, fits, strict=True):
        about[name] = f"R0 = {fit.R0:.4g}, R1 = {fit.R1:.4g}, R2 = {fit.R2:.4g}; fits: {fit.fits} ({fit.reason})"
    return Verdicts(tuple(verdicts), about)


def _verdict(id: str, name: str, rule: str, formulas: tuple[str, str]) -> Verdict:
    source = "Jacot2023b theorem 3" if id == "T7" else "Jacot2023b proposition 4"
    return Verdict(id, name, formulas[RULES.index(rule)], source, INCONCLUSIVE, assumptions=("costs are minimal",))


def _costs(depths: np.ndarray, norms: list[np.ndarray], rule: str) -> Verdict:
    """Return the verdict on the costs at finite depth."""
    least = [{L: float(values[depths == L].min()) for L in np.unique(depths)} for values in norms]
    f, g, whole = least
    if rule == "composition":
        pairs = [(a, b) for a in f for b in g if a + b in whole]
        found = [(whole[a + b], f[a] + g[b], f"L1 = {a:g}, L2 = {b:g}") for a, b in pairs]
        formula = "R(h o g; L1 + L2) <= R(h; g(Omega), L1) + R(g; L2)"
    else:
        found = [(whole[L], f[L] + g[L], f"L = {L:g}") for L in whole]
        formula = "R(f + g; L) <= R(f; L) + R(g; L)"

    def sides(_: object) -> list[Sides]:
        return [Sides(a, b, note=f"{where}, the closest of {len(found)}") for a, b, where in found]

    verdict = Statement("T7", "costs at finite depth", formula, "Jacot2023b theorem 3, proof", sides)(None)
    if not found:
        return replace(verdict, status=NOT_APPLICABLE, reason="no depth is the sum of two others")
    return verdict


def _ranks(fits: list[Expansion], rule: str) -> Verdict:
    """Return the verdict on R0, whose assumption is that all three norms follow the expansion."""
    f, g, whole = (fit.rank for fit in fits)
    verdict = _verdict("T6", "R0 of the whole", rule, ("R0(h o g) = R0(h) = R0(g)", "R0(f + g) = R0(f) + R0(g)"))
    expected = f if rule == "composition" else f + g
    verdict = replace(verdict, source="Jacot2023b theorem 3, assumption", left=float(whole), right=float(expected))
    verdict = replace(verdict, relation="=", slack=-float(abs(whole - expected)), note=f"R0 of the parts: {f} and {g}")
    for name, fit in zip(PARTS, fits, strict=True):
        if fit.fits is False:
            return replace(verdict, status=NOT_APPLICABLE, reason=f"the costs of {name} follow no expansion")
        low, high = fit.R0_interval
        if not fit.rank - 0.5 < low <= high < fit.rank + 0.5:
            return replace(verdict, reason=f"R0 of {name} is in [{low:.3g}, {high:.3g}], not within 1/2 of an integer")
        if fit.fits is None:
            return replace(verdict, reason=f"whether the costs of {name} follow the expansion: {fit.reason}")
    if whole > (min(f, g) if rule == "composition" else f + g):
        return replace(verdict, status=VIOLATED)
    if whole == expected and (rule == "addition" or f == g):
        return replace(verdict, status=HOLDS)
    return replace(verdict, status=NOT_APPLICABLE, reason=f"{verdict.formula}: R0 = {whole}, of the parts {f} and {g}")


def _judged(verdict: Verdict, left: float, right: float, slack: Term, atol: float) -> Verdict:
    """Return the verdict with the status that the interval of right - left gives."""
    status = HOLDS if slack.low >= -atol else VIOLATED if slack.high < -atol else INCONCLUSIVE
    reason = f"right - left is in {slack}" if status == INCONCLUSIVE else ""
    note = f"right - left in {slack}, tolerance {atol:g}"
    return replace(
        verdict, status=status, reason=reason, left=left, right=right, slack=slack.value, rtol=0.0, note=note
    )


def _applies(verdict: Verdict, blocked: Verdict) -> Verdict | None:
    """Return the verdict that applies if the condition on R0 fails or is unknown."""
    if blocked.status == HOLDS:
        return None
    reason = blocked.reason or f"{blocked.formula}: R0 = {blocked.left:g}, {blocked.note}"
    return replace(verdict, status=INCONCLUSIVE if blocked.status == INCONCLUSIVE else NOT_APPLICABLE, reason=reason)


def _regularity(terms: list[Terms], rule: str, atol: float, blocked: Verdict) -> Verdict:
    formulas = ("R1(h o g) <= R1(h) + R1(g)", "R1(f + g) <= R1(f) + R1(g)")
    verdict = _verdict("T7", "R1 is subadditive", rule, formulas)
    f, g, whole, slack = terms
    return _applies(verdict, blocked) or _judged(verdict, whole.R1.value, f.R1.value + g.R1.value, slack.R1, atol)


def _signs(terms: list[Terms], rule: str, atol: float, blocked: Verdict) -> Verdict:
    verdict = _verdict("T8", "R2 is not negative", rule, ("0 <= R2",) * 2)
    worst = min(terms[:3], key=lambda term: term.R2.low)
    found = _applies(verdict, blocked) or _judged(verdict, 0.0, worst.R2.value, worst.R2, atol)
    return replace(found, note=f"R2 of {PARTS[terms.index(worst)]}; {found.note}") if found.note else found


def _second(terms: list[Terms], rule: str, atol: float, blocked: Verdict) -> Verdict:
    formulas = ("R2(h o g)^{1/2} <= R2(h)^{1/2} + R2(g)^{1/2}", "R2(f + g) <= R2(f) + R2(g)")
    verdict = _verdict("T8", "R2 is subadditive", rule, formulas)
    stopped = _applies(verdict, blocked)
    if stopped is not None:
        return stopped
    f, g, whole, slack = terms
    additive = f"R1 is additive: R1 of the parts minus R1 of the whole is in {slack.R1}"
    if slack.R1.low > atol or slack.R1.high < -atol:
        return replace(verdict, status=NOT_APPLICABLE, reason=additive)
    verdict = replace(verdict, assumptions=(*verdict.assumptions, additive))
    if min(term.R2.high for term in terms[:3]) < -atol:
        return replace(verdict, status=NOT_APPLICABLE, reason="R2 >= 0 for all three")
    if rule == "addition":
        return _judged(verdict, whole.R2.value, f.R2.value + g.R2.value, slack.R2, atol)
    roots = [term.R2.root() for term in (f, g, whole)]
    right = roots[0].value + roots[1].value
    low, high = roots[0].low + roots[1].low - roots[2].high, roots[0].high + roots[1].high - roots[2].low
    return _judged(verdict, roots[2].value, right, Term(right - roots[2].value, low, high), atol)


@dataclass(frozen=True)
class Term(Printed):
    """An estimate with its 95 percent confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.4g}, {self.high:.4g}]"

    def root(self) -> Term:
        """Return the square root, of 0 for negative values."""
        return Term(*(math.sqrt(max(v, 0.0)) for v in (self.value, self.low, self.high)))


@dataclass(frozen=True)
class Terms:
    """R1 and R2 of costs from which L R0 is subtracted."""

    R1: Term
    R2: Term

    @classmethod
    def of(cls, L: Array, rest: Array, sigma: float | None) -> Terms:
        """Return the fit of R1 + R2 / L + R3 / L^2; R0 is an integer that is known, which leaves one more term."""
        columns = np.stack([L**-p for p in (0.0, 1.0, 2.0)], 1)
        estimate, gaps, inverse = least_squares(columns, rest)
        freedom = len(L) - 3
        widths = half_widths(inverse, float(gaps @ gaps), freedom, sigma)
        further, p = with_term(columns, rest, L**-3.0)
        if sigma is None and p < ALPHA:
            widths = widths + 1.5 * np.abs(further[:3] - estimate)
        first, second = (
            Term(v, v - w, v + w) for v, w in list(zip(estimate.tolist(), widths.tolist(), strict=True))[:2]
        )
        return cls(first, second)
