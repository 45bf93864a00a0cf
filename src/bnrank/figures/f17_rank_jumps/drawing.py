"""The picture of F17."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture

from bnrank.figures.f17_rank_jumps.computation import Array
from bnrank.figures.harness.drawing import color, label, legend_below, panels


def picture(data: pd.DataFrame, courses: dict[int, Array], steps: int) -> Picture:
    """Draw the mean rank over time for every first rank, a panel per batch size, and the jumps in both directions."""
    image, axes = panels(1, len(courses) + 1, (4.6 * (len(courses) + 1), 4.2))
    axes = np.ravel(axes)
    for ax, (batch, ranks) in zip(axes, courses.items(), strict=False):
        time = np.linspace(0, steps, ranks.shape[1])
        for rank in sorted(set(ranks[:, 0])):
            ax.plot(time, ranks[ranks[:, 0] == rank].mean(0), color=color(int(rank)), label=f"first rank {int(rank)}")
        label(ax, "step", "rank, mean over networks", name(batch))
        ax.set_ylim(-0.2, data["first"].max() + 0.3)
    counts = data.groupby("batch")[["down", "up"]].sum().loc[list(courses)]
    places = np.arange(len(counts))
    for i, direction in enumerate(("down", "up")):
        bars = axes[-1].bar(places + 0.4 * i - 0.2, counts[direction], 0.38, color=color(i), label=f"jumps {direction}")
        axes[-1].bar_label(bars, padding=2, fontsize=9)
    axes[-1].set_xticks(places, [name(batch) for batch in counts.index], fontsize=9)
    label(axes[-1], "", "jumps of all networks", "Jumps in each direction")
    axes[-1].legend(fontsize=9)
    axes[-1].margins(y=0.12)
    legend_below(image, axes[0])
    return image


def name(batch: int) -> str:
    """Return the name of a batch size, 0 for all samples."""
    return "all samples" if batch == 0 else "one sample" if batch == 1 else f"batches of {batch}"
