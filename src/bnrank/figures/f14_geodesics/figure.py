"""F14 (Jacot2023b, section 3.3): the representations of a network as a path of kernels from input to output.

The source has no such figure. Shown here: optimal linear networks, whose kernels are a straight line in log space (T8),
against T7's construction; ReLU networks trained from separate draws at every depth, whose kernels jump at the ends and
hardly move in the middle (T11), compared with the same networks before training; and Example 20, whose kernels diverge
while its norm tends to 3L (T31).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f14_geodesics import computation as geodesics
from bnrank.figures.f14_geodesics import drawing as draw
from bnrank.figures.f14_geodesics.computation import Family, Line, Settings, Trained, kink
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below, largest, smallest
from bnrank.figures.harness.figure import Figure, Outcome, middle
from bnrank.reporting import Section

STRAIGHT = 1e-8
RANK = 2  # of F4's data
GAP = 20.0  # as in F1
LINEAR = 0.05  # as in F1
EXPONENT = 0.02  # tolerance of exponents and slopes over the last decade
LINES = (
    "Data: 100 points x, uniform on [0, 2]^4, and y = A x with A of rank 4, then of rank 2. The kernel K_l holds the "
    "inner products of the preactivations of layer l at the samples, over their number; K_0 is that of the inputs. "
    "d(K, M) = ||log(K^(-1/2) M K^(-1/2))||_F is the affine-invariant distance on the common range, infinite where the "
    "ranges differ.\n\n"
    "Optimal networks (T8) are linear, have L equal factors up to rotations, and the least norm. T7's construction is "
    "a ReLU network of the same map, linear at the samples. Trained networks are linear ones with a ridge.\n\n"
    "With A_l = W_l ... W_1, 'bent in log space' is the largest ||log A_l^T A_l - (l/L) log A^T A||_F over "
    "||log A^T A||_F, 'uneven steps' the largest relative error of d(K_l, K_m) against |l - m|, and 'length / "
    "distance' the sum of the steps over the distance of the ends. At rank 2 paths begin at layer 1: the "
    "inputs have another range."
)
CHANGE = (
    "The claims on trained networks, measured on the same networks before their first step. A claim that also holds "
    "there says little about training: kernels of random networks tend to a constant one along depth."
)
DIVERGING = (
    "f(x, y, z) = (x, y, z + max(0, x - y)) on 64 points of [0, 1]^3. Each layer before the middle multiplies x and y "
    "by e^eps and z by e^(-2 eps), those after the middle undo it, and in the middle a fourth neuron, the kink, "
    "computes max(0, x - y). With u = (L - 2) eps, the largest eigenvalue grows by about e^u to the middle.\n\n"
    "||theta||^2 exceeds 3L by the cost of stretching, about 12 L eps^2, and by that of the kink, 2 e^-u + e^-2u. With "
    "eps = L^-gamma both tend to 0 while the kernels diverge; bounded networks keep u, and the cost of the kink. The "
    "cheapest u at each L is that of least norm. 'Error' is the largest one of the function at the samples."
)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Build and train all networks, measure their kernels, and draw their paths."""
    s = settings
    straight = geodesics.lines(folder, progress, s)
    nets = geodesics.trained(folder, progress, s)
    depths, floor = s.diverging_depths, s.floor_depth
    families = [geodesics.family(rf"$\gamma$ = {gamma:g}", depths, gamma, None, floor) for gamma in s.gammas]
    families += [geodesics.family(f"bounded, u = {u:g}", depths, np.nan, u, floor) for u in s.stretches]
    sections = (
        Section("Linear networks", text=LINES, rows=line_rows(straight)),
        Section("Trained networks", text=_training(s), rows=trained_rows(nets)),
        Section("Before training and after", text=CHANGE, rows=change_rows(nets)),
        Section("Example 20 (T31)", text=DIVERGING, rows=diverging_rows(families)),
    )
    pictures = {"linear": draw.lines(straight), "trained": draw.trained(nets), "diverging": draw.diverging(families)}
    captions = {
        "linear": "Linear networks: kernels in log space along depth, distances between them, and their paths.",
        "trained": "Trained networks of several depths: the paths of their kernels, and how far each layer moves them.",
        "diverging": "Example 20: the growth of its kernels and of its norm with depth.",
    }
    claims = (*line_claims(straight), *trained_claims(nets), *diverging_claims(families))
    return Outcome(claims=claims, sections=sections, pictures=pictures, captions=captions)


