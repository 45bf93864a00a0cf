"""The pictures of F13: ratios with their bounds, alignments, drift of what is conserved, signs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f13_low_rank_tails.computation import Course, Steps

__all__ = ["draw_bounds", "draw_invariants", "draw_rank_one", "draw_signs"]

TIME = "time t of the gradient flow"
DASHES = (":", "-.")
KINDS = {"sum": "ReLU block, [Z D]", "conv": "convolution", "linear": "fully connected"}


def draw_rank_one(courses: Sequence[Course]) -> Picture:
    """Draw how far the layers are from rank one, with T48's bounds, and from aligned, over log t."""
    picture = Picture(figsize=(11.5, 3.9 * len(courses)), layout="constrained")
    axes = picture.subplots(len(courses), 2, squeeze=False)
    for (left, right), c in zip(axes, courses, strict=True):
        for i, name in enumerate(c.inner):
            left.plot(c.times, 1 - c.ratios[name], color=OKABE_ITO[i], linewidth=2.0, label=f"linear {i + 1}")
            left.plot(c.times, 1 - c.floors[name], color=OKABE_ITO[i], linestyle="--", linewidth=1.2)
        for i, values in enumerate(c.before.values()):
            left.plot(c.times, 1 - values, color="0.35", linestyle=DASHES[i % 2], linewidth=1.8, label=f"ReLU {i + 1}")
        handles = [
            *left.get_legend_handles_labels()[0],
            Line2D([], [], color="0.35", linestyle="--", linewidth=1.2, label="at most, by T48"),
        ]
        measure = r"$1-\|W\|_{op}^2\,/\,\|W\|_F^2$"
        dress(left, TIME, measure, f"How far from rank one; {c.title.partition('; ')[2]}")
        left.set_ylim(1e-3, 2)
        for i, values in enumerate(c.alignments.values()):
            label = f"linear {i + 1} to {i + 2}"
            right.plot(c.times, np.maximum(1 - values, 1e-16), color=OKABE_ITO[i + 3], linewidth=2.0, label=label)
        dress(right, TIME, r"$1-|\langle v_{j+1},u_j\rangle|$", "How far from aligned")
        right.legend(frameon=False, fontsize=9, loc="upper right")
        for ax in (left, right):
            ax.axhline(0.01, color="0.35", linewidth=0.9)
            ax.set_yscale("log")
            _log_time(ax, c)
    picture.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(handles))
    return picture


def draw_bounds(courses: Sequence[Course]) -> Picture:
    """Draw the ratio of every layer of the tail over log t, its bound dashed and 1 / (2^N M) at the right edge."""
    picture = Picture(figsize=(4.6 * len(courses), 4.4), layout="constrained")
    axes = picture.subplots(1, len(courses), squeeze=False, sharey=True)[0]
    for ax, c in zip(axes, courses, strict=True):
        for i, (name, values) in enumerate(c.ratios.items()):
            color = OKABE_ITO[i % len(OKABE_ITO)]
            kind, factor = c.tail.layers[i].kind, c.tail.factors(c.flow.network)[i]
            label = f"{KINDS.get(kind, kind)}: $1/(2^NM)$ = 1" + (f"/{factor}" if factor > 1 else "")
            ax.plot(c.times, values, color=color, linewidth=2.0, label=label)
            if name in c.inner:
                ax.plot(c.times, np.maximum(c.floors[name], 0), color=color, linestyle="--", linewidth=1.3)
        kind = c.title.partition(";")[0]
        dress(ax, TIME, "", f"Tail with {kind}")
        ax.set_ylim(0, 1.04)
        ax.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        _log_time(ax, c)
    axes[0].set_ylabel(r"$\|W\|_{op}^2\,/\,\|W\|_F^2$;  dashed: T48's bound")
    return picture


