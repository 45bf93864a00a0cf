"""The pictures of F7: errors against N, fitted exponents, networks against kernels."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f07_kernel_rates.computation import Course, Decay
from bnrank.figures.harness.drawing import color, label, panels, ticks

ERROR = r"test error / variance of $y$"
COLORS = {"network": color(1), "kernel": color(0)}
MARKS = ("o", "s", "^", "D")
Separation = tuple[str, str, Course, Course]
"""A task and a control, and the courses of the network on both over one range of N."""


def draw_rates(courses: Sequence[Decay]) -> Picture:
    """Draw errors against N, one panel for each alpha, and fitted exponents against alpha / d."""
    alphas = list(dict.fromkeys(c.alpha for c in courses))
    dims = list(dict.fromkeys(c.d for c in courses))
    picture, ((*axes, last),) = panels(1, len(alphas) + 1, (4.7 * (len(alphas) + 1), 4.9))
    for ax, alpha in zip(axes, alphas, strict=True):
        for c in (c for c in courses if c.alpha == alpha):
            i = dims.index(c.d)
            name = f"d = {c.d}: exponent {c.exponent[0]:.2f} (theory {c.expected:.2f})"
            _bars(ax, c, color(i), MARKS[i % len(MARKS)], name)
            if c.tail is not None:
                ax.plot(c.sizes, c.tail, color=color(i), linestyle="--", linewidth=1.3)
        ax.plot([], [], color="0.4", linestyle="--", linewidth=1.3, label=r"$\sum_{k>N}\,|\beta_k|^2$")
        title = rf"Kernel ridge regression, $\alpha$ = {alpha:g}"
        label(ax, "number of samples N", "", title, log="xy", legend="lower left")
        _ticks(ax, courses[0].sizes)
        ax.set_ylim(bottom=min(float(c.tail[-1]) for c in courses if c.alpha == alpha and c.tail is not None) / 100)
    axes[0].set_ylabel(ERROR)
    top = 1.15 * max(c.expected for c in courses)
    last.plot([0, top], [0, top], color="0.4", linewidth=1.2, linestyle="--", label=r"$\alpha\,/\,d$")
    for c in courses:
        i = dims.index(c.d)
        mean, low, high = c.exponent
        bar = [[mean - low], [high - mean]] if np.isfinite(low) else None
        face = color(i) if c.alpha == alphas[0] else "white"
        style = {"fmt": MARKS[i % len(MARKS)], "markersize": 7, "capsize": 3}
        last.errorbar(c.expected, mean, bar, color=color(i), markerfacecolor=face, **style)
    for i, alpha in enumerate(alphas):
        face = "0.3" if i == 0 else "white"
        last.plot([], [], "o", color="0.3", markerfacecolor=face, label=rf"$\alpha$ = {alpha:g}")
    up = "fitted exponent, 95 % interval"
    label(last, r"$\alpha\,/\,d$", up, "Exponents over all draws", legend="upper left")
    return picture


def draw_compositions(pairs: Mapping[str, tuple[Course, Course]]) -> Picture:
    """Draw errors of networks and kernels against N, a panel for each kind of task, all with one scale of errors."""
    picture, (axes,) = panels(1, len(pairs), (4.5 * len(pairs), 4.5))
    errors = np.concatenate([c.errors.ravel() for pair in pairs.values() for c in pair])
    for ax, (title, pair) in zip(axes, pairs.items(), strict=True):
        for c, mark in zip(pair, ("o", "s"), strict=True):
            words = "deep network" if c.name == "network" else "kernel ridge regression"
            _bars(ax, c, COLORS[c.name], mark, f"{words}: exponent {c.exponent[0]:.2f}")
        label(ax, "number of samples N", "", title, log="xy", legend="lower left")
        _ticks(ax, pair[0].sizes)
        ax.set_ylim(errors.min() / 2, 1.2 * errors.max())
    axes[0].set_ylabel(ERROR)
    return picture


def draw_controls(networks: Mapping[str, Course], separations: Sequence[Separation], turn: float) -> Picture:
    """Draw the errors of the networks of all tasks, and differences of exponents with their intervals."""
    picture, ((left, right),) = panels(1, 2, (12.5, 4.9))
    for i, (name, c) in enumerate(networks.items()):
        _bars(left, c, color(i), MARKS[i % len(MARKS)], name)
    left.axvline(turn, color="0.4", linestyle="--", linewidth=1.2)
    label(
        left, "number of samples N", ERROR, "Deep networks on compositions and controls", log="xy", legend="lower left"
    )
    _ticks(left, next(iter(networks.values())).sizes)
    tasks = list(networks)
    names = []
    for row, (name, control, first, second) in enumerate(separations):
        mean, low, high = first.faster(second)
        bar = [[mean - low], [high - mean]] if np.isfinite(low) else None
        i = tasks.index(name)
        right.errorbar(mean, -row, xerr=bar, color=color(i), fmt=MARKS[i % len(MARKS)], markersize=6, capsize=3)
        names.append(f"{name} vs {control}, N = {first.sizes[0]:g} to {first.sizes[-1]:g}")
    right.axvline(0, color="0.4", linestyle="--", linewidth=1.2)
    right.set_yticks(-np.arange(len(names)), names, fontsize=8)
    label(right, "difference of exponents, 95 % interval", "", "Exponent on the composition less that on the control")
    return picture


def _bars(ax: Axes, c: Course, hue: str, mark: str, name: str) -> None:
    """Draw the geometric mean over draws and their range."""
    ax.fill_between(c.sizes, c.errors.min(0), c.errors.max(0), color=hue, alpha=0.2, linewidth=0)
    ax.plot(c.sizes, c.middle, color=hue, marker=mark, markersize=5, linewidth=1.8, label=name)


def _ticks(ax: Axes, sizes: np.ndarray) -> None:
    ticks(ax, sizes if len(sizes) <= 5 else sizes[:: 2 if len(sizes) < 9 else 3])