def _training(settings: Settings) -> str:
    """Return the description of training and measurements."""
    width, gain, members = settings.width, settings.gain, settings.members
    draws = "a separate draw" if members == 1 else f"{members} separate draws, keeping the one with the lowest loss"
    return (
        f"Data: F4's, {settings.samples} samples x = g(z), y = h(z_1, z_2) with z Gaussian in R^8, x and y in R^20, "
        f"g and h random ReLU networks: of bottleneck rank {RANK}. Networks: ReLU with biases, width {width}, ridge "
        f"{settings.ridge:g}. K_l are the kernels of the preactivations at the training samples, K_0 that of the "
        f"inputs.\n\nStart: every depth L is trained from {draws}; depths share nothing. Weights are Gaussian of "
        f"deviation (2 / {width})^(1/2) {gain:g}^(1/L), He's for the width times {gain:g}^(1/L), biases 0: with He's "
        "own, outputs of deep narrow networks are so small that the ridge takes the weights to 0 before they learn.\n\n"
        "'Angle' is the arccosine of <K, M> / (||K|| ||M||), in radians; 'Bures' the smallest ||F Q - G||_F over "
        "orthogonal Q with K = F F^T, M = G G^T. The middle third's part of the path is 1/3 if steps are even. 'Jumps' "
        "is the largest angle between consecutive kernels in the first sixth of the layers or in the last, the smaller "
        "of the two, over the mean one in the middle third: about 1 for even steps, and growing like L where both ends "
        "jump and the middle is continuous. s_i are the singular values of N^(-1/2) a~_l(X). 'From the shallower one' "
        "is the largest angle in the middle third between the kernels of successive depths at the same l/L; T11 does "
        "not say that it falls."
    )


def line_claims(found: Sequence[Line]) -> tuple[Claim, ...]:
    """Return the claims on T8's straight lines and T7's construction; the least favorable network decides."""
    bent = "log A_l^T A_l straight in l: largest distance from (l/L) log A^T A, relative"
    off = "d(K_l, K_m) proportional to |l - m|, largest relative error"
    result = []
    for word in ("optimal", "trained"):
        these = [line for line in found if line.title.startswith(word)]
        title = f"{word} linear networks"
        result.append(at_most(f"{title}, {bent}", largest(line.bent for line in these), STRAIGHT))
        result.append(at_most(f"{title}, {off}", largest(line.off for line in these), STRAIGHT))
    best, other = (next(line for line in found if line.title.startswith(w)) for w in ("optimal", "completely"))
    longer = "so they are no shortest path: their length over the straight line's, less 1"
    return (
        *result,
        at_most("T7's kernels are (1 - l/L) K_0 + (l/L) K_L: largest relative error", other.mixed, STRAIGHT),
        above(longer, other.length - best.length, STRAIGHT),
        above("and their ||theta||^2 is larger than the optimal network's by", other.norm - best.norm, 0),
    )


def trained_claims(found: Sequence[Trained]) -> tuple[Claim, ...]:
    """Return the claims of T11 on networks of increasing depth: planar, linear, slow in the middle, jumps at the ends.

    Where the limiting path is continuous and of finite length, the mean step is O(1/L); at a jump, a step keeps its
    size. The geometric mean of the two separates them. T11 allows single jumps anywhere, and kernels of different
    depths need not agree: neither the largest step in the middle nor their angles are claimed.
    """
    first, last = found[0], found[-1]
    inner = list(middle(last.depth))
    gap = np.min(last.values[inner, RANK - 1] / np.maximum(last.values[inner, RANK], 1e-12))
    bent = np.max(last.bent[[layer - 1 for layer in inner]])
    where, deeper = f"middle third at depth {last.depth}", last.depth / first.depth
    share = "share of the path (angles) in the middle third, largest of all depths (even steps: 1/3)"
    jumps = "jumps at both ends: largest step of the first and of the last sixth, the smaller, over the mean one in the"
    grown = f"the same, depth {last.depth} over depth {first.depth} (jumps that stay, steps like 1/L: {deeper:g})"
    return (
        at_least(f"rank {RANK} in the {where}: smallest s_2 / s_3 of a~_l(X)", gap, GAP),
        below(f"sigma(a~) = a~ in the {where}: largest nonlinearity ratio", bent, LINEAR),
        below(share, largest(net.share for net in found), 1 / 6),
        above(f"{jumps} {where}", last.jumps, float(np.sqrt(last.depth))),
        above(grown, last.jumps / first.jumps, float(np.sqrt(deeper))),
    )


def diverging_claims(found: Sequence[Family]) -> tuple[Claim, ...]:
    """Return the claims of T31 and E10 on the last decade of depths, and on the cost of bounded representations."""
    free = [f for f in found if not np.isnan(f.gamma)]
    bounded = [f for f in found if np.isnan(f.gamma)]
    settled = [f for f in free if kink(f.stretch)[-1] < 0.01 * f.excess[-1]]

    def off(f: Family, price: Any) -> float:
        return abs(_slope(np.log(f.depths), np.log(f.excess - price), f.depths) - (1 - 2 * f.gamma))

    error = largest(f.errors / (f.depths * np.finfo(float).eps) for f in found)
    growth = largest(abs(_slope(f.depths ** (1 - f.gamma), f.growth, f.depths) - 1) for f in free)
    stays = largest(np.exp(f.growth) - np.exp(f.stretch) for f in bounded)
    kept = largest(abs(f.excess[-1] / kink(f.stretch[-1]) - 1) for f in bounded)
    over = smallest(np.nanmin(f.excess - f.floors) for f in found)
    names = ", ".join(f"{f.gamma:g}" for f in settled) or "none"
    falls = "||theta||^2 - 3L falls with depth: largest change from one depth to the next"
    less = "the same less what the kink costs, 2 e^-u + e^-2u (all gamma)"
    exponent = f"its exponent in L against 1 - 2 gamma, largest difference (gamma {names})"
    slope = "log of the middle kernel's largest eigenvalue grows like L^(1 - gamma): slope less 1, largest"
    return (
        at_most("T31 function exact: largest error over L 2^-52", error, 1),
        below(falls, largest(np.diff(f.excess) for f in free), 0),
        at_most(exponent, largest(off(f, 0) for f in settled), EXPONENT, given=bool(settled)),
        at_most(less, largest(off(f, kink(f.stretch)) for f in free), EXPONENT),
        at_most(slope, growth, EXPONENT),
        at_most("bounded ones stay: that eigenvalue over the input's, less e^u, largest", stays, 2),
        at_most("and pay for it: ||theta||^2 - 3L at the largest depth against 2 e^-u + e^-2u, relative", kept, 0.05),
        at_least("||theta||^2 less T10's bound with the network's own C, smallest", over, 0),
    )


