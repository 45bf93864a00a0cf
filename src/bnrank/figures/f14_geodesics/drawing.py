"""The pictures of F14: paths of kernels in the plane, how they move along depth, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f14_geodesics.computation import Family, Line, Trained, cheapest_stretch
from bnrank.measures.representations import distances, layout

__all__ = ["draw_diverging", "draw_lines", "draw_trained"]

RATIO = r"$\ell\,/\,L$ (0: input, 1: output)"
Gray = "0.35"


def draw_lines(found: Sequence[Line]) -> Picture:
    """Draw the linear networks of full rank: log eigenvalues along depth, distances against steps, paths."""
    best, mixed, learned = found[0], found[1], found[2]
    picture = Picture(figsize=(14, 4.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    ratios = np.linspace(0, 1, len(best.logs))
    for i in range(best.rank):
        color = OKABE_ITO[i % len(OKABE_ITO)]
        left.plot(ratios, best.logs[:, i], color=color, linewidth=1.8)
        left.plot(ratios, mixed.logs[:, i], color=color, linewidth=1.6, linestyle="--")
        if i < learned.rank:
            left.plot(ratios, learned.logs[:, i], "o", color=color, markersize=5)
    dress(left, RATIO, r"eigenvalues of $\log A_\ell^T A_\ell$", "Eigenvalues in log space along depth")
    shown = (
        (mixed, "x", OKABE_ITO[1], "T7's construction"),
        (found[-1], "s", OKABE_ITO[2], "trained, rank 2"),
        (learned, "o", OKABE_ITO[0], "trained, rank 4"),
        (best, ".", OKABE_ITO[6], "optimal (T8)"),
    )
    for size, (line, marker, color, label) in zip((6, 9, 6, 4), shown, strict=True):
        d = line.distances
        one, other = np.triu_indices(len(d), 1)
        at = (other - one) / (len(d) - 1)
        face = "none" if marker in "so" else color
        style = {"color": color, "markersize": size, "markerfacecolor": face, "label": label}
        middle.plot(at, d[one, other] / d[0, -1], marker, zorder=3, **style)
    middle.axline((0, 0), slope=1, color=Gray, linewidth=1)
    dress(
        middle,
        r"$|\ell-m|$ / steps in all",
        r"$d(K_\ell,K_m)\,/\,d($first, last$)$",
        "Distances of all pairs of kernels",
    )
    middle.legend(frameon=False, loc="upper left")
    of = [best, mixed, learned]
    points = layout(distances([f for line in of for f in line.kernels.factors], "affine-invariant")).points
    groups = np.split(points * np.where(points[0] > 0, -1.0, 1.0), len(of))  # the input to the left
    styles = (("-", "o", OKABE_ITO[6], 5), ("--", "x", OKABE_ITO[1], 6), ("", "o", OKABE_ITO[0], 10))
    names = ("optimal (T8)", "T7's construction", "trained, rank 4")
    for group, (dash, marker, color, size), name in zip(groups, styles, names, strict=True):
        right.plot(
            *group.T, linestyle=dash, marker=marker, color=color, markersize=size, label=name,
            markerfacecolor="none" if size == 10 else color,
        )  # fmt: skip
    _number(right, groups[0], range(len(best.logs)), OKABE_ITO[6], (0, -15))
    right.margins(0.08, 0.35)
    dress(
        right, "affine-invariant distance", "the same, enlarged", r"Paths of the kernels $K_0,\dots,K_L$ in the plane"
    )
    right.legend(frameon=False, loc="best")
    handles = [
        Line2D([], [], color=Gray, linewidth=1.8, label="optimal (T8)"),
        Line2D([], [], color=Gray, linewidth=1.6, linestyle="--", label="T7's construction"),
        Line2D([], [], color=Gray, linestyle="", marker="o", label="trained with a ridge"),
    ]
    left.legend(handles=handles, frameon=False, loc="best")
    return picture


def draw_trained(found: Sequence[Trained]) -> Picture:
    """Draw the trained networks: the paths of all depths in one plane, steps along depth, the deepest one's spectra."""
    picture = Picture(figsize=(14, 5.0), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    factors = [f for net in found for f in net.kernels.factors]
    made = layout(distances(factors, "angle"))
    groups = np.split(made.points, np.cumsum([net.depth + 1 for net in found])[:-1])
    for i, (net, group) in enumerate(zip(found, groups, strict=True)):
        color = OKABE_ITO[i % len(OKABE_ITO)]
        left.plot(*group.T, "o-", color=color, markersize=4.5, linewidth=1.3, label=f"L = {net.depth}", alpha=0.85)
        at = np.arange(1, net.depth + 1) / net.depth
        middle.plot(at, net.angles, "o-", color=color, markersize=3.5, linewidth=1.3, label=f"L = {net.depth}")
        if net.start is not None:
            middle.plot(at, net.start.angles, ":", color=color, linewidth=1.2)
    last = found[-1]
    color = OKABE_ITO[(len(found) - 1) % len(OKABE_ITO)]
    _number(left, groups[-1], (0, 1, 2), color, (7, 6))
    _number(left, groups[-1], (last.depth // 2,), color, (-14, -4))
    _number(left, groups[-1], range(last.depth - 2, last.depth + 1), color, (8, 7))
    left.margins(0.12)
    left.set_aspect("equal", adjustable="datalim")
    share = f"the same; {100 * made.share:.0f} % of the squared distances"
    title = rf"Paths of $K_0,\dots,K_L$; numbers: layers of L = {last.depth}"
    dress(left, "angle between kernels (radians)", share, title)
    left.legend(frameon=False, loc="best")
    middle.axvspan(1 / 3, 2 / 3, color="0.93", zorder=0)
    middle.set_yscale("log")
    dress(
        middle, RATIO, r"angle of $K_{\ell-1}$ and $K_\ell$ (radians)", "Step of every layer; dotted: before training"
    )
    middle.legend(frameon=False, loc="best")
    at = np.arange(last.depth + 1) / last.depth
    for i in range(min(4, last.values.shape[1])):
        values = np.maximum(last.values[:, i], 1e-9)
        right.plot(at, values, ".-", color=OKABE_ITO[i], linewidth=1.8, label=f"$s_{i + 1}$")
    right.axvspan(1 / 3, 2 / 3, color="0.93", zorder=0)
    right.set_yscale("log")
    right.set_ylim(1e-5, 30 * last.values.max())
    dress(
        right,
        RATIO,
        r"singular values of $N^{-1/2}\tilde a_\ell(X)$",
        f"Singular values along depth, L = {last.depth}",
    )
    right.legend(frameon=False, loc="upper center", ncols=4)
    return picture


def draw_diverging(found: Sequence[Family]) -> Picture:
    """Draw Example 20: the largest eigenvalue along depth, the norm above 3L, and the one against the other."""
    picture = Picture(figsize=(14, 4.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    free = [f for f in found if not np.isnan(f.gamma)]
    bounded = [f for f in found if np.isnan(f.gamma)]
    shown, calm = free[len(free) // 2], bounded[-1]
    decades = [i for i, depth in enumerate(shown.depths) if np.log10(depth) % 1 < 1e-9 and depth >= 100]
    decades = decades or [len(shown.depths) - 1]
    for n, i in enumerate(decades):
        for f, dash in ((shown, "-"), (calm, "--")):
            course = f.courses[i]
            left.plot(
                np.linspace(0, 1, len(course)), course, dash, color=OKABE_ITO[n % len(OKABE_ITO)], linewidth=1.8,
                label=f"L = {f.depths[i]:,}" if dash == "-" else None,
            )  # fmt: skip
    dress(
        left,
        RATIO,
        r"$\log\lambda_1(K_\ell)-\log\lambda_1(K_0)$",
        f"Largest eigenvalues, {shown.title}; dashed: {calm.title}",
    )
    left.legend(frameon=False, loc="upper left")
    for n, f in enumerate(found):
        color, marker = OKABE_ITO[n % len(OKABE_ITO)], "o" if f in free else "s"
        middle.plot(f.depths, f.excess, marker, color=color, markersize=5, label=f.title, linestyle="-", linewidth=1.2)
        if f in free:
            middle.plot(f.depths, 12.0 * f.depths ** (1 - 2 * f.gamma), "--", color=color, linewidth=1.2)
        right.plot(f.stretch, f.excess, marker, color=color, markersize=5, linestyle="-", linewidth=1.2)
    depths = np.geomspace(shown.depths[0], shown.depths[-1], 60)
    cheapest, least = cheapest_stretch(depths)
    middle.plot(depths, least, "-", color=OKABE_ITO[6], linewidth=2.0, label="cheapest u at each L")
    right.plot(cheapest, least, "-", color=OKABE_ITO[6], linewidth=2.0)
    dress(middle, "depth L", r"$\|\theta\|^2-3L$", r"The norm above 3L; dashed: $12\,L^{1-2\gamma}$")
    middle.set_xscale("log")
    u = np.geomspace(min(f.stretch.min() for f in found), max(f.stretch.max() for f in found), 200)
    right.plot(u, 2 * np.exp(-u) + np.exp(-2 * u), color=Gray, linewidth=1.4, linestyle=":")
    right.set_xscale("log")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= 1.1 * u[-1]]
    right.set_xticks(ticks, [str(tick) for tick in ticks])
    right.minorticks_off()
    dress(
        right,
        r"u: kernels grow by $e^u$ to the middle",
        r"$\|\theta\|^2-3L$",
        r"The norm against u; dotted: $2e^{-u}+e^{-2u}$",
    )
    low = min(least.min(), *(f.excess.min() for f in found))
    for ax in (middle, right):
        ax.set_yscale("log")
        ax.set_ylim(low / 2, 20)
    picture.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=len(found) + 1, frameon=False)
    return picture


def _number(
    ax: Axes, points: np.ndarray, layers: Sequence[int] | range, color: str, shift: tuple[float, float]
) -> None:
    for layer in layers:
        ax.annotate(
            str(layer), points[layer], xytext=shift, textcoords="offset points", color=color, fontsize=9, ha="center",
        )  # fmt: skip
