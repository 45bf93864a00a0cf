"""F7 (Jacot2023c): kernels learn at the rate N^{-alpha/d}; deep networks are faster on a composition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bnrank.figures.f07_kernel_rates.computation import (
    Course,
    Decay,
    decay_courses,
    interval,
    on_composition,
    on_torus_control,
)
from bnrank.figures.f07_kernel_rates.drawing import draw_compositions, draw_rates
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section

__all__ = ["FIGURE", "composition_claims", "control_claim", "early_claim", "make", "rate_claims"]

OFF = 0.15  # of alpha / d, by which a fitted exponent may differ
MISSING = 0.05  # of the error in theory at the largest N, which the cutoff may leave out: moves exponents by 0.015
AS_GOOD = 0.8  # the network's error over the kernel's from which the kernel is at least as good, up to chance


def rate_claims(courses: Sequence[Decay]) -> tuple[Claim, ...]:
    """Measure whether kernel ridge regression learns targets on the d-torus at the rate N^{-alpha/d}."""
    result = []
    for d in dict.fromkeys(c.d for c in courses):
        here = [c for c in courses if c.d == d]
        off = max(abs(c.exponent[0] / c.expected - 1) if np.isfinite(c.exponent[0]) else np.inf for c in here)
        words = ", ".join(f"{c.exponent[0]:.3g} for {c.expected:.3g}" for c in here)
        name = f"kernel, d_in = {d}: fitted exponent less alpha/d_in, relative, largest over alpha ({words})"
        result.append(Claim(name, off <= OFF, off, f"<= {OFF:g}"))
    missing = float(np.max([c.missing for c in courses]))
    name = "the cutoff of the targets leaves out, of the sum of |beta_k|^2 over k > N at the largest N, at most"
    return (*result, Claim(name, missing <= MISSING, missing, f"<= {MISSING:g}"))


def composition_claims(pairs: Mapping[int, tuple[Course, Course]]) -> tuple[Claim, ...]:
    """Measure whether the error of deep networks falls faster than that of kernels on compositions.

    Errors above 1, worse than those of the mean of y, count as 1: where a network memorizes few samples, its bad start
    would make its error fall faster.
    """
    result = []
    for inner, (deep, kernel) in pairs.items():
        faster, slower = (replace(c, errors=np.minimum(c.errors, 1)) for c in (deep, kernel))
        mean, low, _ = interval(faster.exponents - slower.exponents)
        last = float((deep.errors[:, -1] / kernel.errors[:, -1]).max())
        what = f"composition, inner dimension {inner}"
        words = f"{faster.exponent[0]:.2f} and {slower.exponent[0]:.2f}, mean difference {mean:.2f}"
        result += [
            Claim(
                f"{what}: exponent of the network less that of the kernel, lower end of the 95% interval ({words})",
                low > 0,
                low,
                "> 0",
            ),
            Claim(
                f"{what}: error of the network over the kernel's at N = {deep.sizes[-1]:g}, largest over draws",
                last < 1,
                last,
                "< 1",
            ),
        ]
    return tuple(result)


def early_claim(pairs: Mapping[int, tuple[Course, Course]], wide: Course) -> Claim:
    """Measure whether a small inner dimension needs fewer samples: the network's errors at the last N but one."""
    last = [float(deep.middle[-2] / wide.middle[-2]) for deep, _ in pairs.values()]
    return Claim(
        f"error of the network at N = {wide.sizes[-2]:g}, inner dimension {' and '.join(map(str, pairs))}, over that "
        "with as many as inputs, largest (not in the source)",
        max(last) < 1,
        max(last),
        "< 1: fewer samples are enough",
    )


def control_claim(deep: Course, kernel: Course) -> Claim:
    """Measure whether the network has no advantage on a target of prescribed decay."""
    ratio = float(np.exp(np.log(deep.errors[:, -1] / kernel.errors[:, -1]).mean()))
    return Claim(
        f"control, target of prescribed decay on the 2-torus: error of the network over the kernel's at N = "
        f"{deep.sizes[-1]:g}",
        ratio >= AS_GOOD,
        ratio,
        f">= {AS_GOOD:g}: the kernel is as good or better",
    )