def _slope(x: np.ndarray, y: np.ndarray, depths: np.ndarray) -> float:
    """Return the slope of y in x over the last decade of depths."""
    use = depths >= depths[-1] / 10.01
    return float(np.polyfit(x[use], y[use], 1)[0])


def line_rows(found: Sequence[Line]) -> list[dict[str, object]]:
    """Return one table row per linear network."""
    return [
        {
            "network": line.title,
            "rank": line.rank,
            "||theta||^2": line.norm,
            "bent in log space": line.bent,
            "uneven steps": line.off,
            "length / distance": line.length,
        }
        for line in found
    ]


def trained_rows(found: Sequence[Trained]) -> list[dict[str, object]]:
    """Return two table rows per depth: before training and after it."""
    result = []
    for shallower, end in zip([None, *found[:-1]], found, strict=True):
        if end.start is not None:
            result.append(_trained_row("before", end.start, shallower and shallower.start))
        result.append(_trained_row("after", end, shallower))
    return result


def _trained_row(when: str, net: Trained, shallower: Trained | None) -> dict[str, object]:
    turned = float(geodesics.apart(shallower, net)[list(middle(shallower.depth))].max()) if shallower else None
    return {
        "depth": net.depth,
        "training": when,
        "loss": net.loss,
        "cost": net.cost,
        "||theta||^2": net.norm,
        "middle third of the path, angles": net.share,
        "Bures": float(net.bures[net.inner].sum() / net.bures.sum()),
        "mean angle in it": float(net.angles[net.inner].mean()),
        "largest angle in it": float(net.angles[net.inner].max()),
        "largest angle": float(net.angles.max()),
        "jumps": net.jumps,
        "s_2 / s_3 at L/2": float(net.values[net.depth // 2, 1] / max(net.values[net.depth // 2, 2], 1e-12)),
        "from the shallower one": turned,
    }


def change_rows(found: Sequence[Trained]) -> list[dict[str, object]]:
    """Return one table row per claim on trained networks: its value before and after training."""
    before = trained_claims([net.start for net in found if net.start is not None])
    return [
        {
            "claim": claim.name,
            "wanted": claim.expected,
            "before training": start.measured,
            "would hold": "yes" if start.passed else "no",
            "after training": claim.measured,
            "holds": "yes" if claim.passed else "no",
        }
        for start, claim in zip(before, trained_claims(found), strict=True)
    ]


def diverging_rows(found: Sequence[Family]) -> list[dict[str, object]]:
    """Return one table row per family and depth."""
    return [
        {
            "family": f.title.replace(r"$\gamma$", "gamma"),
            "depth": int(f.depths[i]),
            "u": float(f.stretch[i]),
            "||theta||^2 - 3L": float(f.excess[i]),
            "12 L eps^2": 12 * float(f.stretch[i]) ** 2 * float(f.depths[i]) / (float(f.depths[i]) - 2) ** 2,
            "2 e^-u + e^-2u": float(kink(f.stretch[i])),
            "log eigenvalue, L/2 over input": float(f.growth[i]),
            "error": float(f.errors[i]),
        }
        for f in found
        for i in range(len(f.depths))
    ]


PAPER = Settings(
    linear_depth=12,
    linear_width=20,
    linear_ridge=3e-2,
    linear_steps=10_000,
    depths=(12, 24, 48, 96),
    width=100,
    steps=(5000, 5000, 5000, 5000),
    members=4,
    diverging_depths=(10, 32, 100, 316, 1000, 3162, 10_000, 31_622, 100_000),
    stretches=(1.0, 2.0),
    floor_depth=1000,
)

FIGURE = Figure(
    "F14",
    "geodesics",
    "Kernels along depth: straight in log space if linear; if not, jumps at the ends and a slow middle",
    "Jacot2023b, section 3.3 and Example 20",
    "linear networks straight in log space; planar, linear and slow kernels in the middle of trained ones, with jumps "
    "at the ends; a function whose kernels diverge while its norm tends to 3L",
    {"quick": Settings(), "paper": PAPER},
    make,
    version=2,
    gigabytes={"quick": 0.6, "paper": 2.0},
)
