"""F7 (Jacot2023c): kernels learn at the rate N^{-alpha/d}; deep networks are faster on a composition."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bnrank.figures.f07_kernel_rates import computation
from bnrank.figures.f07_kernel_rates.computation import FIELD, Course, Decay, Settings, on_composition
from bnrank.figures.f07_kernel_rates.drawing import Separation, draw_compositions, draw_controls, draw_rates
from bnrank.figures.harness.claims import Claim, above, at_most, below
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section

OFF = 0.15  # largest relative difference of a fitted exponent from alpha / d
MISSING = 0.05  # largest share of the predicted error beyond the cutoff at the largest N: moves exponents by 0.015
APART = 0.3  # least difference of exponents, by the lower end of its interval, for which the control is behind


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
    """Return the claims that on compositions the error decays faster for deep networks than for kernels."""
    result = []
    for inner, (deep, kernel) in pairs.items():
        what = f"composition, inner dimension {inner}"
        over = "error of the network over the kernel's"
        last = (deep.errors[:, -1] / kernel.errors[:, -1]).max()
        result += [
            _apart(f"{what}: exponent of the network less that of the kernel", deep, kernel, 0),
            below(f"{what}: {over} at N = {deep.sizes[-1]:g}, largest over draws", last, 1),
        ]
    return tuple(result)


def field_claims(pairs: Mapping[int, tuple[Course, Course]], deep: Course) -> tuple[Claim, ...]:
    """Return the claims on the control in which no small dimension is hidden: with one, the network is faster."""
    named = f"{_range(deep)}: exponent of the network less that on a random field, where no dimension is hidden"
    return tuple(
        _apart(f"composition, inner dimension {inner}, {named}", pair[0], deep, APART) for inner, pair in pairs.items()
    )


def square_claims(pairs: Mapping[int, tuple[Course, Course]], squares: Course, turn: float) -> tuple[Claim, ...]:
    """Return the claims on the control of ten inner dimensions, in which every output is a function of squares.

    Up to ``turn`` samples the network's error decays faster with a small inner dimension; from there on, faster on the
    control.
    """
    early, late = squares.within(0, turn), squares.within(turn, np.inf)
    named = "exponent of the network less that with as many inner dimensions as inputs"
    result = []
    for inner, (deep, _) in pairs.items():
        what = f"composition, inner dimension {inner}"
        result += [
            _apart(f"{what}, {_range(early)}: {named}", deep.within(0, turn), early, APART),
            _behind(f"{what}, {_range(late)}: {named}", deep.within(turn, np.inf), late),
        ]
    return tuple(result)


def _apart(name: str, faster: Course, slower: Course, bound: float) -> Claim:
    """Return the claim that a difference of exponents is above a bound, by the lower end of its interval."""
    low = faster.faster(slower)[1]
    return above(f"{name}, lower end of the 95% interval ({_difference(faster, slower)})", low, bound)


def _behind(name: str, slower: Course, faster: Course) -> Claim:
    """Return the claim that a difference of exponents is below 0, by the upper end of its interval."""
    high = slower.faster(faster)[2]
    words = f"{name}, upper end of the 95% interval ({_difference(slower, faster)})"
    return below(words, high, 0, note=": the control's error falls faster")


def _difference(first: Course, second: Course) -> str:
    of_first, of_second = first.exponent[0], second.exponent[0]
    return f"{of_first:.2f} and {of_second:.2f}, mean difference {of_first - of_second:.2f}"


def _range(c: Course) -> str:
    return f"N = {c.sizes[0]:g} to {c.sizes[-1]:g}"


def separations_of(
    pairs: Mapping[int, tuple[Course, Course]], controls: Mapping[str, Course], turn: float
) -> list[Separation]:
    """Return the networks on compositions and on controls up to ``turn`` samples, from there on, and over all N."""
    spans = ((0.0, turn), (turn, np.inf), (0.0, np.inf))
    return [
        (f"inner dimension {inner}", name, deep.within(*span), control.within(*span))
        for name, control in controls.items()
        for inner, (deep, _) in pairs.items()
        for span in spans
    ]


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Fit kernels to targets of prescribed decay, then networks and kernels to compositions and to a control."""
    s = settings
    courses = [c for d in s.dims for c in computation.decay_courses(d, s.alphas, s.sizes, range(s.draws), s.n_test)]
    pairs = {inner: on_composition(folder, progress, inner, s) for inner in s.inners}
    squares = on_composition(folder, progress, s.d_in, s)
    field = computation.on_field(folder, progress, s)
    named = {f"Composition, d = {s.d_in}, inner dimension {inner}": pair for inner, pair in pairs.items()}
    named[f"Control: {s.d_in} inner dimensions, all squares"] = squares
    named[f"Control: random field in {s.d_in} dimensions"] = field
    controls = {f"{s.d_in} squares": squares[0], "random field": field[0]}
    separations = separations_of(pairs, controls, s.turn)
    networks = {f"inner dimension {inner}": deep for inner, (deep, _) in pairs.items()} | controls
    pictures = {
        "kernel-rates": draw_rates(courses),
        "compositions": draw_compositions(named),
        "controls": draw_controls(networks, separations, s.turn),
    }
    captions = {
        "kernel-rates": "Kernel ridge regression on targets with coefficients ||m||^(-alpha-d): geometric mean and "
        "range over draws.",
        "compositions": "Deep networks and kernels: geometric mean and range over draws of the task.",
        "controls": "Left: the networks of all tasks; the line marks where ranges of N meet. Right: exponents of the "
        "network on a composition less those on a control, with 95 percent intervals over draws; errors above 1 count "
        "as 1.",
    }
    against = (*field_claims(pairs, field[0]), *square_claims(pairs, squares[0], s.turn))
    claims = (*rate_claims(courses), *composition_claims(pairs), *against)
    return Outcome(claims=claims, sections=_sections(courses, named, separations), pictures=pictures, captions=captions)


