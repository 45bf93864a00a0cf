"""Verdicts of `bnrank.check` as rows of a table and as a picture of how tight each inequality is."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes

from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, VIOLATED, Verdict, Verdicts

__all__ = ["about_rows", "summary", "tightness", "typeset", "verdict_rows"]

_SIGNS = {"<=": "≤", "->": "→", "||": "‖", "sum_": "Σ_", "^2": "²", "Theta": "Θ", "theta": "θ", "lambda": "λ"}
_SIGNS |= {"Omega": "Ω", "sigma": "σ", " o ": " ∘ ", "a~": "ã"}
_COLORS = {HOLDS: OKABE_ITO[0], INCONCLUSIVE: OKABE_ITO[5], VIOLATED: OKABE_ITO[1]}


def verdict_rows(verdicts: Verdicts) -> list[dict[str, object]]:
    """Return one row per verdict: statement, formula, status, both sides, slack, what to know of it, source.

    The status of a statement that cannot fail where it is applied is "holds (vacuous)".

    Examples
    --------
    >>> import torch, bnrank
    >>> rows = verdict_rows(bnrank.check(bnrank.MLP([3, 8, 2]), torch.randn(20, 3), only="T4"))
    >>> rows[0]["id"], rows[0]["status"]
    ('T4', 'holds')
    """
    return [
        {
            "id": verdict.id,
            "statement": verdict.name,
            "formula": verdict.formula,
            "status": verdict.label,
            "left": verdict.left,
            "relation": verdict.relation if not math.isnan(verdict.left) else None,
            "right": verdict.right,
            "slack": verdict.slack,
            "remarks": "; ".join(part for part in (verdict.reason, verdict.vacuous, verdict.note) if part),
            "source": verdict.source,
        }
        for verdict in verdicts
    ]


def about_rows(verdicts: Verdicts) -> list[dict[str, object]]:
    """Return one row per fact about the network and the data that the verdicts are on."""
    return [
        {"of the network and the data": key, "value": str(value) if isinstance(value, list) else value}
        for key, value in verdicts.about.items()
    ]


def summary(verdicts: Verdicts) -> str:
    """Return how many verdicts have each status, in words.

    Examples
    --------
    >>> summary(Verdicts((), {}))
    '0 hold, 0 violated, 0 inconclusive, 0 not applicable'
    """
    counts = verdicts.counts
    empty = sum(bool(verdict.vacuous) for verdict in verdicts)
    vacuously = f" ({empty} vacuous)" if empty else ""
    return (
        f"{counts[HOLDS]} hold{vacuously}, {counts[VIOLATED]} violated, {counts[INCONCLUSIVE]} inconclusive, "
        f"{counts['not applicable']} not applicable"
    )


def tightness(verdicts: Verdicts, axes: Any = None) -> Axes:
    """Draw left over right of every inequality between positive numbers: 1 is tight, above 1 it fails.

    Inequalities that hold vacuously are left out.

    Parameters
    ----------
    verdicts : Verdicts
        What `bnrank.check` returns.
    axes : Axes, optional
        Where to draw; default: a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If there is no inequality to draw.

    Examples
    --------
    >>> import torch, bnrank
    >>> ax = tightness(bnrank.check(bnrank.MLP([3, 8, 2]), torch.randn(20, 3), only="T4"))
    >>> ax.get_xlabel()
    'left side / right side'
    """
    drawn = [v for v in verdicts if drawable(v)]
    if not drawn:
        raise ValueError("verdicts: got no inequality between positive numbers, expected at least one")
    (ax,) = axes_for(axes, (1, 1), (8.0, 1.3 + 0.3 * len(drawn)))
    ratios = [v.left / v.right for v in drawn]
    floor = min([r for r in ratios if r > 0], default=1.0)
    low = min(0.5, 10 ** math.floor(math.log10(max(floor, 1e-6))))
    for row, (verdict, ratio) in enumerate(zip(drawn, ratios, strict=True)):
        ax.plot([low, max(ratio, low)], [row, row], color=_COLORS[verdict.status], linewidth=2.2, alpha=0.55)
        ax.plot(max(ratio, low), row, "o", color=_COLORS[verdict.status], markersize=6, zorder=3)
    ax.axvline(1.0, color="0.25", linewidth=1.2)
    ax.set_xscale("log")
    ax.set_xlim(low * 0.9, max([1.3, *(1.2 * r for r in ratios)]))
    ax.set_yticks(range(len(drawn)), [f"{v.id}  {v.name}" for v in drawn], fontsize=9)
    ax.set_ylim(len(drawn) - 0.4, -0.6)
    present = [status for status in _COLORS if any(v.status == status for v in drawn)]
    if present != [HOLDS]:
        handles = [ax.plot([], [], "o", color=_COLORS[status], label=status)[0] for status in present]
        ax.legend(handles=handles, fontsize=9, frameon=False, loc="lower left")
    dress(ax, "left side / right side", "", "How tight the inequalities are (1 is equality)")
    return ax


def typeset(text: str) -> str:
    """Return a formula in plain letters with the signs of print.

    Examples
    --------
    >>> typeset("L sum_k s_k^{2/L} <= ||theta||^2")
    'L Σ_k s_k^{2/L} ≤ ‖θ‖²'
    """
    for plain, sign in _SIGNS.items():
        text = text.replace(plain, sign)
    return text


def drawable(verdict: Verdict) -> bool:
    """Say whether a verdict compares two numbers by "<=" whose ratio says how tight it is."""
    return (
        verdict.relation == "<="
        and not verdict.vacuous
        and verdict.status in _COLORS
        and math.isfinite(verdict.left)
        and math.isfinite(verdict.right)
        and verdict.left >= 0
        and verdict.right > 0
    )
