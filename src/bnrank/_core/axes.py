"""Matplotlib axes without pyplot, and their style."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import validation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Seven colors that color-blind readers can tell apart (Okabe and Ito 2008; yellow left out, too pale for lines)."""


def axes_for(
    axes: Any, shape: tuple[int, int], size: tuple[float, float], count: int | None = None, name: str = "axes"
) -> Any:
    """Return ``count`` axes as a flat array: those given, or those of a new figure with a grid of ``shape``."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = shape[0] * shape[1] if count is None else count
    if axes is None:
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, wspace=0.03))
        made = figure.subplots(*shape, squeeze=False).ravel()
        for ax in made[count:]:
            ax.remove()
        return made[:count]
    entries = [axes] if isinstance(axes, Axes) else axes.ravel() if isinstance(axes, np.ndarray) else axes
    listed = list(entries) if isinstance(entries, list | tuple | np.ndarray) else []
    fits = len(listed) == count and all(isinstance(ax, Axes) for ax in listed)
    validation.expect(fits, name, validation.describe(axes), f"{count} matplotlib axes")
    return np.array(listed, dtype=object)


def dress(ax: Axes, x: str, y: str, title: str) -> None:
    """Label the axes and set the style of grid and spines."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(title, fontsize=11)
    ax.grid(color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
