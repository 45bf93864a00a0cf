"""Still pictures of results: fits, and the tightness of the inequalities of the theory."""

import math
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.discovery.estimators.summary import Summary
from bnrank.reporting.charts.discovery import by_class, classes
from bnrank.reporting.charts.parts import cut
from bnrank.reporting.sections import found_in
from bnrank.reporting.tables import listed
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, VIOLATED, Verdict, Verdicts

_MARKERS = "osD^vP"
_NAMED = 30  # largest number of inputs with names
_COLORS = {HOLDS: OKABE_ITO[0], INCONCLUSIVE: OKABE_ITO[5], VIOLATED: OKABE_ITO[1]}


def discovered(found: object, axes: Any = None, *, output: int = 0, coordinates: tuple[int, int] = (1, 2)) -> Any:
    """Draw the result of a fit: held-out loss against k, coordinates colored by an output, and sensitivities.

    A single coordinate is drawn against the output; for a classifier the colors are the classes.

    Parameters
    ----------
    found : fitted estimator or Summary
        An estimator such as `bnrank.discovery.BottleneckRegressor`, or its ``summary()``.
    axes : three Axes, optional
        Where to draw; default: side by side in a new figure.
    output : int
        Which output gives the colors, counted from 0.
    coordinates : pair of int
        Coordinates on the horizontal and the vertical axis, counted from 1, the most influential one.

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
    expected = f"a number below {summary.outputs}, that of the outputs"
    validation.expect(output < summary.outputs, "output", f"{output}", expected)
    pair = validation.integers(coordinates, "coordinates")
    fits = len(pair) == 2 and (summary.n_components < 2 or max(pair) <= summary.n_components)
    validation.expect(fits, "coordinates", f"{coordinates}", f"two of 1, ..., {summary.n_components}")
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
    i, j = (0, 0) if k == 1 else (i, j)
    across, up = summary.coordinates[:, i], summary.coordinates[:, j]
    if labels is not None:
        for c, (rows, side_by_side) in enumerate(by_class(summary, labels)):
            heights = side_by_side if k == 1 else up[rows]
            color = OKABE_ITO[c % 7]
            marker = _MARKERS[c // 7 % 6]
            ax.scatter(across[rows], heights, s=16, color=color, marker=marker, label=labels[c])
        if k == 1:
            ax.set_yticks(range(len(labels)), labels)
        elif len(labels) <= 12:
            ax.legend(frameon=False, fontsize=8)
        dress(ax, f"z{i + 1}", f"z{j + 1}" if k > 1 else "class", "Coordinates by class")
        return
    values, name = summary.observed.reshape(len(summary.observed), -1)[:, output], summary.output_names[output]
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
    ax.set_yticks(range(0, d, every), list(map(cut, summary.inputs[::every])))
    ax.tick_params(axis="y", labelsize=8 if d <= 20 else 6.5)
    ax.set_xticks(range(k), [f"z{j + 1}" for j in range(k)])


def tightness(verdicts: Verdicts, axes: Any = None) -> Axes:
    """Draw left over right of every inequality between positive numbers: 1 is tight, above 1 it fails.

    Inequalities that hold vacuously are omitted.

    Parameters
    ----------
    verdicts : Verdicts
        The result of `bnrank.check`.
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
    drawn = [v for v in listed(verdicts) if drawable(v)]
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
    """Return whether a verdict is an inequality "<=" between two numbers whose ratio measures its tightness."""
    compares = verdict.relation == "<=" and verdict.status in _COLORS and not verdict.vacuous
    return compares and 0 <= verdict.left < math.inf and 0 < verdict.right < math.inf