def draw_invariants(c: Course, steps: Steps) -> Picture:
    """Draw the drift along the flow, after one step of descent, and over a fixed time, with what T49 says of both."""
    picture = Picture(figsize=(13.5, 4.6), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    names = [name for name in c.drift if not name.startswith("layer")]
    for i, name in enumerate(names):
        color, label = OKABE_ITO[i % len(OKABE_ITO)], _words(name, i)
        left.plot(c.since, np.maximum(c.drift[name], 1e-17), color=color, linewidth=1.6, label=label)
        for ax, found, factor in (
            (middle, steps.once, steps.sizes**2 * steps.square[name]),
            (right, steps.over, steps.sizes * steps.integral[name]),
        ):
            ax.plot(steps.sizes, found[name], "o", color=color, markersize=6, label=label)
            ax.plot(steps.sizes, factor, color=color, linewidth=1.2)
    left.axhline(1e-6, color="0.35", linestyle="--", linewidth=1.2)
    dress(left, TIME, r"$\|Q(t)-Q(0)\|\,/\,\|$in + out$\|$", "Flat along the flow; dashed: 1e-6")
    _log_time(left, c)
    left.set_yscale("log")
    left.set_ylim(1e-13, 1e-5)
    picture.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(names), frameon=False)
    what = r"$\|\Delta Q\|$"
    dress(middle, r"step $\eta$", what, r"One step; lines: $\eta^2\,\|Q(\nabla C)\|$")
    dress(right, r"step $\eta$", what, rf"Over T = {steps.time:g}; lines: $\eta\,\|\int_0^T Q(\nabla C)\,dt\|$")
    for ax in (middle, right):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks(steps.sizes, [f"{size:g}" for size in steps.sizes])
        ax.minorticks_off()
        low, high = np.log10(ax.get_ylim())
        ax.set_ylim(10.0 ** np.floor(low), 10.0 ** np.ceil(high))
    return picture


def draw_signs(courses: Sequence[Course]) -> Picture:
    """Draw per weight the share of signs that change at time t or later, and how the direction converges."""
    picture = Picture(figsize=(10.5, 3.9 * len(courses)), layout="constrained")
    axes = picture.subplots(len(courses), 2, squeeze=False)
    for (left, right), c in zip(axes, courses, strict=True):
        trunk = len(c.before)
        for i, values in enumerate(c.signs().values()):
            label = f"ReLU {i + 1}" if i < trunk else f"linear {i - trunk + 1}"
            color, dash = ("0.35", DASHES[i % 2]) if i < trunk else (OKABE_ITO[i - trunk], "-")
            left.plot(c.times, 100 * values, color=color, linestyle=dash, linewidth=1.8, label=label)
        title = c.title.partition("; ")[2]
        dress(left, TIME, "signs that change at t or later (%)", f"Stable signs; {title}")
        left.legend(frameon=False, fontsize=9, loc="upper right")
        left.set_ylim(bottom=0)
        found = c.convergence()
        seen = found.distances > 0
        right.plot(
            c.times[seen], found.distances[seen], color=OKABE_ITO[0], linewidth=2.0, label="distance to the last"
        )
        right.axhline(found.smallest, color=OKABE_ITO[1], linestyle="--", linewidth=1.4, label="its smallest |entry|")
        dress(right, TIME, r"$\|\theta/\|\theta\|-u\|$", "Direction of the weights")
        right.set_yscale("log")
        right.legend(frameon=False, fontsize=9, loc="center left")
        for ax in (left, right):
            _log_time(ax, c)
    return picture


def _log_time(ax: Axes, c: Course) -> None:
    """Show t on a logarithmic axis, from a tenth of the time at which the loss has fallen by a hundredth."""
    fallen = c.flow.times[np.argmax(c.flow.loss < 0.99 * c.flow.loss[0])]
    begin = max(float(fallen) / 10, float(c.times[c.times > 0][0]))
    if begin < c.times[-1]:
        ax.set_xscale("log")
        ax.set_xlim(begin, c.times[-1])


def _words(name: str, number: int) -> str:
    kind = name.partition(" ")[0]
    return f"{'per neuron' if kind == 'vertex' else kind}, layers {number + 1} and {number + 2}"
