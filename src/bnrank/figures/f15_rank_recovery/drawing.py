"""The picture of F15."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

from bnrank.figures.f15_rank_recovery.computation import crossings
from bnrank.figures.harness.drawing import GRAY, color, label, panels, ticks


def draw(data: xr.Dataset, rank: int, depth: int) -> Picture:
    """Draw excess norms, crossing depths, and the networks from the usual start, for one rank of the true function."""
    picture, ((left, middle, right),) = panels(1, 3, (14, 4.4))
    one = data.sel(rank=rank)
    sizes, deepest = one["size"].values, int(one.depth.values[-1])
    excess = one.line.sel(depth=deepest) - deepest
    left.plot(sizes, excess.values, "o", color=color(0), ms=4, alpha=0.6)
    left.plot(sizes, excess.mean("seed"), color=color(0), lw=1.5, label=f"rank 1, trained at depth {deepest}")
    bound = one.bound.mean("seed")
    left.plot(bound.bound_size.values, bound, "s--", color=color(1), ms=4, lw=1.5, label="T13: 2 log(TSP / diam)")
    label(left, "number of samples N", r"loss / $\lambda$ less $L$", "Excess of rank-one fits", log="x", legend="best")
    left.set_ylim(bottom=0)

    cross = crossings(data).sel(rank=rank)
    middle.plot(sizes, cross.values, "o", color=color(2), ms=4, alpha=0.6)
    middle.plot(sizes, cross.mean("seed"), color=color(2), lw=1.5)
    for text, height, place in ((f"rank {rank} is cheaper", 0.06, "right"), ("rank 1 is cheaper", 0.92, "left")):
        side = 0.97 if place == "right" else 0.03
        middle.annotate(text, (side, height), xycoords="axes fraction", ha=place, fontsize=9, color=GRAY)
    label(middle, "number of samples N", "crossing depth $L^*$", "Depth at which both cost the same", log="x")
    middle.set_ylim(0, 1.3 * max(1.0, float(np.nanmax(cross.values, initial=1.0))))

    for i, (name, title) in enumerate((("line", "from a rank-one fit"), ("planted", f"from a fit of rank {rank}"))):
        losses = one[name].sel(depth=depth).mean("seed")
        right.plot(sizes, losses, "--", color=color(i), lw=1.5, label=title)
    for i, found in enumerate(np.unique(one.usual_rank.values)):
        losses = one.usual.where(one.usual_rank == found)
        spread = np.broadcast_to(sizes[:, None] * np.exp(0.04 * (np.arange(losses.sizes["seed"]) - 2)), losses.shape)
        right.plot(spread.ravel(), losses.values.ravel(), "o", color=color(2 + i), label=f"usual start: rank {found:g}")
    label(
        right, "number of samples N", r"loss / $\lambda$", f"Trained networks of depth {depth}", log="x", legend="best"
    )
    for ax in (left, middle, right):
        ticks(ax, sizes if ax is not left else np.unique([*sizes, *bound.bound_size.values]))
    return picture
