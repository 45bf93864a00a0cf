"""F13 (ours, for LeJegelka2022): the linear layers that a classifier ends in become rank one, and what stays constant.

The source has no experiments. Networks of ReLU layers and then linear ones, free residual blocks or convolutions follow
the gradient flow of the logistic loss on separable data, while the norm of the weights grows like a power of log t.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f13_low_rank_tails.computation import (
    ARCHITECTURES,
    Course,
    Steps,
    centered,
    descend,
    follow,
    images,
    slope,
)
from bnrank.figures.f13_low_rank_tails.drawing import draw_bounds, draw_invariants, draw_rank_one, draw_signs
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import separable, two_digits

__all__ = ["FIGURE", "bound_claims", "make", "rank_one_claims", "step_claims"]

NEAR_ONE = 0.99
CLEARLY_BELOW = 0.9
FLAT = 1e-6
ROUNDING = 1e-6  # of ||W||_F^2: how far the bound may be broken by the steps of the integrator
NORM = 3.0  # mean of ||x|| that images are scaled to
FULL, OTHERS = "fully connected", tuple(ARCHITECTURES)[1:]


def rank_one_claims(courses: Sequence[Course]) -> tuple[Claim, ...]:
    """Measure what must be seen of ReLU layers followed by three linear ones; the least favorable course decides."""
    least = _least(values[-1] for c in courses for values in c.ratios.values())
    aligned = _least(values[-1] for c in courses for values in c.alignments.values())
    slack = _least(_slack(c) for c in courses)
    proven = _least(values[-1] for c in courses for values in c.floors.values())
    below = -_least(-_least(values[-1] for values in c.before.values()) for c in courses)
    return (
        Claim(
            "linear last layers at the end: least ||W||_op^2 / ||W||_F^2", least > NEAR_ONE, least, f"> {NEAR_ONE:g}"
        ),
        Claim("their alignments |<v_{j+1}, u_j>| at the end, least", aligned > NEAR_ONE, aligned, f"> {NEAR_ONE:g}"),
        Claim(
            "T48's bound with the constants of the start, all along: least ratio less bound",
            slack > -ROUNDING,
            slack,
            f"> -{ROUNDING:g}",
        ),
        Claim(
            "what the bound alone gives at the end, from the norms and the start",
            proven > 1 - 2 * (1 - NEAR_ONE),
            proven,
            f"> {1 - 2 * (1 - NEAR_ONE):g}",
        ),
        Claim(
            "ReLU layers need not become rank one: ||W||_op^2 / ||W||_F^2 of the lowest of them, largest of all runs",
            below < CLEARLY_BELOW,
            below,
            f"< {CLEARLY_BELOW:g}",
        ),
        _flat("conserved quantities", courses),
    )


def _flat(what: str, courses: Sequence[Course]) -> Claim:
    """Say whether conserved quantities are flat along the flow."""
    drift = -_least(-np.max(values) for c in courses for values in c.drift.values())
    name = f"{what} along the flow: largest ||Q(t) - Q(0)|| / ||in + out||"
    return Claim(name, drift < FLAT, drift, f"< {FLAT:g}")


def bound_claims(courses: Sequence[Course]) -> tuple[Claim, ...]:
    """Measure what must be seen of tails with residual blocks and convolutions."""
    result = []
    for c in courses:
        slack = _slack(c)
        factors = c.tail.factors(c.flow.network)
        share = _least(c.floors[name][-1] * factor for name, factor in zip(c.floors, factors, strict=True))
        kind = c.title.partition(";")[0]
        result += [
            Claim(
                f"{kind}: least ratio less its bound, all along, but for the last layer",
                slack > -ROUNDING,
                slack,
                f"> -{ROUNDING:g}",
            ),
            Claim(
                f"{kind}: least bound at the end, as a share of 1 / (2^N M)",
                share > 0.5,
                share,
                "> 0.5: it says something",
            ),
            _flat(f"{kind}: conserved quantities", [c]),
        ]
    return tuple(result)


def step_claims(steps: Steps) -> tuple[Claim, ...]:
    """Measure the drift under gradient descent against T49."""
    once = [slope(steps.sizes, values) for values in steps.once.values()]
    over = [slope(steps.sizes, values) for values in steps.over.values()]
    left = -_least(-np.max(values) for values in steps.off_once.values())
    off = -_least(-values[-1] for name, values in steps.off_over.items() if name.startswith("matrix"))
    return (
        _exponent("one step of gradient descent: exponent p of the drift ~ step^p, farthest from 2", once, 2.0),
        Claim(
            "one step: largest relative difference of the drift from step^2 Q(gradient)", left < 1e-6, left, "< 1e-6"
        ),
        _exponent(f"over T = {steps.time:g}: exponent p of the drift ~ step^p, farthest from 1", over, 1.0),
        Claim(
            "over T: drift of the matrices against step times the integral of Q(gradient) along the flow, largest "
            "relative difference at the smallest step",
            off < 0.02,
            off,
            "< 0.02",
        ),
    )


def _exponent(name: str, found: Sequence[float], wanted: float) -> Claim:
    far = float(max(found, key=lambda p: abs(p - wanted) if np.isfinite(p) else np.inf))
    return Claim(name, bool(abs(far - wanted) <= 0.2), far, f"{wanted:g} +- 0.2")


def _slack(c: Course) -> float:
    """Return the least ratio less its bound, over time and all layers of the tail but the last, which has one row."""
    return _least(np.min(c.ratios[name] - c.floors[name]) for name in c.inner)


def _least(values: Iterable[Any]) -> float:
    """Return the least number, NaN where there is one."""
    return float(np.min([float(value) for value in values]))


def make(
    folder: Path,
    progress: bool,
    *,
    samples: int,
    dimension: int,
    margin: float,
    images_of: tuple[int, int],
    images_used: int | None,
    width: int,
    init: float,
    time: float,
    kinks: float,
    seeds: Sequence[int],
    images_small: int | None,
    width_small: int,
    init_small: float,
    time_small: float,
    descent: float,
    descent_init: float,
    sizes: Sequence[float],
) -> Outcome:
    """Follow ReLU layers with three linear last ones on separable data and on two digits, then the other tails.

    Parameters with ``_small`` are those of the tails with residual blocks and convolutions, on images averaged over
    squares of 4 x 4 pixels. ``descent`` is the time that gradient descent is followed for.
    """
    del folder
    drawn = {seed: separable(samples, dimension, margin, seed) for seed in seeds}
    common: dict[str, Any] = {"width": width, "init": init, "time": time, "kinks": kinks}
    courses = [follow(FULL, drawn[seed], progress, seed=seed, **common) for seed in seeds]
    digits = centered(two_digits(*images_of, images=images_used, images_test=0, seed=seeds[0]), NORM)
    courses.append(follow(FULL, digits, progress, seed=seeds[0], **common))
    small = centered(images(images_of, images_small, seeds[0]), NORM)
    others = [
        follow(kind, small, progress, width=width_small, init=init_small, seed=seeds[0], time=time_small, kinks=kinks)
        for kind in OTHERS
    ]
    steps = descend(
        FULL, drawn[seeds[0]], width=width, init=descent_init, seed=seeds[0], time=descent, sizes=sizes, kinks=kinks
    )
    shown = [courses[0], courses[-1]]
    pictures = {
        "rank-one": draw_rank_one(shown),
        "bounds": draw_bounds(others),
        "invariants": draw_invariants(courses[0], steps),
        "signs": draw_signs(shown),
    }
    claims = (*rank_one_claims(courses), *bound_claims(others), *step_claims(steps))
    captions = {
        "rank-one": "How near to rank one linear last layers and the ReLU layers before them come, and how aligned",
        "bounds": "Ratios of tails with residual blocks and convolutions, with what T48 guarantees",
        "invariants": "Conserved quantities along the flow, and their drift under gradient descent",
        "signs": "Signs of weights that still change, and how the direction of the weights settles",
    }
    settings = {"data": [c.title for c in courses]}
    return Outcome("F13", claims, _sections(courses, others, steps), pictures, settings, captions=captions)


def _sections(courses: Sequence[Course], others: Sequence[Course], steps: Steps) -> tuple[Section, ...]:
    text = (
        "Ratios are ||W||_op^2 / ||W||_F^2, the squares of the operator-to-Frobenius ratios. The weights of all layers "
        "start small, so that the constant of T48's bound, ||W||_op^2 >= (||W||_F^2 - const) / (2^N M), is small "
        "against the norms that are reached: norms grow like a power of log t only. Images are taken less their mean "
        f"image and scaled to a mean norm of {NORM:g}. Steps are taken in the relative arc length of the weights. "
        "Kinks of ReLUs, along which the flow slides, are what most of the steps and of the drift go to."
    )
    drift = (
        "One step of length eta adds eta^2 Q(grad C) to a conserved Q, exactly (T49). The T / eta steps up to time T "
        "add up to eta times a Riemann sum of the integral of Q(grad C) along the flow: the drift over a fixed time is "
        "eta times this integral, up to O(eta^2). Where ReLUs switch, Q(grad C) of the layers around them jumps, so "
        "that the sum approaches the integral more slowly there; that of the matrices does not jump."
    )
    signs = (
        "T43: a direction that converges to a limit without a zero entry has signs that are constant from some time "
        "on. The last direction stands for the limit; once its smallest |entry| exceeds the distance to it, no sign "
        "can change. Weights of neurons that do not take part stay as small as they start while the norm grows: where "
        "there are any, the limit has zeros, and the condition is not met although signs are seen to be stable."
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
        "largest drift": max(float(np.max(values)) for values in c.drift.values()),
        "steps": c.flow.steps,
        "status": c.flow.status,
        "seconds": round(c.flow.seconds, 1),
    }


def _layer_rows(c: Course) -> list[dict[str, object]]:
    rows = [
        {"network and data": c.title, "layer": name, "kind": "before the tail", "ratio": float(values[-1])}
        for name, values in c.before.items()
    ]
    factors = c.tail.factors(c.flow.network)
    for layer, factor in zip(c.tail.layers, factors, strict=True):
        row: dict[str, object] = {"network and data": c.title, "layer": layer.name, "kind": layer.kind}
        row |= {"ratio": float(c.ratios[layer.name][-1]), "bound": float(c.floors[layer.name][-1])}
        rows.append(row | {"2^N M": factor})
    return rows


def _step_rows(steps: Steps) -> list[dict[str, object]]:
    return [
        {
            "quantity": name,
            "exponent, one step": slope(steps.sizes, steps.once[name]),
            f"exponent over T = {steps.time:g}": slope(steps.sizes, steps.over[name]),
            "relative difference from step times the integral": ", ".join(f"{v:.1g}" for v in steps.off_over[name]),
        }
        for name in steps.once
    ]


def _sign_row(c: Course) -> dict[str, object]:
    found, signs = c.convergence(), c.signs()
    last = c.times[-1]
    since = f"{found.since:.3g}" if found.reached else "no"
    row = int(np.searchsorted(c.times, last / 100))
    return {
        "network and data": c.title,
        "ever changed, per weight (%)": ", ".join(f"{100 * v[0]:.1f}" for v in signs.values()),
        f"at t = {last / 100:g} or later": ", ".join(f"{100 * v[row]:.1f}" for v in signs.values()),
        "distance to the last direction there": float(found.distances[row]),
        "its smallest |entry|": found.smallest,
        "in the ball of T43 since": since,
    }


FIGURE = Figure(
    "F13",
    "low-rank-tails",
    "The linear layers that a classifier ends in become rank one and align",
    "ours, for LeJegelka2022, which has no experiments; T43 to T49",
    "ratio and alignment above 0.99 for linear last layers, ReLU layers below; tails with residual blocks and "
    "convolutions above their bounds; conserved quantities flat along the flow, their drift under gradient descent "
    "as computed",
    {
        "quick": {
            "samples": 30,
            "dimension": 10,
            "margin": 0.5,
            "images_of": (0, 1),
            "images_used": 40,
            "width": 12,
            "init": 0.04,
            "time": 1e8,
            "kinks": 1e-5,
            "seeds": (0,),
            "images_small": 20,
            "width_small": 10,
            "init_small": 0.1,
            "time_small": 1e5,
            "descent": 10.0,
            "descent_init": 0.6,
            "sizes": (0.2, 0.1, 0.05, 0.025),
        },
        "paper": {
            "samples": 60,
            "dimension": 10,
            "margin": 0.5,
            "images_of": (0, 1),
            "images_used": 1000,
            "width": 50,
            "init": 0.018,
            "time": 1e8,
            "kinks": 1e-5,
            "seeds": (0, 1, 2),
            "images_small": None,
            "width_small": 40,
            "init_small": 0.05,
            "time_small": 1e6,
            "descent": 10.0,
            "descent_init": 0.6,
            "sizes": (0.2, 0.1, 0.05, 0.025, 0.0125),
        },
    },
    make,
    gigabytes={"quick": 1.3, "paper": 2.0},
    data={"paper": ("mnist",)},
    printed=False,
)
