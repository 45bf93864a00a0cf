"""Axes, colors and legends that the pictures of several figures share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray

from bnrank._core.axes import OKABE_ITO, dress

GRAY = "0.35"


def panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Picture, Any]:
    """Return a new picture of the given size in inches, and its axes, an array of shape (rows, columns)."""
    picture = Picture(figsize=size, layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, **options)


def color(i: int) -> str:
    """Return the i-th color; colors repeat after seven."""
    return OKABE_ITO[i % len(OKABE_ITO)]


def label(
    ax: Axes, x: str, y: str, title: str, *, log: str = "", legend: Any = None, bottom: Any = None, **properties: Any
) -> None:
    """Label axes; ``log`` names logarithmic axes ("x", "y", "xy"), ``legend`` its place, ``bottom`` the end of y.

    ``properties``, such as ``xlim`` and ``aspect``, are those of ``Axes.set``.
    """
    dress(ax, x, y, title)
    for axis in log:
        getattr(ax, f"set_{axis}scale")("log")
    if legend:
        ax.legend(frameon=False, fontsize=9, loc=legend)
    if bottom is not None:
        ax.set_ylim(bottom=bottom)
    ax.set(**properties)


def ticks(ax: Axes, values: Sequence[float] | NDArray[np.float64]) -> None:
    """Mark these values, and no others, on the horizontal axis."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()


def reference(ax: Axes, value: float, name: str | None = None) -> None:
    """Draw a dashed horizontal line."""
    ax.axhline(value, color=GRAY, linestyle="--", linewidth=1.2, label=name)


def legend_below(picture: Picture, ax: Axes, columns: int | None = None) -> None:
    """Put the legend of an axes below the whole picture."""
    handles, names = ax.get_legend_handles_labels()
    picture.legend(handles, names, loc="outside lower center", ncols=columns or len(names), frameon=False)
