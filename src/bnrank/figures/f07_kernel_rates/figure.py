"""F7 (Jacot2023c): kernels learn at the rate N^{-alpha/d}; deep networks are faster on a composition."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bnrank.figures.f07_kernel_rates import computation
from bnrank.figures.f07_kernel_rates.computation import Course, Decay, Settings, on_composition
from bnrank.figures.f07_kernel_rates.drawing import draw_compositions, draw_rates
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.intervals import interval
from bnrank.reporting import Section

OFF = 0.15  # largest relative difference of a fitted exponent from alpha / d
MISSING = 0.05  # largest share of the predicted error beyond the cutoff at the largest N: moves exponents by 0.015
AS_GOOD = 0.8  # ratio of network to kernel error from which the kernel counts as at least as good, up to chance


def rate_claims(courses: Sequence[Decay]) -> tuple[Claim, ...]:
    """Return the claims on the rate N^{-alpha/d} of kernel ridge regression on the d-torus."""
    result = []
    for d in dict.fromkeys(c.d for c in courses):
        here = [c for c in courses if c.d == d]
        off = max(abs(c.exponent[0] / c.expected - 1) if np.isfinite(c.exponent[0]) else np.inf for c in here)
        words = ", ".join(f"{c.exponent[0]:.3g} for {c.expected:.3g}" for c in here)
        name = f"kernel, d_in = {d}: fitted exponent against alpha/d_in, largest relative difference ({words})"
        result.append(at_most(name, off, OFF))
    missing = np.max([c.missing for c in courses])
    name = "largest share beyond the cutoff of the targets of the sum of |beta_k|^2 over k > N at the largest N"
    return (*result, at_most(name, missing, MISSING))


def composition_claims(pairs: Mapping[int, tuple[Course, Course]]) -> tuple[Claim, ...]:
    """Return the claims that on compositions the error decays faster for deep networks than for kernels.

    Errors above 1, worse than predicting the mean of y, count as 1: a network that memorizes few samples has a large
    initial error, which would inflate its decay rate.
    """
    result = []
    for inner, (deep, kernel) in pairs.items():
        faster, slower = (replace(c, errors=np.minimum(c.errors, 1)) for c in (deep, kernel))
        mean, low, _ = interval(faster.exponents - slower.exponents)
        what = f"composition, inner dimension {inner}"
        over = "error of the network over the kernel's"
        words = f"{faster.exponent[0]:.2f} and {slower.exponent[0]:.2f}, mean difference {mean:.2f}"
        difference = "exponent of the network less that of the kernel, lower end of the 95% interval"
        last = (deep.errors[:, -1] / kernel.errors[:, -1]).max()
        result += [
            above(f"{what}: {difference} ({words})", low, 0),
            below(f"{what}: {over} at N = {deep.sizes[-1]:g}, largest over draws", last, 1),
        ]
    return tuple(result)


def early_claim(pairs: Mapping[int, tuple[Course, Course]], wide: Course) -> Claim:
    """Return the claim that a small inner dimension requires fewer samples: network errors at the second largest N."""
    last = max(float(deep.middle[-2] / wide.middle[-2]) for deep, _ in pairs.values())
    at = f"error of the network at N = {wide.sizes[-2]:g}, inner dimension {' and '.join(map(str, pairs))}"
    name = f"{at}, over that with as many as inputs, largest (not in the source)"
    return below(name, last, 1, note=": fewer samples are enough")


def control_claim(deep: Course, kernel: Course) -> Claim:
    """Return the claim that the network has no advantage on a target of prescribed decay."""
    ratio = np.exp(np.log(deep.errors[:, -1] / kernel.errors[:, -1]).mean())
    what = "control, target of prescribed decay on the 2-torus: error of the network over the kernel's"
    name = f"{what} at N = {deep.sizes[-1]:g}"
    return at_least(name, ratio, AS_GOOD, note=": the kernel is as good or better")


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Fit kernels to targets of prescribed decay, then networks and kernels to compositions and to a control."""
    s = settings
    courses = [c for d in s.dims for c in computation.decay_courses(d, s.alphas, s.sizes, range(s.draws), s.n_test)]
    pairs = {inner: on_composition(folder, progress, inner, s) for inner in s.inners}
    wide = on_composition(folder, progress, s.d_in, s)
    control = computation.on_torus_control(folder, progress, s)
    named = {f"Composition, d = {s.d_in}, inner dimension {inner}": pair for inner, pair in pairs.items()}
    named[f"Control: all {s.d_in} inner dimensions"] = wide
    named[rf"Control: 2-torus, $\alpha$ = {s.alphas[0]:g}, one draw"] = control
    pictures = {"kernel-rates": draw_rates(courses), "compositions": draw_compositions(named)}
    captions = {
        "kernel-rates": "Kernel ridge regression on targets with coefficients ||m||^(-alpha-d): geometric mean and "
        "range over draws.",
        "compositions": "Deep networks and kernels: geometric mean and range over draws of the task.",
    }
    claims = (*rate_claims(courses), *composition_claims(pairs), early_claim(pairs, wide[0]), control_claim(*control))
    return Outcome(claims=claims, sections=_sections(courses, named), pictures=pictures, captions=captions)


