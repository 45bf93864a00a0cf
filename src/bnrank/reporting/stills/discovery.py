"""A still picture of what a fit found: held-out loss, coordinates colored by an output, sensitivities."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.discovery.estimators.summary import Summary
from bnrank.reporting.charts.discovery import classes
from bnrank.reporting.sections import found_in

_MARKERS = "osD^vP"
_NAMED = 30  # inputs whose names there is room for


def discovered(found: object, axes: Any = None, *, output: int = 0, coordinates: tuple[int, int] = (1, 2)) -> Any:
    """Draw what a fit found: held-out loss against k, coordinates colored by an output, and sensitivities.

    A single coordinate is drawn against the output; of a classifier the colors are the classes.

    Parameters
    ----------
    found : fitted estimator or Summary
        `bnrank.discovery.BottleneckRegressor` and its like, or their ``summary()``.
    axes : three Axes, optional
        Where to draw; default: side by side in a new figure.
    output : int
        Which output gives the colors, counted from 0.
    coordinates : pair of int
        Which coordinates are drawn, across and up, counted from 1, the most influential.

    Returns
    -------
    ndarray of Axes, shape (3,)

    Raises
    ------
    TypeError
        If ``found`` is something else.
    ValueError
        If the estimator is not fitted, or there is no such output or coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from bnrank.discovery import BottleneckRegressor
    >>> x = np.random.default_rng(0).normal(size=(200, 6))
    >>> y = x[:, :2] @ np.array([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])
    >>> [ax.get_xlabel() for ax in discovered(BottleneckRegressor().fit(x, y))]
    ['components k', 'z1', 'coordinate']
    """
    summary = found_in(found)
    if not isinstance(summary, Summary):
        raise TypeError(f"found: got {validation.describe(found)}, expected a fitted bottleneck estimator or a Summary")
    output = validation.integer(output, "output", 0)
    if output >= summary.outputs:
        raise ValueError(f"output: got {output}, expected a number below {summary.outputs}, that of the outputs")
    pair = [validation.integer(j, f"coordinates[{i}]") for i, j in enumerate(coordinates)]
    if len(pair) != 2 or (summary.n_components > 1 and max(pair) > summary.n_components):
        raise ValueError(f"coordinates: got {coordinates}, expected two of 1, ..., {summary.n_components}")
    axes = axes_for(axes, (1, 3), (13.0, 3.9))
    _held_out(axes[0], summary)
    if not summary.n_components:
        for ax in axes[1:]:
            ax.text(0.5, 0.5, "nothing was found", ha="center", va="center", transform=ax.transAxes, color="0.4")
            ax.set_axis_off()
        return axes
    _coordinates(axes[1], summary, output, pair[0] - 1, pair[1] - 1)
    _sensitivity(axes[2], summary)
    return axes


def _held_out(ax: Axes, summary: Summary) -> None:
    loss, k = summary.held_out, summary.n_components
    ax.errorbar(range(len(loss)), loss, summary.held_out_error, color=OKABE_ITO[0], ecolor="0.45", marker="o", ms=4)
    ax.plot([k], [loss[k]], "o", ms=11, mfc="none", mec=OKABE_ITO[1], mew=2, label=f"used: k = {k}")
    low, high = summary.interval
    if not summary.undetermined:
        ax.axvspan(low - 0.5, high + 0.5, color="0.94", zorder=0, label=f"interval {low} to {high}")
    dress(ax, "components k", "held-out loss", "Held-out loss" + (", undetermined" if summary.undetermined else ""))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if loss.min() > 0 and loss.max() > 15 * loss.min():
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(0.7 * loss.min(), 1e-6 * loss.max()))
    else:
        ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=9)


def _coordinates(ax: Axes, summary: Summary, output: int, i: int, j: int) -> None:
    labels, k = classes(summary), summary.n_components
    across = summary.coordinates[:, 0 if k == 1 else i]
    up = np.zeros(len(across)) if k == 1 else summary.coordinates[:, j]
    if labels is not None:
        seen = np.array([str(label) for label in summary.seen])
        for c, name in enumerate(labels):
            rows = seen == name
            heights = c + 0.5 * ((np.arange(rows.sum()) * 0.618034) % 1 - 0.5) if k == 1 else up[rows]
            color, marker = OKABE_ITO[c % 7], _MARKERS[c // 7 % len(_MARKERS)]
            ax.scatter(across[rows], heights, s=16, color=color, marker=marker, label=name)
        if k > 1 and len(labels) <= 12:
            ax.legend(frameon=False, fontsize=8)
        if k == 1:
            ax.set_yticks(range(len(labels)), labels)
        dress(ax, f"z{i + 1}" if k > 1 else "z1", f"z{j + 1}" if k > 1 else "class", "Coordinates by class")
        return
    values, name = summary.seen.reshape(len(summary.seen), -1)[:, output], summary.output_names[output]
    if k == 1:
        ax.scatter(across, values, s=16, color=OKABE_ITO[0], alpha=0.75)
        dress(ax, "z1", name, "Coordinate against output")
        return
    dots = ax.scatter(across, up, s=16, c=values, cmap="viridis_r")
    ax.figure.colorbar(dots, ax=ax, aspect=30, pad=0.02, label=name)
    dress(ax, f"z{i + 1}", f"z{j + 1}", f"Coordinates colored by {name}")


def _sensitivity(ax: Axes, summary: Summary) -> None:
    rows = summary.sensitivity
    k, d = rows.shape
    shown = ax.imshow(rows.T, aspect="auto", cmap=colormaps["Blues"], vmin=0, interpolation="nearest")
    ax.figure.colorbar(shown, ax=ax, aspect=30, pad=0.02)
    dress(ax, "coordinate", "input", "Sensitivity of coordinates to inputs")
    ax.grid(visible=False)
    every = -(-d // _NAMED)
    ax.set_yticks(range(0, d, every), [_shortened(name) for name in summary.inputs[::every]])
    ax.tick_params(axis="y", labelsize=8 if d <= 20 else 6.5)
    ax.set_xticks(range(k), [f"z{j + 1}" for j in range(k)])


def _shortened(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
