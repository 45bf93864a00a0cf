"""F15 (T12, T13, T17b; Jacot2023a, section 4): which rank has the lower loss, and which one training finds.

The source has no such figure; it compares an upper bound on the cost of the true function with a lower bound on that
of rank-one fits, and remarks that its experiments never underestimated the rank.
"""

from pathlib import Path

import numpy as np
import xarray as xr

from bnrank.figures.f15_rank_recovery.computation import Settings, crossings, trials
from bnrank.figures.f15_rank_recovery.drawing import draw
from bnrank.figures.harness.claims import Claim, above, at_least, equals, is_true, near, prefixed, smallest
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.intervals import interval, slopes
from bnrank.reporting import Section

LAYERS = 5.0  # smallest growth of the crossing depth, in layers per factor e of N
OFF = 0.2  # largest difference of the growth of T13's bound from its rate
MISSED = 0.8  # smallest share of runs from the usual start that end above rank one where it is cheaper
RECOVERED = 0.9  # smallest share of runs from the usual start that end at the planted rank
TEXT = (
    "Data: N points x, uniform on [0, 1]^k, and y = x, a function of rank k whose cost at depth L is k L. 'Rank one': "
    "trained from bnrank.constructions.line_interpolant, so its losses are upper bounds. 'Planted': trained from the "
    "identity of least norm. 'Usual': trained from He's initialization. All have the loss (1/N) sum "
    "||f(x_i) - y_i||^2 + lambda ||theta||^2, shown over lambda. The rank of a network is the smallest number of "
    "singular values above a tenth of the largest, over its layers. At the crossing depth, the first two losses are "
    "equal: rank one is cheaper from this depth on, or from a smaller one."
)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train from both constructions and from the usual start, and compare losses and ranks."""
    data = trials(settings, folder, progress)
    name = "rank-recovery" if len(settings.ranks) == 1 else "rank-{}"
    pictures = {name.format(rank): draw(data, rank, settings.depth) for rank in settings.ranks}
    caption = "The excess of rank-one fits, the depth from which they are cheaper, and what training finds"
    section = Section("Losses and ranks", text=TEXT, rows=rows(data, settings.depth))
    found = [prefixed(f"k = {rank}", claims(data.sel(rank=rank), rank, settings.depth)) for rank in settings.ranks]
    captions = dict.fromkeys(pictures, caption)
    return Outcome(claims=tuple(sum(found, ())), sections=(section,), pictures=pictures, captions=captions)


def rows(data: xr.Dataset, depth: int) -> list[dict[str, object]]:
    """Return one table row per rank and number of samples: means over the draws, and counts."""
    table, cross = [], crossings(data)
    for rank in data["rank"].values:
        for n in data["size"].values:
            one = data.sel(rank=rank, size=n)
            usual = one.usual_rank.values
            row: dict[str, object] = {"k": int(rank), "N": int(n)}
            for place in one.depth.values:
                row[f"rank one, L = {place}"] = float(one.line.sel(depth=place).mean())
                row[f"planted, L = {place}"] = float(one.planted.sel(depth=place).mean())
            row["crossing depth"] = float(cross.sel(rank=rank, size=n).mean())
            row[f"usual, L = {depth}"] = float(one.usual.mean())
            row["ranks from the usual start"] = ", ".join(f"{value:g}" for value in usual)
            table.append(row)
    return table


def claims(data: xr.Dataset, rank: int, depth: int) -> tuple[Claim, ...]:
    """Return the claims on the results of `trials` for one true rank.

    ``depth`` is that of the networks from the usual start, one of the depths.
    """
    data = data.sortby(["size", "depth", "bound_size"])
    few, many, deepest = data.isel(size=0), data.isel(size=-1), int(data.depth[-1])
    rate = 2 * (1 - 1 / rank)
    cross = crossings(data.expand_dims("rank")).squeeze("rank").transpose("seed", "size").values
    logs = np.log(data["size"].values)
    growth, low, _ = interval(slopes(logs, cross))
    excess = data.line.sel(depth=deepest).transpose("seed", "size").values - deepest
    fitted, least, most = interval(slopes(logs, excess))
    printed = slopes(np.log(data.bound_size.values), data.bound.transpose("seed", "bound_size").values)
    cheap = (few.line < few.planted).sel(depth=deepest).values, (many.planted < many.line).sel(depth=depth).values
    large = data.usual_rank.isel(size=slice(-2, None)).values
    passed_by = (few.usual_rank >= rank) & (few.usual > few.line.sel(depth=depth))
    numbers = ", ".join(f"{n}" for n in data["size"].values[-2:])
    seeds, n, larger = data.sizes["seed"], int(few["size"]), int(many["size"])
    rank_one = f"a fit of rank one has the lower loss at N = {n}, L = {deepest}: draws"
    true = f"of the fits found, the planted one has it at N = {larger}, L = {depth}: draws"
    per_layer = "its growth in layers per factor e of N, lower end of the 95% interval"
    per_log = "growth of the excess of the rank-one fits found with log N: the 95% interval holds 2 (1 - 1/k)"
    ends = f"the usual start ends at the planted rank, N = {numbers}: share of runs"
    misses = f"at N = {n} it does not find rank one, which has a lower loss: share of runs"
    return (
        equals(rank_one, int(cheap[0].sum()), seeds),
        equals(true, int(cheap[1].sum()), seeds),
        above("the crossing depth grows with N in every draw: smallest increase", smallest([np.diff(cross)]), 0),
        at_least(per_layer, low, LAYERS, shown=f"{low:.1f}, with mean {growth:.1f}"),
        is_true(per_log, least <= rate <= most, f"{least:.1f} to {most:.1f}, mean {fitted:.1f}", f"{rate:.3g} within"),
        near("growth of T13's bound with log N (of the points alone), mean", float(printed.mean()), rate, OFF),
        at_least(ends, float((large == rank).mean()), RECOVERED),
        at_least(misses, float(passed_by.mean()), MISSED),
    )


QUICK = Settings()
PAPER = Settings(
    (2, 3), (10, 20, 40, 80, 160), (16, 24, 40, 64, 100), seeds=tuple(range(8)), steps=1500, usual_steps=2000
)

FIGURE = Figure(
    "F15",
    "rank-recovery",
    "With few samples or great depth rank one is cheaper, yet training finds the true rank",
    "Jacot2023a, section 4 (T12, T13, T17b); no printed figure",
    "the depth from which rank one is cheaper grows with N; the cost of rank-one fits grows like 2 (1 - 1/k) log N; "
    "training from the usual start ends at the planted rank",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": 0.7, "paper": 1.0},
    printed=False,
)
