"""What was found, drawn: singular values with the gap, and the change of f under finite maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from bnrank._core.axes import OKABE_ITO, axes_for, dress

if TYPE_CHECKING:
    from bnrank.discovery.symmetries.result import Symmetries

__all__ = ["draw"]

BELOW, ABOVE, AWAY = OKABE_ITO[0], OKABE_ITO[1], "0.6"
LEAST = 1e-17  # where values of 0 are drawn
MOST_BARS = 30


def draw(found: Symmetries, axes: Any = None) -> NDArray[np.object_]:
    """Draw on two axes and return them."""
    left, right = axes_for(axes, (1, 2), (10.0, 4.0))
    _values(found, left)
    _maps(found, right)
    result = np.empty(2, dtype=object)
    result[:] = [left, right]
    return result


def _values(found: Symmetries, ax: Axes) -> None:
    many = f"{found.dimension} infinitesimal {'symmetry' if found.dimension == 1 else 'symmetries'} ({found.status})"
    dress(ax, "place", "relative singular value s", many)
    ax.set_yscale("log")
    groups = [(found.translations, "s", "constant fields"), (found.fields, "o", "fields of what is left")]
    for part, marker, label in groups:
        values = part.values.clamp(min=LEAST).numpy()
        if not len(values):
            continue
        kept = len(part.vectors)
        place = np.arange(1, len(values) + 1)
        ax.plot(place[:kept], values[:kept], marker, color=BELOW, label=f"{label}: symmetries" if kept else None)
        ax.plot(place[kept:], values[kept:], marker, color=ABOVE, mfc="none", label=f"{label}: others")
    ax.legend(fontsize=8)


def _maps(found: Symmetries, ax: Axes) -> None:
    dress(ax, "change of f", "", f"{len(found.held)} of {len(found.finite)} finite symmetries hold")
    shown = sorted(found.finite, key=lambda test: test.change)[:MOST_BARS]
    colors = {"exact": BELOW, "approximate": BELOW, "off the data": AWAY, "undetermined": AWAY, "no": ABOVE}
    ax.barh(range(len(shown)), [test.change for test in shown], color=[colors[test.verdict] for test in shown])
    ax.set_yticks(range(len(shown)), [f"{test.text} ({test.verdict})" for test in shown], fontsize=7)
    ax.invert_yaxis()
