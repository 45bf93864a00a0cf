"""F14 (Jacot2023b, section 3.3): the representations of a network as a path of kernels from its input to its output.

The source draws nothing. Here: optimal linear networks, whose kernels are a straight line in log space (T8), against
T7's construction; trained ReLU networks, whose kernels jump at the ends and hardly move in the middle (T11); and
Example 20, whose kernels diverge while its norm tends to 3L (T31).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnrank.figures.base import Claim, Figure, Outcome, middle
from bnrank.figures.geodesics import Family, Line, Trained, apart, diverging, lines, trained
from bnrank.figures.geodesics_pictures import draw_diverging, draw_lines, draw_trained
from bnrank.reporting import Section

__all__ = ["FIGURE", "diverging_claims", "line_claims", "make", "trained_claims"]

STRAIGHT = 1e-8
RANK = 2  # of F4's data
GAP = 20.0  # as in F1
LINEAR = 0.05  # as in F1
EXPONENT = 0.02  # how far exponents and slopes over the last decade may be off


def make(
    folder: Path,
    progress: bool,
    *,
    linear_depth: int,
    linear_width: int,
    linear_ridge: float,
    linear_steps: int,
    samples: int,
    depths: Sequence[int],
    width: int,
    ridge: float,
    steps: Sequence[int],
    members: int,
    seed: int,
    diverging_depths: Sequence[int],
    gammas: Sequence[float],
    stretches: Sequence[float],
    floor_depth: int,
) -> Outcome:
    """Build and train all networks, measure their kernels, draw their paths."""
    straight = lines(folder, progress, linear_depth, linear_width, linear_ridge, linear_steps)
    nets = trained(
        folder,
        progress,
        samples=samples,
        depths=depths,
        width=width,
        ridge=ridge,
        steps=steps,
        members=members,
        seed=seed,
    )
    families = diverging(diverging_depths, gammas, stretches, floor_depth)
    sections = (
        Section("Linear networks", rows=line_rows(straight)),
        Section("Trained networks", rows=trained_rows(nets)),
        Section("Example 20 (T31)", rows=diverging_rows(families)),
    )
    pictures = {
        "linear": draw_lines(straight),
        "trained": draw_trained(nets),
        "diverging": draw_diverging(families),
    }
    claims = (*line_claims(straight), *trained_claims(nets), *diverging_claims(families))
    return Outcome("F14", claims, sections, pictures, {})


def line_claims(found: Sequence[Line]) -> tuple[Claim, ...]:
    """Measure T8's straight lines, and that T7's construction is none; the least favourable network decides."""
    result = []
    for word in ("optimal", "trained"):
        these = [line for line in found if line.title.startswith(word)]
        bent, off = _largest(line.bent for line in these), _largest(line.off for line in these)
        what = "log A_l^T A_l straight in l: largest distance from (l/L) log A^T A, relative"
        result += [
            Claim(f"{word} linear networks, {what}", bent <= STRAIGHT, bent, f"<= {STRAIGHT:g}"),
            Claim(
                f"{word} linear networks, d(K_l, K_m) proportional to |l - m|, largest relative error",
                off <= STRAIGHT,
                off,
                f"<= {STRAIGHT:g}",
            ),
        ]
    best, other = (next(line for line in found if line.title.startswith(w)) for w in ("optimal", "completely"))
    longer = other.length - best.length
    more = other.norm - best.norm
    return (
        *result,
        Claim(
            "T7's kernels are (1 - l/L) K_0 + (l/L) K_L: largest relative error",
            other.mixed <= STRAIGHT,
            other.mixed,
            f"<= {STRAIGHT:g}",
        ),
        Claim(
            "so they are no shortest path: their length over the straight line's, less 1",
            longer > STRAIGHT,
            longer,
            f"> {STRAIGHT:g}",
        ),
        Claim("and their ||theta||^2 is larger than the optimal network's by", more > 0, more, "> 0"),
    )


def trained_claims(found: Sequence[Trained]) -> tuple[Claim, ...]:
    """Measure T11 in trained networks of increasing depth: planar, linear and slow in the middle, jumps at the ends.

    Where the limiting path is continuous the steps in the middle are O(1/L), where it jumps a step keeps its size. The
    geometric mean of the two says which it is.
    """
    first, last = found[0], found[-1]
    inner = list(middle(last.depth))
    gap = float(np.min(last.values[inner, RANK - 1] / np.maximum(last.values[inner, RANK], 1e-12)))
    bent = float(np.max(last.bent[[layer - 1 for layer in inner]]))
    share = _largest(net.angles[net.inner].sum() / net.angles.sum() for net in found)
    half = float(np.sqrt(first.depth / last.depth))
    slower = float(last.angles[last.inner].max() / first.angles[first.inner].max())
    jumps = float(last.angles.max() / first.angles.max())
    near = [float(apart(a, b)[list(middle(a.depth))].max()) for a, b in itertools.pairwise(found)]
    nearer = _largest(b / a for a, b in itertools.pairwise(near)) if len(near) > 1 else float("nan")
    where = f"middle third at depth {last.depth}"
    shrink = f"depth {last.depth} over depth {first.depth}"
    return (
        Claim(f"rank {RANK} in the {where}: least s_2 / s_3 of a~_l(X)", gap >= GAP, gap, f">= {GAP:g}"),
        Claim(f"sigma(a~) = a~ in the {where}: largest nonlinearity ratio", bent < LINEAR, bent, f"< {LINEAR:g}"),
        Claim(
            "share of the path (angles) in the middle third, largest of all depths (even steps: 1/3)",
            share < 1 / 6,
            share,
            "< 1/6",
        ),
        Claim(f"largest step in the middle third, {shrink}", slower < half, slower, f"< {half:.3g}"),
        Claim(f"largest step of all, {shrink}: a jump stays", jumps > half, jumps, f"> {half:.3g}"),
        Claim(
            "kernels at the same l/L in the middle third: largest angle from one depth to the next, over that before",
            nearer < 1,
            nearer,
            "< 1",
        ),
    )


def diverging_claims(found: Sequence[Family]) -> tuple[Claim, ...]:
    """Measure T31 and E10 over the last decade of depths, and that bounded representations cost more than 3L."""
    free = [f for f in found if not np.isnan(f.gamma)]
    bounded = [f for f in found if np.isnan(f.gamma)]
    error = _largest(f.errors / (f.depths * np.finfo(float).eps) for f in found)
    falling = _largest(np.diff(f.excess).max() for f in free)
    price = [_kink(f.stretch) for f in free]
    power = _largest(
        abs(_slope(np.log(f.depths), np.log(f.excess - p), f.depths) - (1 - 2 * f.gamma))
        for f, p in zip(free, price, strict=True)
    )
    settled = [f for f, p in zip(free, price, strict=True) if p[-1] < 0.01 * f.excess[-1]]
    plain = _largest(abs(_slope(np.log(f.depths), np.log(f.excess), f.depths) - (1 - 2 * f.gamma)) for f in settled)
    growth = _largest(abs(_slope(f.depths ** (1 - f.gamma), f.growth, f.depths) - 1) for f in free)
    stays = _largest((np.exp(f.growth) - np.exp(f.stretch)).max() for f in bounded)
    kept = _largest(abs(f.excess[-1] / _kink(f.stretch[-1]) - 1) for f in bounded)
    over = -_largest(-np.nanmin(f.excess - f.floors) for f in found)
    names = ", ".join(f"{f.gamma:g}" for f in settled) or "none"
    return (
        Claim("T31 function exact: largest error over L 2^-52", error <= 1, error, "<= 1"),
        Claim(
            "||theta||^2 - 3L falls with depth: largest change from one depth to the next", falling < 0, falling, "< 0"
        ),
        Claim(
            f"its exponent in L against 1 - 2 gamma, largest difference (gamma {names})",
            bool(settled) and plain <= EXPONENT,
            plain,
            f"<= {EXPONENT:g}",
        ),
        Claim(
            "the same less what the kink costs, 2 e^-u + e^-2u (all gamma)",
            power <= EXPONENT,
            power,
            f"<= {EXPONENT:g}",
        ),
        Claim(
            "log of the middle kernel's largest eigenvalue grows like L^(1 - gamma): slope less 1, largest",
            growth <= EXPONENT,
            growth,
            f"<= {EXPONENT:g}",
        ),
        Claim("bounded ones stay: that eigenvalue over the input's, less e^u, largest", stays <= 2, stays, "<= 2"),
        Claim(
            "and pay for it: ||theta||^2 - 3L at the largest depth against 2 e^-u + e^-2u, relative",
            kept <= 0.05,
            kept,
            "<= 0.05",
        ),
        Claim("||theta||^2 less T10's bound with the network's own C, least", over >= 0, over, ">= 0"),
    )


def _kink(u: np.ndarray | float) -> np.ndarray:
    """Return what the row and the column of the nonlinear term cost at stretch u."""
    return np.asarray(2 * np.exp(-np.asarray(u)) + np.exp(-2 * np.asarray(u)))


def _slope(x: np.ndarray, y: np.ndarray, depths: np.ndarray) -> float:
    """Return the slope of y in x over the last decade of depths."""
    use = depths >= depths[-1] / 10.01
    return float(np.polyfit(x[use], y[use], 1)[0])


def _largest(values: object) -> float:
    """Return the largest value; NaN if one is NaN, or there are none."""
    held = np.concatenate([np.ravel(v) for v in values] or [np.array([np.nan])])  # type: ignore[attr-defined]
    return float(np.max(held))


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
    """Return one table row per depth."""
    return [
        {
            "depth": net.depth,
            "loss": net.loss,
            "cost": net.cost,
            "||theta||^2": net.norm,
            "middle third of the path, angles": float(net.angles[net.inner].sum() / net.angles.sum()),
            "Bures": float(net.bures[net.inner].sum() / net.bures.sum()),
            "largest angle in it": float(net.angles[net.inner].max()),
            "largest angle": float(net.angles.max()),
            "s_2 / s_3 at L/2": float(net.values[net.depth // 2, 1] / max(net.values[net.depth // 2, 2], 1e-12)),
        }
        for net in found
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
            "2 e^-u + e^-2u": float(_kink(f.stretch[i])),
            "log eigenvalue, L/2 over input": float(f.growth[i]),
            "error": float(f.errors[i]),
        }
        for f in found
        for i in range(len(f.depths))
    ]


QUICK = {
    "linear_depth": 8,
    "linear_width": 8,
    "linear_ridge": 1e-2,
    "linear_steps": 3000,
    "samples": 300,
    "depths": (12, 24, 48),
    "width": 50,
    "ridge": 1e-3,
    "steps": (1500, 1000, 1000),
    "members": 1,
    "seed": 0,
    "diverging_depths": (10, 32, 100, 316, 1000, 3162, 10_000),
    "gammas": (0.6, 0.75, 0.9),
    "stretches": (2.0,),
    "floor_depth": 316,
}
PAPER = {
    **QUICK,
    "linear_depth": 12,
    "linear_width": 20,
    "linear_ridge": 3e-2,
    "linear_steps": 10_000,
    "depths": (12, 24, 48, 96),
    "width": 100,
    "steps": (5000, 3000, 3000, 3000),
    "members": 4,
    "diverging_depths": (10, 32, 100, 316, 1000, 3162, 10_000, 31_622, 100_000),
    "stretches": (1.0, 2.0),
    "floor_depth": 1000,
}

FIGURE = Figure(
    "F14",
    "geodesics",
    "Kernels along depth: straight in log space if linear; if not, jumps at the ends and a slow middle",
    "Jacot2023b, section 3.3 and Example 20",
    "linear networks straight in log space; planar, linear and slow kernels in the middle of trained ones, with jumps "
    "at the ends; a function whose kernels diverge while its norm tends to 3L",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": 0.6, "paper": 2.0},
)
