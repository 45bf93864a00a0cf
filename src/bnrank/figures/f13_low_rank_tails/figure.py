"""F13 (ours, for LeJegelka2022): the linear last layers of a classifier become rank one, with conserved quantities.

The source has no experiments. Networks of ReLU layers and then linear ones, free residual blocks or convolutions follow
the gradient flow of the logistic loss on separable data, while the norm of the weights grows like a power of log t.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bnrank.figures.f13_low_rank_tails import computation as tails
from bnrank.figures.f13_low_rank_tails import drawing
from bnrank.figures.f13_low_rank_tails.computation import ARCHITECTURES, Course, Follow, Steps
from bnrank.figures.harness.claims import Claim, above, below, largest, near, prefixed, smallest
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import separable, two_digits

NEAR_ONE = 0.99
ROUNDING = 1e-6  # share of ||W||_F^2 by which the integrator's steps may break the bound
NORM = 3.0  # mean of ||x|| of the images
FULL, *OTHERS = ARCHITECTURES


@dataclass(frozen=True)
class Settings:
    """Settings of F13.

    Attributes
    ----------
    samples, dimension, margin
        Of `bnrank.tasks.separable`.
    digits, images
        Two digits and the number of their images (None for all).
    follow : Follow
        Flows of ReLU layers with three linear last ones.
    seeds : tuple of int
        Of data and networks.
    images_small, follow_small
        Those of the tails with residual blocks and convolutions, on images averaged over squares of 4 x 4 pixels.
    descent_time, descent_init, sizes
        Time, initial scale and steps of gradient descent.
    """

    images: int | None
    follow: Follow
    images_small: int | None
    follow_small: Follow
    samples: int = 30
    dimension: int = 10
    margin: float = 0.5
    digits: tuple[int, int] = (0, 1)
    seeds: tuple[int, ...] = (0,)
    descent_time: float = 10.0
    descent_init: float = 0.6
    sizes: tuple[float, ...] = (0.2, 0.1, 0.05, 0.025)


def rank_one_claims(courses: Sequence[Course]) -> tuple[Claim, ...]:
    """Return the claims on ReLU layers followed by three linear ones; the least favorable course decides."""
    ratio = smallest(values[-1] for c in courses for values in c.ratios.values())
    aligned = smallest(values[-1] for c in courses for values in c.alignments.values())
    slack = smallest(_slack(c) for c in courses)
    proven = smallest(values[-1] for c in courses for values in c.floors.values())
    lowest = largest(smallest(values[-1] for values in c.before.values()) for c in courses)
    share = "||W||_op^2 / ||W||_F^2"
    return (
        above(f"linear last layers at the end: smallest {share}", ratio, NEAR_ONE),
        above("their alignments |<v_{j+1}, u_j>| at the end, smallest", aligned, NEAR_ONE),
        above("T48's bound with the constants of the start, all along: smallest ratio less bound", slack, -ROUNDING),
        above("what the bound alone gives at the end, from the norms and the start", proven, 1 - 2 * (1 - NEAR_ONE)),
        below(f"ReLU layers need not become rank one: {share} of the lowest of them, largest of all runs", lowest, 0.9),
        _flat(courses),
    )


def _flat(courses: Sequence[Course]) -> Claim:
    """Return the claim that conserved quantities are flat along the flow."""
    drift = largest(values for c in courses for values in c.drift.values())
    return below("conserved quantities along the flow: largest ||Q(t) - Q(0)|| / ||in + out||", drift, 1e-6)


def bound_claims(courses: Sequence[Course]) -> tuple[Claim, ...]:
    """Return the claims on tails with residual blocks and convolutions."""
    result: list[Claim] = []
    for c in courses:
        factors = c.tail.factors(c.flow.network)
        share = smallest(c.floors[name][-1] * factor for name, factor in zip(c.floors, factors, strict=True))
        these = (
            above("smallest ratio minus its bound, all along, but for the last layer", _slack(c), -ROUNDING),
            above("smallest bound at the end, as a share of 1 / (2^N M)", share, 0.5, note=": not vacuous"),
            _flat([c]),
        )
        result += prefixed(c.title.partition(";")[0], these)
    return tuple(result)


def step_claims(steps: Steps) -> tuple[Claim, ...]:
    """Return the claims of T49 on the drift under gradient descent."""
    once = [tails.slope(steps.sizes, values) for values in steps.once.values()]
    over = [tails.slope(steps.sizes, values) for values in steps.over.values()]
    left = largest(steps.off_once.values())
    off = largest(values[-1] for name, values in steps.off_over.items() if name.startswith("matrix"))
    relative = "largest relative difference"
    integral = f"drift of the matrices against step times the integral of Q(gradient) along the flow, {relative}"
    return (
        _exponent("one step of gradient descent: exponent p of the drift ~ step^p, farthest from 2", once, 2.0),
        below(f"one step: {relative} of the drift from step^2 Q(gradient)", left, 1e-6),
        _exponent(f"over T = {steps.time:g}: exponent p of the drift ~ step^p, farthest from 1", over, 1.0),
        below(f"over T: {integral} at the smallest step", off, 0.02),
    )


def _exponent(name: str, found: Sequence[float], wanted: float) -> Claim:
    return near(name, max(found, key=lambda p: abs(p - wanted) if np.isfinite(p) else np.inf), wanted, 0.2)


def _slack(c: Course) -> float:
    """Return the smallest ratio minus its bound, over time and all layers of the tail but the last (one row)."""
    return smallest(c.ratios[name] - c.floors[name] for name in c.inner)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Follow ReLU layers with three linear last ones on separable data and on two digits, then the other tails."""
    del folder
    s, seed = settings, settings.seeds[0]
    drawn = {seed: separable(s.samples, s.dimension, s.margin, seed) for seed in s.seeds}
    courses = [tails.follow(FULL, drawn[seed], progress, s.follow, seed) for seed in s.seeds]
    digits = tails.centered(two_digits(*s.digits, images=s.images, images_test=0, seed=seed), NORM)
    courses.append(tails.follow(FULL, digits, progress, s.follow, seed))
    small = tails.centered(tails.images(s.digits, s.images_small, seed), NORM)
    others = [tails.follow(kind, small, progress, s.follow_small, seed) for kind in OTHERS]
    steps = tails.descend(FULL, drawn[seed], replace(s.follow, init=s.descent_init, time=s.descent_time), s.sizes, seed)
    shown = [courses[0], courses[-1]]
    pictures = {
        "rank-one": drawing.rank_one(shown),
        "bounds": drawing.bounds(others),
        "invariants": drawing.invariants(courses[0], steps),
        "signs": drawing.signs(shown),
    }
    captions = {
        "rank-one": "How near to rank one linear last layers and the ReLU layers before them come, and how aligned",
        "bounds": "Ratios of tails with residual blocks and convolutions, with what T48 guarantees",
        "invariants": "Conserved quantities along the flow, and their drift under gradient descent",
        "signs": "Signs of weights that still change, and how the direction of the weights settles",
    }
    claims = (*rank_one_claims(courses), *bound_claims(others), *step_claims(steps))
    sections, data = _sections(courses, others, steps), {"data": [c.title for c in courses]}
    return Outcome(claims=claims, sections=sections, pictures=pictures, settings=data, captions=captions)


