"""The pictures of F13: ratios with their bounds, alignments, drift of conserved quantities, signs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f13_low_rank_tails.computation import Course, Steps
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, reference, ticks

DASHES = (":", "-.")
KINDS = {"sum": "ReLU block, [Z D]", "conv": "convolution", "linear": "fully connected"}


def rank_one(courses: Sequence[Course]) -> Picture:
    """Draw the deviation of the layers from rank one, with T48's bounds, and from alignment, over log t."""
    picture, axes = panels(len(courses), 2, (11.5, 3.9 * len(courses)))
    for (left, right), c in zip(axes, courses, strict=True):
        for i, name in enumerate(c.inner):
            left.plot(c.times, 1 - c.ratios[name], **_style(i, 0))
            left.plot(c.times, 1 - c.floors[name], color=color(i), linestyle="--", linewidth=1.2)
        for i, values in enumerate(c.before.values()):
            left.plot(c.times, 1 - values, **_style(i, len(c.before)))
        left.plot([], [], color=GRAY, linestyle="--", linewidth=1.2, label="upper bound of T48")
        measure, data = r"$1-\|W\|_{op}^2\,/\,\|W\|_F^2$", c.title.partition("; ")[2]
        _over_time(left, c, measure, f"Distance from rank one; {data}", log="y", ylim=(1e-3, 2))
        for i, values in enumerate(c.alignments.values()):
            name = f"linear {i + 1} to {i + 2}"
            right.plot(c.times, np.maximum(1 - values, 1e-16), color=color(i + 3), linewidth=2.0, label=name)
        up = r"$1-|\langle v_{j+1},u_j\rangle|$"
        _over_time(right, c, up, "Distance from aligned", log="y", legend="upper right")
        for ax in (left, right):
            ax.axhline(0.01, color=GRAY, linewidth=0.9)
    legend_below(picture, axes[-1, 0])
    return picture


def bounds(courses: Sequence[Course]) -> Picture:
    """Draw the ratio of every layer of the tail over log t, its bound dashed and 1 / (2^N M) at the right edge."""
    picture, (axes,) = panels(1, len(courses), (4.6 * len(courses), 4.4), sharey=True)
    for ax, c in zip(axes, courses, strict=True):
        for i, (name, values) in enumerate(c.ratios.items()):
            kind, factor = c.tail.layers[i].kind, c.tail.factors(c.flow.network)[i]
            share = f"{KINDS.get(kind, kind)}: $1/(2^NM)$ = 1" + (f"/{factor}" if factor > 1 else "")
            ax.plot(c.times, values, color=color(i), linewidth=2.0, label=share)
            if name in c.inner:
                ax.plot(c.times, np.maximum(c.floors[name], 0), color=color(i), linestyle="--", linewidth=1.3)
        _over_time(ax, c, "", f"Tail with {c.title.partition(';')[0]}", ylim=(0, 1.04))
        ax.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes[0].set_ylabel(r"$\|W\|_{op}^2\,/\,\|W\|_F^2$;  dashed: T48's bound")
    return picture


def invariants(c: Course, steps: Steps) -> Picture:
    """Draw the drift along the flow, after one step of descent, and over a fixed time, with the predictions of T49."""
    picture, ((left, middle, right),) = panels(1, 3, (13.5, 4.6))
    names = [name for name in c.drift if not name.startswith("layer")]
    for i, name in enumerate(names):
        kind = name.partition(" ")[0]
        words = f"{'per neuron' if kind == 'vertex' else kind}, layers {i + 1} and {i + 2}"
        left.plot(c.since, np.maximum(c.drift[name], 1e-17), color=color(i), linewidth=1.6, label=words)
        for ax, found, factor in (
            (middle, steps.once, steps.sizes**2 * steps.square[name]),
            (right, steps.over, steps.sizes * steps.integral[name]),
        ):
            ax.plot(steps.sizes, found[name], "o", color=color(i), markersize=6, label=words)
            ax.plot(steps.sizes, factor, color=color(i), linewidth=1.2)
    legend_below(picture, left)
    reference(left, 1e-6)
    up, title = r"$\|Q(t)-Q(0)\|\,/\,\|$in + out$\|$", "Flat along the flow; dashed: 1e-6"
    _over_time(left, c, up, title, log="y", ylim=(1e-13, 1e-5))
    over = rf"Over T = {steps.time:g}; lines: $\eta\,\|\int_0^T Q(\nabla C)\,dt\|$"
    for ax, title in ((middle, r"One step; lines: $\eta^2\,\|Q(\nabla C)\|$"), (right, over)):
        label(ax, r"step $\eta$", r"$\|\Delta Q\|$", title, log="xy")
        ticks(ax, steps.sizes)
        low, high = np.log10(ax.get_ylim())
        ax.set_ylim(10.0 ** np.floor(low), 10.0 ** np.ceil(high))
    return picture


def signs(courses: Sequence[Course]) -> Picture:
    """Draw per weight the share of signs that change at time t or later, and how the direction converges."""
    picture, axes = panels(len(courses), 2, (10.5, 3.9 * len(courses)))
    for (left, right), c in zip(axes, courses, strict=True):
        for i, values in enumerate(c.signs().values()):
            left.plot(c.times, 100 * values, **_style(i, len(c.before)) | {"linewidth": 1.8})
        title = f"Stable signs; {c.title.partition('; ')[2]}"
        _over_time(left, c, "signs that change at t or later (%)", title, legend="upper right", bottom=0)
        distances, smallest = c.convergence()
        apart = distances > 0
        style = {"color": color(0), "linewidth": 2.0, "label": "distance to the last"}
        right.plot(c.times[apart], distances[apart], **style)
        right.axhline(smallest, color=color(1), linestyle="--", linewidth=1.4, label="its smallest |entry|")
        up = r"$\|\theta/\|\theta\|-u\|$"
        _over_time(right, c, up, "Direction of the weights", log="y", legend="center left")
    return picture


def _style(i: int, trunk: int) -> dict[str, Any]:
    """Return the style of the i-th weight; the first ``trunk`` belong to ReLU layers."""
    if i < trunk:
        return {"color": GRAY, "linestyle": DASHES[i % 2], "linewidth": 1.8, "label": f"ReLU {i + 1}"}
    return {"color": color(i - trunk), "linewidth": 2.0, "label": f"linear {i - trunk + 1}"}


def _over_time(ax: Axes, c: Course, y: str, title: str, **options: Any) -> None:
    """Label axes, t logarithmic from a tenth of the time at which the loss has fallen by a hundredth."""
    label(ax, "time t of the gradient flow", y, title, **options)
    fallen = c.flow.times[np.argmax(c.flow.loss < 0.99 * c.flow.loss[0])]
    begin = max(float(fallen) / 10, float(c.times[c.times > 0][0]))
    if begin < c.times[-1]:
        ax.set_xscale("log")
        ax.set_xlim(begin, c.times[-1])