def make(
    folder: Path,
    progress: bool,
    *,
    dims: Sequence[int],
    alphas: Sequence[float],
    sizes: Sequence[int],
    draws: int,
    n_test: int,
    inners: Sequence[int],
    d_in: int,
    sizes_composition: Sequence[int],
    seeds: Sequence[int],
    depth: int,
    width: int,
    ridge: float,
    steps: int,
    ridges_control: Sequence[float],
) -> Outcome:
    """Fit kernels to targets of prescribed decay, then networks and kernels to compositions and to a control."""
    courses = [c for d in dims for c in decay_courses(d, alphas, sizes, range(draws), n_test)]
    network = {"depth": depth, "width": width, "steps": steps}
    pairs = {
        inner: on_composition(
            folder, progress, inner, d_in=d_in, sizes=sizes_composition, seeds=seeds, ridge=ridge, **network
        )
        for inner in inners
    }
    wide = on_composition(
        folder, progress, d_in, d_in=d_in, sizes=sizes_composition, seeds=seeds, ridge=ridge, **network
    )
    control = on_torus_control(
        folder,
        progress,
        alpha=alphas[0],
        sizes=sizes_composition,
        seeds=seeds[:1],
        ridges=ridges_control,
        **network,
    )
    named = {f"Composition, d = {d_in}, inner dimension {inner}": pair for inner, pair in pairs.items()}
    named[f"Control: all {d_in} inner dimensions"] = wide
    named[rf"Control: 2-torus, $\alpha$ = {alphas[0]:g}, one draw"] = control
    pictures = {"kernel-rates": draw_rates(courses), "compositions": draw_compositions(named)}
    captions = {
        "kernel-rates": "Kernel ridge regression on targets with coefficients ||m||^(-alpha-d): geometric mean and "
        "range over draws.",
        "compositions": "Deep networks and kernels: geometric mean and range over draws of the task.",
    }
    claims = (*rate_claims(courses), *composition_claims(pairs), early_claim(pairs, wide[0]), control_claim(*control))
    return Outcome("F7", claims, _sections(courses, named), pictures, captions=captions)


def _sections(courses: Sequence[Decay], pairs: Mapping[str, tuple[Course, Course]]) -> tuple[Section, ...]:
    rates = (
        "Targets on the d-torus with uniform inputs, |beta_m|^2 ~ ||m||^(-alpha-d), random phases, no noise. On the "
        "torus embedded in 2 d dimensions the Matern kernel (3/2) is invariant under translations: Fourier modes are "
        "its eigenfunctions, with eigenvalues ~ ||m||^(-3-d), and the rate N^(-alpha/d) does not saturate as long as "
        "alpha < 2 (3 + d). The source prints monomials and no distribution."
    )
    compositions = (
        "y = h(z), z_j the squared norm of the j-th block of x ~ N(0, I), standardized; h has d_out = 10 cosines of "
        "random frequency. Kernels: Gaussian or Laplace, length scale and ridge by three-fold cross-validation. The "
        "network's ridge is the same for all N. Two controls, which the source does not have. With as many inner "
        "dimensions as inputs nothing small is hidden, but every output is still a function of one sum of squares: "
        "what is left of the network's advantage there does not come from a small inner dimension. On the torus the "
        "target has coefficients of prescribed decay and the network's ridge is chosen on test samples."
    )
    return (
        Section("Targets of prescribed decay", text=rates, rows=[_decay_row(c) for c in courses]),
        Section(
            "Networks and kernels", text=compositions, rows=[_row(t, c) for t, pair in pairs.items() for c in pair]
        ),
    )


def _decay_row(c: Decay) -> dict[str, object]:
    mean, low, high = c.exponent
    row: dict[str, object] = {"d_in": c.d, "alpha": c.alpha, "exponent": mean, "95% from": low, "to": high}
    row |= {"alpha/d_in": c.expected, "error at the largest N": float(c.middle[-1])}
    if c.least is not None:
        ratio = c.middle / c.least
        slope = -np.polyfit(np.log(c.sizes), np.log(c.least), 1)[0]
        row |= {"exponent of sum_{k>N} |beta_k|^2": float(slope)}
        row |= {"error over that sum": f"{ratio.min():.2g} to {ratio.max():.2g}", "beyond the cutoff": c.missing}
    return row


def _row(task: str, c: Course) -> dict[str, object]:
    mean, low, high = c.exponent
    row: dict[str, object] = {"task": task.replace("$", "").replace("\\", ""), "method": c.name, "with": c.about}
    row |= {"exponent": mean, "95% from": low, "to": high}
    return row | {f"error at N = {n:g}": float(e) for n, e in zip(c.sizes, c.middle, strict=True)}


_COMMON = {"dims": (1, 2, 3, 4), "alphas": (2.0, 3.0), "inners": (1, 2), "d_in": 10, "depth": 6, "width": 100}
_COMMON |= {"ridge": 2e-3, "ridges_control": (1e-4, 1e-5)}

FIGURE = Figure(
    "F7",
    "kernel-rates",
    "Kernels learn at a rate that the dimension of the inputs sets; on compositions deep networks learn faster",
    "Jacot2023c, first slides",
    "test error of kernel methods about N^(-alpha/d_in) on targets with decaying coefficients; deep networks do better "
    "on a composition with small inner dimension",
    {
        "quick": {
            **_COMMON,
            "sizes": (64, 128, 256, 512, 1024, 2048),
            "draws": 6,
            "n_test": 1000,
            "sizes_composition": (100, 400, 800, 1600),
            "seeds": (10, 11, 12),
            "steps": 600,
        },
        "paper": {
            **_COMMON,
            "sizes": (64, 128, 256, 512, 1024, 2048),
            "draws": 30,
            "n_test": 4000,
            "sizes_composition": (100, 200, 400, 800, 1600, 3200),
            "seeds": tuple(range(10, 20)),
            "steps": 3000,
        },
    },
    make,
    gigabytes={"quick": 0.9, "paper": 1.2},
)