def _sections(
    courses: Sequence[Decay], pairs: Mapping[str, tuple[Course, Course]], separations: Sequence[Separation]
) -> tuple[Section, ...]:
    rates = (
        "Targets on the d-torus with uniform inputs, |beta_m|^2 ~ ||m||^(-alpha-d), random phases, no noise. On the "
        "torus embedded in 2 d dimensions Fourier modes are the eigenfunctions of the Matern kernel (3/2), with "
        "eigenvalues ~ ||m||^(-3-d); the rate N^(-alpha/d) does not saturate as long as alpha < 2 (3 + d). The source "
        "prints monomials and no distribution."
    )
    compositions = (
        "y = h(z), z_j the squared norm of the j-th block of x ~ N(0, I), standardized; h has d_out = 10 cosines of "
        "random frequency, whose arguments have standard deviation 2 on average. Kernels: Gaussian or Laplace, length "
        "scale and ridge by three-fold cross-validation. The network's ridge is the same for all N. Two controls, not "
        "in the source: with as many inner dimensions as inputs every output is a function of one sum of squares; a "
        f"Gaussian random field whose power decays as ||w||^(-{FIELD}-d_in) in the frequency w, drawn jointly at all "
        "samples from the Cholesky factor of its kernel, has no inner map, and no method has a smaller expected "
        "squared error on it than kernel regression with this kernel. Both controls have the inputs and the initial "
        "networks of the compositions. In exponents, errors above 1 count as 1."
    )
    differences = "Exponents of the network on a composition less those on a control, draw by draw."
    return (
        Section("Targets of prescribed decay", text=rates, rows=[_decay_row(c) for c in courses]),
        Section(
            "Networks and kernels", text=compositions, rows=[_row(t, c) for t, pair in pairs.items() for c in pair]
        ),
        Section("Differences of exponents", text=differences, rows=[_difference_row(*d) for d in separations]),
    )


def _difference_row(name: str, control: str, first: Course, second: Course) -> dict[str, object]:
    ends = dict(zip(("difference", "95% from", "to"), first.faster(second), strict=True))
    exponents = {"exponent": first.exponent[0], "of the control": second.exponent[0]}
    return {"task": name, "control": control, "over": _range(first), **exponents, **ends}


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
    draws=30, n_test=4000, sizes_composition=(100, 200, 400, 800, 1600, 3200), seeds=tuple(range(20, 30)), steps=1000
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
    version=4,
)
