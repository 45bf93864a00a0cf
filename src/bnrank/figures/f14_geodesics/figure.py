"""F14 (Jacot2023b, section 3.3): the representations of a network as a path of kernels from its input to its output.

The source draws nothing. Here: optimal linear networks, whose kernels are a straight line in log space (T8), against
T7's construction; ReLU networks trained from draws of their own at every depth, whose kernels are to jump at the ends
and hardly to move in the middle (T11), beside what they were before training; and Example 20, whose kernels diverge
while its norm tends to 3L (T31).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnrank.figures.f14_geodesics.computation import Family, Line, Trained, apart, diverging, lines, trained
from bnrank.figures.f14_geodesics.drawing import draw_diverging, draw_lines, draw_trained
from bnrank.figures.harness.figure import Claim, Figure, Outcome, middle
from bnrank.reporting import Section

__all__ = ["FIGURE", "diverging_claims", "line_claims", "make", "trained_claims"]

STRAIGHT = 1e-8
RANK = 2  # of F4's data
GAP = 20.0  # as in F1
LINEAR = 0.05  # as in F1
EXPONENT = 0.02  # how far exponents and slopes over the last decade may be off
LINES = (
    "Data: 100 points x, uniform on [0, 2]^4, and y = A x with a matrix A of rank 4, then with one of rank 2. The "
    "kernel K_l holds the inner products of the preactivations of layer l at the samples, over their number; K_0 is "
    "that of the inputs. d is the affine-invariant distance: d(K, M) = ||log(K^(-1/2) M K^(-1/2))||_F on the range "
    "that both have, infinite where their ranges differ.\n\n"
    "Optimal networks (T8) are linear, have L equal factors up to rotations, and the least norm. T7's construction is "
    "a ReLU network of the same map, linear at the samples, with kernels that mix the first and the last one. Trained "
    "networks are linear ones with a ridge.\n\n"
    "With A_l = W_l ... W_1, 'bent in log space' is the largest distance over l of log A_l^T A_l from "
    "(l/L) log A^T A, over ||log A^T A||_F, on the range of A^T. 'Uneven steps' is the largest error of d(K_l, K_m) "
    "against |l - m| / n times the distance of the ends, over that distance, n steps in all. 'Length / distance' is "
    "the sum of the steps over the distance of the ends, 1 for a shortest path. At rank 2 paths begin at layer 1: the "
    "inputs have another range."
)
CHANGE = (
    "What the claims on trained networks measure on the same networks before their first step. A claim that would hold "
    "there as well says little about training: the kernels of networks just drawn tend to a constant one along depth, "
    "so they too move less and less from layer to layer."
)
DIVERGING = (
    "f(x, y, z) = (x, y, z + max(0, x - y)) on 64 points of [0, 1]^3. Each of the layers before the middle multiplies "
    "x and y by e^eps and z by e^(-2 eps), those after the middle undo it, and in the middle a fourth neuron, the "
    "kink, computes max(0, x - y). u = (L - 2) eps is how far all of them stretch together: x and y grow by e^(u/2) to "
    "the middle, the kernel's largest eigenvalue by about e^u.\n\n"
    "||theta||^2 exceeds 3L by what stretching costs, about 12 L eps^2, and by what the kink costs, the row and the "
    "column of weights of the fourth neuron: 2 e^-u + e^-2u. With a gamma, eps = L^-gamma and u grows like "
    "L^(1 - gamma), so both tend to 0 while the kernels diverge; bounded ones keep u as L grows, and with it what the "
    "kink costs. The cheapest u at each L is that of least norm. 'Error' is the largest one of the function at the "
    "samples."
)


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
    gain: float,
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
        gain=gain,
        steps=steps,
        members=members,
        seed=seed,
    )
    families = diverging(diverging_depths, gammas, stretches, floor_depth)
    sections = (
        Section("Linear networks", text=LINES, rows=line_rows(straight)),
        Section("Trained networks", text=_training(samples, width, ridge, gain, members), rows=trained_rows(nets)),
        Section("Before training and after", text=CHANGE, rows=change_rows(nets)),
        Section("Example 20 (T31)", text=DIVERGING, rows=diverging_rows(families)),
    )
    pictures = {
        "linear": draw_lines(straight),
        "trained": draw_trained(nets),
        "diverging": draw_diverging(families),
    }
    captions = {
        "linear": "Linear networks: kernels in log space along depth, distances between them, and their paths.",
        "trained": "Trained networks of several depths: the paths of their kernels, and how far each layer moves them.",
        "diverging": "Example 20: what its kernels and its norm do as the depth grows.",
    }
    claims = (*line_claims(straight), *trained_claims(nets), *diverging_claims(families))
    return Outcome("F14", claims, sections, pictures, captions=captions)


def _training(samples: int, width: int, ridge: float, gain: float, members: int) -> str:
    """Say what was trained, from where, and how it was measured."""
    draws = "one draw of its own" if members == 1 else f"{members} draws of its own, and the one of least loss kept"
    return (
        f"Data: F4's, {samples} samples x = g(z), y = h(z_1, z_2) with z Gaussian in R^8, x and y in R^20, g and h "
        f"random ReLU networks: of bottleneck rank {RANK}. Networks: ReLU with biases, hidden layers of width {width}, "
        f"ridge {ridge:g}. The kernels K_l are those of the preactivations at the training samples, K_0 that of the "
        "inputs.\n\n"
        f"Start: every depth L is trained from {draws}; no network takes over anything from one of another depth. With "
        "linear layers put into a trained network its kernels would be slow in the middle before any training. "
        f"Weights are Gaussian of deviation (2 / {width})^(1/2) {gain:g}^(1/L), He's for the width "
        f"times {gain:g}^(1/L), biases 0. From He's own draws outputs of deep narrow networks are so small that the "
        "ridge takes the weights to 0 before they learn. Every network has a row before training, and one after.\n\n"
        "Distances of kernels: 'angle' is the arccosine of <K, M> / (||K|| ||M||), in radians, blind to a common "
        "factor; 'Bures' is the least ||F Q - G||_F over orthogonal Q with K = F F^T, M = G G^T, in the units of the "
        "representations. The middle third's part of the path is the sum of the steps there over the sum of all, in "
        "either distance: 1/3 if steps are even. 'Jumps' is the largest angle between consecutive kernels in the first "
        "sixth of the layers or in the last, the smaller of the two, over the mean one in the middle third: about 1 if "
        "steps are even, and growing like L where both ends jump and the middle is continuous. s_i are the singular "
        "values of N^(-1/2) a~_l(X). The nonlinearity ratio is ||Z - relu(Z)||_F / ||Z||_F, Z = a~_l(X): 0 where ReLU "
        "does nothing.\n\n"
        "'From the shallower one' is the largest angle in the middle third between the kernels of this depth and of "
        "the depth above it, at the same l/L. T11 does not say that it falls: kernels need not converge as L grows."
    )


def line_claims(found: Sequence[Line]) -> tuple[Claim, ...]:
    """Measure T8's straight lines, and that T7's construction is none; the least favorable network decides."""
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
    """Measure T11 in networks of increasing depth: planar, linear and slow in the middle, jumps at the ends.

    Where the limiting path is continuous, and of finite length, the mean step is O(1/L); where it jumps a step keeps
    its size. The geometric mean of the two says which it is. T11 allows single jumps anywhere, and kernels of different
    depths need not agree: neither the largest step in the middle nor their angles are claimed.
    """
    first, last = found[0], found[-1]
    inner = list(middle(last.depth))
    gap = float(np.min(last.values[inner, RANK - 1] / np.maximum(last.values[inner, RANK], 1e-12)))
    bent = float(np.max(last.bent[[layer - 1 for layer in inner]]))
    share = _largest(net.share for net in found)
    tall, taller = float(np.sqrt(last.depth)), float(np.sqrt(last.depth / first.depth))
    grown = last.jumps / first.jumps
    where = f"middle third at depth {last.depth}"
    return (
        Claim(f"rank {RANK} in the {where}: least s_2 / s_3 of a~_l(X)", gap >= GAP, gap, f">= {GAP:g}"),
        Claim(f"sigma(a~) = a~ in the {where}: largest nonlinearity ratio", bent < LINEAR, bent, f"< {LINEAR:g}"),
        Claim(
            "share of the path (angles) in the middle third, largest of all depths (even steps: 1/3)",
            share < 1 / 6,
            share,
            "< 1/6",
        ),
        Claim(
            f"jumps at both ends: largest step of the first and of the last sixth, the smaller, over the mean one in "
            f"the {where}",
            last.jumps > tall,
            last.jumps,
            f"> {tall:.3g}",
        ),
        Claim(
            f"the same, depth {last.depth} over depth {first.depth} (jumps that stay, steps like 1/L: "
            f"{last.depth / first.depth:g})",
            grown > taller,
            grown,
            f"> {taller:.3g}",
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
    """Return two table rows per depth: before training and after it."""
    result = []
    for i, end in enumerate(found):
        shallower = found[i - 1] if i else None
        if end.start is not None:
            result.append(_trained_row("before", end.start, shallower and shallower.start))
        result.append(_trained_row("after", end, shallower))
    return result


def _trained_row(when: str, net: Trained, shallower: Trained | None) -> dict[str, object]:
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
        "from the shallower one": _middle_angle(shallower, net) if shallower else None,
    }


def _middle_angle(one: Trained, other: Trained) -> float:
    """Return the largest angle of the kernels of two depths at the same l/L in the middle third."""
    return float(apart(one, other)[list(middle(one.depth))].max())


def change_rows(found: Sequence[Trained]) -> list[dict[str, object]]:
    """Return one table row per claim on trained networks: what it would measure before training, and after."""
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
    "depths": (10, 20, 40),
    "width": 50,
    "ridge": 1e-3,
    "gain": 30.0,
    "steps": (800, 800, 1300),
    "members": 2,
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
    "steps": (5000, 5000, 5000, 5000),
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