def _sections(courses: Sequence[Course], others: Sequence[Course], steps: Steps) -> tuple[Section, ...]:
    text = (
        "Ratios are ||W||_op^2 / ||W||_F^2, the squares of the operator-to-Frobenius ratios. The weights start small, "
        "so that the constant of T48's bound, ||W||_op^2 >= (||W||_F^2 - const) / (2^N M), is small against the final "
        "norms, which grow like a power of log t. Images are centered and scaled to a mean norm of "
        f"{NORM:g}. Steps are taken in the relative arc length of the weights; most of them, and of the drift, are at "
        "kinks of ReLUs, along which the flow slides."
    )
    drift = (
        "One step of length eta adds eta^2 Q(grad C) to a conserved Q, exactly (T49). The T / eta steps up to time T "
        "add up to eta times a Riemann sum of the integral of Q(grad C) along the flow, so the drift is eta times this "
        "integral up to O(eta^2). Where ReLUs switch, Q(grad C) of the layers around them jumps and the sum converges "
        "more slowly; that of the matrices does not jump."
    )
    signs = (
        "T43: a direction that converges to a limit without a zero entry has constant signs after some time. The "
        "last direction stands for the limit; once its smallest |entry| exceeds the distance to it, no sign changes. "
        "Weights of inactive neurons stay small while the norm grows: if there are any, the limit has zeros, and the "
        "condition is not met although the signs are stable."
    )
    return (
        Section("Flows", text=text, rows=[_row(c) for c in (*courses, *others)]),
        Section("Layers at the end", rows=[row for c in (*courses, *others) for row in _layer_rows(c)]),
        Section("Drift under gradient descent", text=drift, rows=_step_rows(steps)),
        Section("Stable signs", text=signs, rows=[_sign_row(c) for c in courses]),
    )


