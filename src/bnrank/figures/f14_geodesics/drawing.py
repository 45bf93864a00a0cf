"""The pictures of F14: paths of kernels in the plane, their steps along depth, and parameter norms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f14_geodesics.computation import Family, Line, Trained, cheapest_stretch, kink
from bnrank.figures.f14_geodesics.kernels import affine_invariant, angle, distances, layout
from bnrank.figures.harness.claims import largest, smallest
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, ticks

RATIO = r"$\ell\,/\,L$ (0: input, 1: output)"


def lines(found: Sequence[Line]) -> Picture:
    """Draw the linear networks of full rank: log eigenvalues along depth, distances against steps, paths."""
    best, mixed, learned = found[:3]
    picture, ((left, middle, right),) = panels(1, 3, (14, 4.8))
    ratios = np.linspace(0, 1, len(best.logs))
    for i in range(best.rank):
        left.plot(ratios, best.logs[:, i], color=color(i), linewidth=1.8)
        left.plot(ratios, mixed.logs[:, i], color=color(i), linewidth=1.6, linestyle="--")
        if i < learned.rank:
            left.plot(ratios, learned.logs[:, i], "o", color=color(i), markersize=5)
    label(left, RATIO, r"eigenvalues of $\log A_\ell^T A_\ell$", "Eigenvalues in log space along depth")
    for line, marker, size, hue, name in (
        (mixed, "x", 6, color(1), "T7's construction"),
        (found[-1], "s", 9, color(2), "trained, rank 2"),
        (learned, "o", 6, color(0), "trained, rank 4"),
        (best, ".", 4, color(6), "optimal (T8)"),
    ):
        d = line.distances
        one, other = np.triu_indices(len(d), 1)
        style = {"color": hue, "markersize": size, "markerfacecolor": "none" if marker in "so" else hue}
        middle.plot((other - one) / (len(d) - 1), d[one, other] / d[0, -1], marker, zorder=3, label=name, **style)
    middle.axline((0, 0), slope=1, color=GRAY, linewidth=1)
    up = r"$d(K_\ell,K_m)\,/\,d($first, last$)$"
    label(middle, r"$|\ell-m|$ / steps in all", up, "Distances of all pairs of kernels", legend="upper left")
    points, _ = layout(distances([f for line in found[:3] for f in line.kernels], affine_invariant))
    groups = np.split(points * np.where(points[0] > 0, -1.0, 1.0), 3)  # the input to the left
    for group, dash, marker, hue, size, name in (
        (groups[0], "-", "o", color(6), 5, "optimal (T8)"),
        (groups[1], "--", "x", color(1), 6, "T7's construction"),
        (groups[2], "", "o", color(0), 10, "trained, rank 4"),
    ):
        style = {"linestyle": dash, "markersize": size, "markerfacecolor": hue if dash else "none", "label": name}
        right.plot(*group.T, color=hue, marker=marker, **style)
        key = {"marker": "", "label": name} if dash else {"marker": marker, "label": "trained, ridge"}
        left.plot([], [], color=GRAY, linewidth=1.7, linestyle=dash, **key)
    left.legend(frameon=False, loc="best")
    _number(right, groups[0], range(len(best.logs)), color(6), (0, -15))
    right.margins(0.08, 0.35)
    title = r"Paths of the kernels $K_0,\dots,K_L$ in the plane"
    label(right, "affine-invariant distance", "the same, enlarged", title, legend="best")
    return picture


def trained(found: Sequence[Trained]) -> Picture:
    """Draw the trained networks: the paths of all depths in one plane, steps along depth, the deepest one's spectra."""
    picture, ((left, middle, right),) = panels(1, 3, (14, 5.0))
    points, share = layout(distances([f for net in found for f in net.kernels], angle))
    groups = np.split(points, np.cumsum([net.depth + 1 for net in found])[:-1])
    for i, (net, group) in enumerate(zip(found, groups, strict=True)):
        style: dict[str, Any] = {"color": color(i), "linewidth": 1.3, "label": f"L = {net.depth}"}
        left.plot(*group.T, "o-", markersize=4.5, alpha=0.85, **style)
        at = np.arange(1, net.depth + 1) / net.depth
        middle.plot(at, net.angles, "o-", markersize=3.5, **style)
        if net.start is not None:
            middle.plot(at, net.start.angles, ":", color=color(i), linewidth=1.2)
    last, hue = found[-1], color(len(found) - 1)
    _number(left, groups[-1], (0, 1, 2), hue, (7, 6))
    _number(left, groups[-1], (last.depth // 2,), hue, (-14, -4))
    _number(left, groups[-1], range(last.depth - 2, last.depth + 1), hue, (8, 7))
    left.margins(0.12)
    left.set_aspect("equal", adjustable="datalim")
    second = f"the same; {100 * share:.0f} % of the squared distances"
    title = rf"Paths of $K_0,\dots,K_L$; numbers: layers of L = {last.depth}"
    label(left, "angle between kernels (radians)", second, title, legend="best")
    up = r"angle of $K_{\ell-1}$ and $K_\ell$ (radians)"
    title = "Step of every layer; dotted: before training"
    label(middle, RATIO, up, title, log="y", legend="best")
    at = np.arange(last.depth + 1) / last.depth
    for i, values in enumerate(np.maximum(last.values.T[:4], 1e-9)):
        right.plot(at, values, ".-", color=color(i), linewidth=1.8, label=f"$s_{i + 1}$")
    up = r"singular values of $N^{-1/2}\tilde a_\ell(X)$"
    limits = 1e-5, 30 * last.values.max()
    label(right, RATIO, up, f"Singular values along depth, L = {last.depth}", log="y", ylim=limits)
    right.legend(frameon=False, loc="upper center", ncols=4)
    for ax in (middle, right):
        ax.axvspan(1 / 3, 2 / 3, color="0.93", zorder=0)
    return picture


def diverging(found: Sequence[Family]) -> Picture:
    """Draw Example 20: the largest eigenvalue along depth, the norm above 3L, and the one against the other."""
    picture, ((left, middle, right),) = panels(1, 3, (14, 4.8))
    free = [f for f in found if not np.isnan(f.gamma)]
    shown, calm = free[len(free) // 2], next(f for f in reversed(found) if np.isnan(f.gamma))
    decades = [i for i, depth in enumerate(shown.depths) if np.log10(depth) % 1 < 1e-9 and depth >= 100]
    for n, i in enumerate(decades or [len(shown.depths) - 1]):
        for f, dash in ((shown, "-"), (calm, "--")):
            course, name = f.courses[i], f"L = {f.depths[i]:,}" if f is shown else None
            left.plot(np.linspace(0, 1, len(course)), course, dash, color=color(n), linewidth=1.8, label=name)
    title = f"Largest eigenvalues, {shown.title}; dashed: {calm.title}"
    label(left, RATIO, r"$\log\lambda_1(K_\ell)-\log\lambda_1(K_0)$", title, legend="upper left")
    for n, f in enumerate(found):
        style = {"color": color(n), "marker": "o" if f in free else "s", "markersize": 5, "linewidth": 1.2}
        middle.plot(f.depths, f.excess, label=f.title, **style)
        right.plot(f.stretch, f.excess, **style)
        if f in free:
            middle.plot(f.depths, 12.0 * f.depths ** (1 - 2 * f.gamma), "--", color=color(n), linewidth=1.2)
    depths = np.geomspace(shown.depths[0], shown.depths[-1], 60)
    cheapest, least = cheapest_stretch(depths)
    middle.plot(depths, least, color=color(6), linewidth=2.0, label="cheapest u at each L")
    right.plot(cheapest, least, color=color(6), linewidth=2.0)
    u = np.geomspace(smallest(f.stretch for f in found), largest(f.stretch for f in found), 200)
    right.plot(u, kink(u), color=GRAY, linewidth=1.4, linestyle=":")
    up = r"$\|\theta\|^2-3L$"
    limits = (smallest([least, *(f.excess for f in found)]) / 2, 20)
    label(middle, "depth L", up, r"The norm above 3L; dashed: $12\,L^{1-2\gamma}$", log="xy", ylim=limits)
    title = r"The norm against u; dotted: $2e^{-u}+e^{-2u}$"
    label(right, r"u: kernels grow by $e^u$ to the middle", up, title, log="xy", ylim=limits)
    ticks(right, [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= 1.1 * u[-1]])
    legend_below(picture, middle, len(found) + 1)
    return picture


def _number(ax: Axes, points: np.ndarray, layers: Sequence[int], color: str, shift: tuple[float, float]) -> None:
    for layer in layers:
        ax.annotate(f"{layer}", points[layer], shift, textcoords="offset points", color=color, fontsize=9, ha="center")
