"""F16 (Jacot2023b, section 4.1; Jacot2023c): minima of too low a rank are narrow, and gradient descent leaves them.

The sources state this as a theorem and have no such figure. Shown here, for f = id at N random points of the unit cube
[0, 1]^k: sharpness, NTK traces and norms of fits of bottleneck rank 1 and k, with their exponents in N, and gradient
descent of step c / L started at each fit.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from bnrank.figures.f16_stability import computation as stability
from bnrank.figures.f16_stability import drawing as draw
from bnrank.figures.f16_stability.computation import BUILT, PLANTED, SHORTENED, Exponent, Settings
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, largest, smallest
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section

FITTED = 10  # smallest N of the fits of exponents
LARGE = 20  # smallest N that is large enough
LEFT = 1e3  # a loss that rose by this factor has left the minimum
PATH = 0.5  # tolerance of the exponent of TSP^4: boundary effects at N = 10 raise it
FLAT = 0.2
NEAR = 2.0
AGREEMENT = 0.95
TEXT = (
    "Data: f = id at N points, uniform on [0, 1]^k, so the true rank is k. 'Planted' is the network of L identity "
    "matrices, with zero biases: rank k and ||theta||^2 = k L. 'Built' is `constructions.line_interpolant`, with "
    "layers of width 1; 'shortened' is the same after `cost.shorten` lowered its norm, which keeps those layers.\n\n"
    "c1 = ||theta||^2 - r L for rank r. The sharpness is (2/N) ||J_theta f||_op^2. The mean trace is that of "
    "Tr Theta(x, x) over the samples; the largest is over a segment between two samples (rank 1, see "
    "`theory.stability.growth_bound`) or over the samples (rank k). TSP is the length of the shortest path through the "
    "points: exact up to 12 points, else the geometric mean of its bounds.\n\n"
    "Descent starts at the fit, displaced by a random vector of relative length {perturbation:g}, and takes {steps} "
    "steps of size c / L, c = {c:g}: about half of the largest stable one of planted fits. 'Rise' is the largest loss "
    "over the first; above {left:g}, descent has left. T26 says that it leaves where sharpness > 2 L / c."
)
EXPONENTS = (
    "Exponents in N, fitted over N >= {fitted} for every seed: mean and 95 percent interval over {seeds} seeds "
    "(Student's t). T26 says that Tr Theta >= c'' L e^(-c1) N^(4 - 4/k): its exponent 4 - 4/k is that of TSP^4, and a "
    "lower bound on that of Tr Theta e^(c1) / L. As c1 itself grows with log N, T26 gives no exponent of the trace."
)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Build all fits, measure them, and descend from them."""
    s = settings
    data = stability.measure(s, folder, progress)
    text = TEXT.format(perturbation=s.perturbation, steps=s.steps, c=s.c, left=LEFT)
    sections = (
        Section("Fits", text=text, rows=rows(data, s.c)),
        Section("Exponents", text=EXPONENTS.format(fitted=FITTED, seeds=s.n_seeds), rows=exponent_rows(data)),
        Section("Smallest N that descent leaves", rows=leaving_rows(data)),
    )
    captions = {"stability": "Curvature of fits against N, the largest rise of the loss, and where descent leaves."}
    pictures = {"stability": draw.picture(data, s.c, FITTED, LEFT)}
    return Outcome(claims=claims(data, s.c), sections=sections, pictures=pictures, captions=captions)


def claims(data: pd.DataFrame, c: float) -> tuple[Claim, ...]:
    """Return the claims of T26 on the rows of all fits; the least favorable k and depth decide."""
    path = largest(abs(found["TSP^4"].value - (4 - 4 / k)) for k, _, found in _fitted(data, BUILT))
    scaled = smallest(found["largest trace e^c1 / L"].low - (4 - 4 / k) for k, _, found in _fitted(data, BUILT))
    sharp = smallest(found["sharpness"].low - (4 - 4 / k) for k, _, found in _fitted(data, BUILT))
    planted = [found["sharpness"] for _, _, found in _fitted(data, PLANTED)]
    flat = largest(max(abs(one.low), abs(one.high)) for one in planted)
    low, high = data["kind"] != PLANTED, data["kind"] == PLANTED
    far = low & (data["N"] >= LARGE)
    over = data["sharpness"] * c / (2 * data["L"])
    clear = ~over.between(1 / NEAR, NEAR)  # NaN is, and is wrong
    known = over.notna() & data["rise"].notna()
    agree = float((((data["rise"] > LEFT) == (over > 1)) & known)[clear].mean())
    stay = f"planted fits of rank k stay, all N, k and L: largest rise of the loss ({int(high.sum())} fits)"
    leave = f"fits of rank 1 leave, N >= {LARGE}, all k and L: smallest rise of the loss ({int(far.sum())} fits)"
    decided = (
        f"share of fits, outside a factor {NEAR:g} of 2 L / c, for which the sharpness says whether descent leaves"
    )
    return (
        at_most("exponent of TSP^4 in N against 4 - 4/k, largest difference", path, PATH),
        above("exponent of max Tr Theta e^c1 / L less 4 - 4/k (lower ends of intervals), smallest", scaled, 0),
        above("exponent of the sharpness of rank 1 less 4 - 4/k (lower ends of intervals), smallest", sharp, 0),
        at_most("exponent of the sharpness of rank k: largest distance of an interval's end from 0", flat, FLAT),
        at_least(
            "max Tr Theta over T26's bound, smallest", smallest([(data["largest trace"] / data["bound"])[low]]), 1
        ),
        at_most(stay, largest([data["rise"][high]]), 1.5),
        above(leave, smallest([data["rise"][far]]), LEFT),
        at_least(decided, agree, AGREEMENT),
    )


