"""The pictures of F7: errors against N, fitted exponents, networks against kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f07_kernel_rates.computation import Course, Decay

__all__ = ["draw_compositions", "draw_rates"]

ERROR = r"test error / variance of $y$"
COLORS = {"network": OKABE_ITO[1], "kernel": OKABE_ITO[0]}
MARKS = ("o", "s", "^", "D")


def draw_rates(courses: Sequence[Decay]) -> Picture:
    """Draw errors against N, one panel for each alpha, and fitted exponents against alpha / d."""
    alphas = list(dict.fromkeys(c.alpha for c in courses))
    dims = list(dict.fromkeys(c.d for c in courses))
    picture = Picture(figsize=(4.7 * (len(alphas) + 1), 4.9), layout="constrained")
    *panels, last = picture.subplots(1, len(alphas) + 1)
    for ax, alpha in zip(panels, alphas, strict=True):
        for c in courses:
            if c.alpha != alpha:
                continue
            i = dims.index(c.d)
            mean, color = c.exponent[0], OKABE_ITO[i % len(OKABE_ITO)]
            _bars(ax, c, color, MARKS[i % len(MARKS)], f"d = {c.d}: exponent {mean:.2f} (theory {c.expected:.2f})")
            if c.least is not None:
                ax.plot(c.sizes, c.least, color=color, linestyle="--", linewidth=1.3)
        ax.plot([], [], color="0.4", linestyle="--", linewidth=1.3, label=r"$\sum_{k>N}\,|\beta_k|^2$")
        dress(ax, "number of samples N", "", rf"Kernel ridge regression, $\alpha$ = {alpha:g}")
        _logarithmic(ax, courses[0].sizes)
        ax.legend(frameon=False, fontsize=9, loc="lower left")
        ax.set_ylim(bottom=min(float(c.least[-1]) for c in courses if c.alpha == alpha and c.least is not None) / 100)
    panels[0].set_ylabel(ERROR)
    top = 1.15 * max(c.expected for c in courses)
    last.plot([0, top], [0, top], color="0.4", linewidth=1.2, linestyle="--", label=r"$\alpha\,/\,d$")
    for c in courses:
        i = dims.index(c.d)
        mean, low, high = c.exponent
        bar = [[mean - low], [high - mean]] if np.isfinite(low) else None
        face = OKABE_ITO[i % len(OKABE_ITO)] if c.alpha == alphas[0] else "white"
        last.errorbar(
            c.expected,
            mean,
            bar,
            fmt=MARKS[i % len(MARKS)],
            color=OKABE_ITO[i % len(OKABE_ITO)],
            markerfacecolor=face,
            markersize=7,
            capsize=3,
        )
    dress(last, r"$\alpha\,/\,d$", "fitted exponent, 95 % interval", "Exponents over all draws")
    for i, alpha in enumerate(alphas):
        last.plot(
            [], [], "o", color="0.3", markerfacecolor="0.3" if i == 0 else "white", label=rf"$\alpha$ = {alpha:g}"
        )
    last.legend(frameon=False, fontsize=9, loc="upper left")
    return picture


def draw_compositions(pairs: Mapping[str, tuple[Course, Course]]) -> Picture:
    """Draw errors of networks and kernels against N, a panel for each kind of task."""
    picture = Picture(figsize=(4.5 * len(pairs), 4.5), layout="constrained")
    for ax, (title, pair) in zip(np.ravel(picture.subplots(1, len(pairs), squeeze=False)), pairs.items(), strict=True):
        for c, mark in zip(pair, ("o", "s"), strict=True):
            words = "deep network" if c.name == "network" else "kernel ridge regression"
            _bars(ax, c, COLORS[c.name], mark, f"{words}: exponent {c.exponent[0]:.2f}")
        dress(ax, "number of samples N", "", title)
        _logarithmic(ax, pair[0].sizes)
        ax.legend(frameon=False, fontsize=9.5, loc="lower left")
    picture.axes[0].set_ylabel(ERROR)
    return picture


def _bars(ax: Axes, c: Course, color: str, mark: str, label: str) -> None:
    """Draw the geometric mean over draws and the range of them."""
    middle = c.middle
    ax.fill_between(c.sizes, c.errors.min(0), c.errors.max(0), color=color, alpha=0.2, linewidth=0)
    ax.plot(c.sizes, middle, color=color, marker=mark, markersize=5, linewidth=1.8, label=label)


def _logarithmic(ax: Axes, sizes: np.ndarray) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    shown = sizes if len(sizes) <= 5 else sizes[:: 2 if len(sizes) < 9 else 3]
    ax.set_xticks(shown, [f"{size:g}" for size in shown])
    ax.minorticks_off()
