"""The tightness of inequalities as a still picture."""

import math
from typing import Any

from matplotlib.axes import Axes

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, VIOLATED, Verdict, Verdicts

_COLORS = {HOLDS: OKABE_ITO[0], INCONCLUSIVE: OKABE_ITO[5], VIOLATED: OKABE_ITO[1]}


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
    validation.expect(drawn, "verdicts", "no inequality between positive numbers", "at least one")
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


def drawable(verdict: Verdict) -> bool:
    """Return whether a verdict compares two numbers by "<=" whose ratio says how tight it is."""
    return (
        verdict.relation == "<="
        and not verdict.vacuous
        and verdict.status in _COLORS
        and math.isfinite(verdict.left)
        and math.isfinite(verdict.right)
        and verdict.left >= 0
        and verdict.right > 0
    )