def _fitted(data: pd.DataFrame, kind: str) -> Iterator[tuple[int, int, dict[str, Exponent]]]:
    """Yield k, L and the exponents of the fits of a kind, where at least three N are large enough."""
    use = data[(data["kind"] == kind) & (data["N"] >= FITTED)]
    for (k, depth), one in use.groupby(["k", "L"]):
        if one["N"].nunique() > 2:
            yield int(k), int(depth), stability.exponents(one)


def rows(data: pd.DataFrame, c: float) -> list[dict[str, object]]:
    """Return one table row per kind, k, L and N: medians over seeds."""
    columns = ["TSP", "c1", "sharpness", "mean trace", "largest trace", "bound", "error"]
    result = []
    for (kind, k, depth, n), one in data.groupby(["kind", "k", "L", "N"], sort=True):
        row: dict[str, object] = {"fit": kind, "k": int(k), "L": int(depth), "N": int(n)}
        row |= {name: float(one[name].median()) for name in columns}
        row["T26's bound"] = row.pop("bound")
        row["sharpness / (2 L / c)"] = float((one["sharpness"] * c / (2 * one["L"])).median())
        row["smallest rise"], row["largest rise"] = float(one["rise"].min()), float(one["rise"].max())
        row["left"] = f"{int((one['rise'] > LEFT).sum())} of {len(one)}"
        row["last loss"] = float(one["end"].median())
        row["overflow"] = f"{int(np.isinf(one['rise']).sum())} of {len(one)}"
        result.append(row)
    return result


def exponent_rows(data: pd.DataFrame) -> list[dict[str, object]]:
    """Return one table row per kind, k and L with the exponents in N."""
    return [
        {"fit": kind, "k": k, "L": depth, "4 - 4/k": 4 - 4 / k} | {name: str(one) for name, one in found.items()}
        for kind in (BUILT, SHORTENED, PLANTED)
        for k, depth, found in _fitted(data, kind)
    ]


def leaving_rows(data: pd.DataFrame) -> list[dict[str, object]]:
    """Return one table row per kind, k and L: the smallest N from which descent leaves, by seed."""
    result = []
    for (kind, k, depth), one in data[data["kind"] != PLANTED].groupby(["kind", "k", "L"]):
        first = leaving(one)
        largest_n = int(one["N"].max())
        texts = [f"> {largest_n}" if np.isinf(n) else f"{n:g}" for n in first]
        result.append({"fit": kind, "k": int(k), "L": int(depth), "smallest N, by seed": ", ".join(texts)})
    return result


def leaving(rows: pd.DataFrame) -> list[float]:
    """Return for each seed the smallest N from which on descent leaves every fit; inf if it stays at the largest N."""
    result = []
    for _, one in rows.groupby("seed"):
        left = one.sort_values("N").set_index("N")["rise"] > LEFT
        stays = left.index[~left]
        after = left.index[left.index > stays.max()] if len(stays) else left.index
        result.append(float(after.min()) if len(after) else np.inf)
    return result


FIGURE = Figure(
    "F16",
    "stability",
    "Minima that underestimate the rank are narrow, and gradient descent leaves them",
    "Jacot2023b, section 4.1 and Theorem 10; Jacot2023c, Minima stability",
    "the sharpness of fits of rank 1 grows with N like a power, that of fits of the true rank does not; gradient "
    "descent of step c / L leaves the first for N large enough and stays at the second",
    {
        "quick": Settings(),
        "paper": Settings(
            dims=(2, 3, 4),
            samples=(2, 3, 4, 5, 7, 10, 14, 20, 40, 80, 160),
            shortened=(5, 10, 20, 40),
            depths=(20, 40, 80),
            shortening=300,
            steps=300,
        ),
    },
    make,
    gigabytes={"quick": 0.6, "paper": 1.5},
    printed=False,
)