def _row(c: Course) -> dict[str, object]:
    norms = c.flow.parameter_norm
    return {
        "network and data": c.title,
        "t": c.times[-1],
        "loss": c.flow.loss[-1],
        "||theta||^2": f"{norms[0]:.3g} to {norms[-1]:.3g}",
        "largest drift": largest(c.drift.values()),
        "steps": c.flow.steps,
        "status": c.flow.status,
        "seconds": round(c.flow.seconds, 1),
    }


def _layer_rows(c: Course) -> list[dict[str, object]]:
    ends = {name: float(values[-1]) for name, values in {**c.before, **c.ratios}.items()}
    rows: list[dict[str, object]] = [
        {"layer": name, "kind": "before the tail", "ratio": ends[name]} for name in c.before
    ]
    for layer, factor in zip(c.tail.layers, c.tail.factors(c.flow.network), strict=True):
        bound = float(c.floors[layer.name][-1])
        rows.append(
            {"layer": layer.name, "kind": layer.kind, "ratio": ends[layer.name], "bound": bound, "2^N M": factor}
        )
    return [{"network and data": c.title, **row} for row in rows]


def _step_rows(steps: Steps) -> list[dict[str, object]]:
    return [
        {
            "quantity": name,
            "exponent, one step": tails.slope(steps.sizes, steps.once[name]),
            f"exponent over T = {steps.time:g}": tails.slope(steps.sizes, steps.over[name]),
            "relative difference from step times the integral": ", ".join(f"{v:.1g}" for v in steps.off_over[name]),
        }
        for name in steps.once
    ]


def _sign_row(c: Course) -> dict[str, object]:
    (distances, smallest), signs, last = c.convergence(), c.signs(), c.times[-1]
    outside = np.flatnonzero(distances >= smallest)
    since = int(outside[-1]) + 1 if len(outside) else 0
    row = int(np.searchsorted(c.times, last / 100))
    return {
        "network and data": c.title,
        "ever changed, per weight (%)": ", ".join(f"{100 * v[0]:.1f}" for v in signs.values()),
        f"at t = {last / 100:g} or later": ", ".join(f"{100 * v[row]:.1f}" for v in signs.values()),
        "distance to the last direction there": float(distances[row]),
        "its smallest |entry|": smallest,
        "in the ball of T43 since": f"{c.times[since]:.3g}" if since < len(c.times) - 1 else "no",
    }


QUICK = Settings(40, Follow(width=12, init=0.04, time=1e8), 20, Follow(width=10, init=0.1, time=1e5))
PAPER = Settings(
    400,
    Follow(width=50, init=0.018, time=1e8),
    500,
    Follow(width=40, init=0.05, time=1e6),
    samples=60,
    seeds=(0, 1, 2),
    sizes=(0.2, 0.1, 0.05, 0.025, 0.0125),
)

FIGURE = Figure(
    "F13",
    "low-rank-tails",
    "The linear layers that a classifier ends in become rank one and align",
    "ours, for LeJegelka2022, which has no experiments; T43 to T49",
    "ratio and alignment above 0.99 for linear last layers, ReLU layers below; tails with residual blocks and "
    "convolutions above their bounds; conserved quantities flat along the flow, their drift under gradient descent "
    "as computed",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": 1.3, "paper": 2.0},
    data={"paper": ("mnist",)},
    printed=False,
)
