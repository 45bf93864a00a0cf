"""F17 (Wang2024): stochastic gradient descent on L2-regularized linear networks lowers the rank, and never raises it.

The source proves that sets of networks of at most a rank absorb SGD for small ridges and steps, and that these sets are
reached with positive probability. Shown here: networks of depth 3 that start near local minima of every rank, and the
jumps of their ranks.
"""

from pathlib import Path

import pandas as pd

from bnrank.figures.f17_rank_jumps import computation
from bnrank.figures.f17_rank_jumps.computation import HIGH, LOW, Settings
from bnrank.figures.f17_rank_jumps.drawing import name, picture
from bnrank.figures.harness.claims import Claim, above, at_least, equals
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section

RUNS = 1000
TEXT = (
    "Data: {samples} samples y = A x + noise, |x| = sqrt(d), A with singular values {targets}, noise of standard "
    "deviation {noise:g}. Start: balanced networks of depth {depth} whose map is A truncated to every rank, brought to "
    "a minimum by gradient descent on all samples (ridge {ridge:g}), with every weight displaced by a normal number of "
    "standard deviation {perturbation:g}. Then {steps} steps of size {lr:g}.\n\n"
    "A direction i counts while the smallest over the layers of their i-th singular values has not fallen below "
    "{low:g}; it counts again above {high:g}. The rank is the number of directions that count. Without noise and for "
    "whitened inputs, the global minimum has rank {best}; to fit the other directions, too, is a local minimum."
)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train all networks, and count jumps."""
    s = settings
    data, courses = computation.measure(s, folder, progress)
    best = computation.global_rank(s)
    text = TEXT.format(**vars(s), low=LOW, high=HIGH, best=best)
    captions = {"jumps": "Ranks under stochastic gradient descent, from minima of every rank, and jumps."}
    sections = (Section("Jumps", text=text, rows=rows(data)), Section("By first rank", rows=rows(data, "first")))
    return Outcome(
        claims=claims(data, best), sections=sections, pictures={"jumps": picture(data, courses, s.steps)},
        captions=captions,
    )  # fmt: skip


def claims(data: pd.DataFrame, best: int) -> tuple[Claim, ...]:
    """Return the claims on the jumps of all networks; ``best`` is the rank of the global minimum."""
    noisy, still = data[data["batch"] > 0], data[data["batch"] == 0]
    over = noisy[noisy["first"] > best]
    fallen, low, _ = computation.share(int((over["down"] > 0).sum()), len(over))
    under = noisy[noisy["first"] >= best]
    _, _, high = computation.share(int((noisy["up"] > 0).sum()), len(noisy))
    return (
        at_least("networks with batches", len(noisy), RUNS),
        above(f"lower end of the share of those above rank {best} that jump down (95 percent; {fallen:.2f})", low, 0.1),
        equals(f"jumps up of all networks with batches (95 percent: at most {high:.2%} of them jump up)",
               int(noisy["up"].sum()), 0),
        at_least(f"smallest last rank of networks that start at rank {best} or above", int(under["last"].min()), best),
        equals("jumps in either direction with all samples", int((still["down"] + still["up"]).sum()), 0),
    )  # fmt: skip


def rows(data: pd.DataFrame, by: str = "") -> list[dict[str, object]]:
    """Return a row per batch size (and first rank): networks, jumps, shares of networks with 95 percent intervals."""
    result = []
    for key, one in data.groupby(["batch", *([by] if by else [])], sort=True):
        row: dict[str, object] = {"batches": name(int(key[0]))} | ({"first rank": int(key[1])} if by else {})
        row |= {"networks": len(one), "jumps down": int(one["down"].sum()), "jumps up": int(one["up"].sum())}
        for direction in ("down", "up"):
            middle, low, high = computation.share(int((one[direction] > 0).sum()), len(one))
            row[f"share that jumps {direction}"] = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        result.append(row | {"mean last rank": float(one["last"].mean())})
    return result


FIGURE = Figure(
    "F17",
    "rank-jumps",
    "Stochastic gradient descent on regularized linear networks lowers the rank, and does not raise it",
    "Wang2024, theorem on absorbing sets",
    "from minima of every rank, small batches make the rank jump down and never up; descent on all samples stays",
    {"quick": Settings(), "paper": Settings(repeats=200, seeds=tuple(range(3, 8)), steps=20_000)},
    make,
    gigabytes={"quick": 0.8, "paper": 2.0},
    printed=False,
)