def _sections(courses: Sequence[Decay], pairs: Mapping[str, tuple[Course, Course]]) -> tuple[Section, ...]:
    rates = (
        "Targets on the d-torus with uniform inputs, |beta_m|^2 ~ ||m||^(-alpha-d), random phases, no noise. On the "
        "torus embedded in 2 d dimensions Fourier modes are the eigenfunctions of the Matern kernel (3/2), with "
        "eigenvalues ~ ||m||^(-3-d); the rate N^(-alpha/d) does not saturate as long as alpha < 2 (3 + d). The source "
        "prints monomials and no distribution."
    )
    compositions = (
        "y = h(z), z_j the squared norm of the j-th block of x ~ N(0, I), standardized; h has d_out = 10 cosines of "
        "random frequency. Kernels: Gaussian or Laplace, length scale and ridge by three-fold cross-validation. The "
        "network's ridge is the same for all N. Two controls, not in the source: with as many inner dimensions as "
        "inputs every output is still a function of one sum of squares, so that an advantage of the network there does "
        "not come from a small inner dimension; on the torus the target has coefficients of prescribed decay, and the "
        "network's ridge is chosen on test samples."
    )
    return (
        Section("Targets of prescribed decay", text=rates, rows=[_decay_row(c) for c in courses]),
        Section(
            "Networks and kernels", text=compositions, rows=[_row(t, c) for t, pair in pairs.items() for c in pair]
        ),
    )


def _decay_row(c: Decay) -> dict[str, object]:
    row = {"d_in": c.d, "alpha": c.alpha, **_exponent(c), "alpha/d_in": c.expected}
    row["error at the largest N"] = float(c.middle[-1])
    if c.tail is not None:
        ratio = c.middle / c.tail
        row["exponent of sum_{k>N} |beta_k|^2"] = float(-np.polyfit(np.log(c.sizes), np.log(c.tail), 1)[0])
        row |= {"error over that sum": f"{ratio.min():.2g} to {ratio.max():.2g}", "beyond the cutoff": c.missing}
    return row


def _row(task: str, c: Course) -> dict[str, object]:
    row = {"task": task.replace("$", "").replace("\\", ""), "method": c.name, "with": c.about, **_exponent(c)}
    return row | {f"error at N = {n:g}": float(e) for n, e in zip(c.sizes, c.middle, strict=True)}


def _exponent(c: Course) -> dict[str, object]:
    return dict(zip(("exponent", "95% from", "to"), c.exponent, strict=True))


PAPER = Settings(
    draws=30, n_test=4000, sizes_composition=(100, 200, 400, 800, 1600, 3200), seeds=tuple(range(10, 20)), steps=3000
)

FIGURE = Figure(
    "F7",
    "kernel-rates",
    "Kernels learn at a rate that the dimension of the inputs sets; on compositions deep networks learn faster",
    "Jacot2023c, first slides",
    "test error of kernel methods about N^(-alpha/d_in) on targets with decaying coefficients; deep networks do better "
    "on a composition with small inner dimension",
    {"quick": Settings(), "paper": PAPER},
    make,
    gigabytes={"quick": 0.9, "paper": 1.2},
)
