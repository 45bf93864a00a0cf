"""The result of `symmetries`, and the tests of finite symmetries: sign flips, swaps and reflections of x."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.results import Printed
from bnrank.discovery.symmetry_search import algebra
from bnrank.discovery.symmetry_search.fields import Coordinates, read_affine, transformed
from bnrank.discovery.symmetry_search.pieces import Piece, combination
from bnrank.discovery.symmetry_search.problem import outputs_of
from bnrank.discovery.symmetry_search.spectrum import EXACT, WITHIN, Found, moved

MAX_SHOWN = 12  # finite symmetries in the summary
BELOW, ABOVE, AWAY = OKABE_ITO[0], OKABE_ITO[1], "0.6"
FLOOR = 1e-17  # values of 0 are drawn here
MAX_BARS = 30
MAX_FLIPPED = 32  # with more columns, pairs of flips are not tested
MAX_SWAPPED = 64  # with more columns, swaps are not tested
NEAR = 2.0  # in units of the typical distance between samples; images farther away are off the data
MAX_PROBES = 128  # images whose distance to the data is measured
SMALL = 0.1  # the largest change of a symmetry, for any error of f

Map = tuple[str, str, Tensor]  # kind, text, [A b]


@dataclass(frozen=True)
class FiniteTest:
    """The test of one transformation x -> A x + b.

    Attributes
    ----------
    kind : str
        "sign flip", "swap", "shift", "reflection" or "given".
    text : str
        Description.
    map : Tensor
        [A b], (d, d + 1).
    change : float
        rms_i ||f(A x_i + b) - f(x_i)|| / rms_ij ||f(x_i) - f(x_j)||: 0 for a symmetry, about 1 for a map unrelated to
        f.
    distance : float
        Median distance of images to the nearest sample, over the median distance of samples to their nearest neighbor,
        in standardized columns.
    verdict : str
        "exact"; "approximate": change up to 0.1, and up to 1.5 times the relative error of f where known;
        "undetermined": more than 0.1, but no more than 1.5 times the error, which can hide a symmetry or its absence
        (noise of the targets counts as error); "no"; or "off the data": ``distance`` exceeds 2, where f is unknown.
    """

    kind: str
    text: str
    map: Tensor
    change: float
    distance: float
    verdict: str


@dataclass(frozen=True)
class Symmetries(Printed):
    """Transformations of x that leave a function unchanged.

    Attributes
    ----------
    dimension : int
        Number of infinitesimal generators: translations along directions that f ignores, and affine fields of the
        remaining coordinates. (A translation along an ignored direction times a function of x is also a symmetry, with
        the same orbits; these are not counted.)
    interval : (int, int)
        Smallest and largest count over resamples of the data.
    status : str
        "exact": up to rounding; "approximate": below a gap, changes of f up to ``residual``; "none"; "undetermined":
        the evidence is inconclusive (see ``reason``), and ``dimension`` counts the established generators.
    reason : str
        The evidence for the status.
    pieces : tuple of Piece
        The generators, grouped by their action.
    generators : Tensor
        All generators, x -> A x + b, each [A b], (dimension, d, d + 1), float64; none for fields given as functions.
    residual : float
        Largest relative singular value of a piece, on held-out data where given; 0 if there is none.
    values : Tensor
        Relative singular values of all fields considered, ascending.
    translations, fields : Found
        The evidence for ignored directions, and for the other fields.
    domain_dimension : int
        Dimension of the affine span of the data, Omega.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - domain_dimension); not covered by the result.
    orbit_dimension : int or None
        Largest dimension of the orbit of a sample; None where the generators are not known accurately enough.
    quotient_dimension : int or None
        dim Omega / G, domain_dimension - orbit_dimension: an upper bound on the rank of f (T17).
    rank : int
        Largest rank of Jf on the span of the data, at the samples: singular values above 1e-3 of the largest. Where
        symmetries are approximate it can exceed ``quotient_dimension``; the error of f explains the excess.
    finite : tuple of FiniteTest
        The tests of flips, swaps and reflections.
    rtol : float or None
        The relative error of f, where known.
    samples : int
        Number of rows of x used.
    names : tuple of str
        Names of the columns of x.

    Examples
    --------
    See :func:`bnrank.discovery.symmetries`.
    """

    dimension: int
    interval: tuple[int, int]
    status: str
    reason: str
    pieces: tuple[Piece, ...]
    generators: Tensor
    residual: float
    values: Tensor
    translations: Found
    fields: Found
    domain_dimension: int
    left_out: Tensor
    orbit_dimension: int | None
    quotient_dimension: int | None
    rank: int
    finite: tuple[FiniteTest, ...]
    rtol: float | None
    samples: int
    names: tuple[str, ...]

    @property
    def held(self) -> tuple[FiniteTest, ...]:
        """The finite symmetries that f has, exactly or approximately."""
        return tuple(test for test in self.finite if test.verdict in ("exact", "approximate"))

    def moved(self, x: Tensor | NDArray[np.float64], index: int, t: float) -> Tensor:
        """Return x moved along generator ``index`` for time t, exp(t v) x, (N, d); f is (nearly) unchanged.

        Raises
        ------
        TypeError, ValueError
            If there is no such generator or x does not fit.

        Examples
        --------
        >>> from bnrank.discovery import symmetries
        >>> norm = torch.nn.Sequential(torch.nn.Identity())
        >>> norm.forward = lambda x: x.square().sum(1, keepdim=True)
        >>> found = symmetries(norm, torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))
        >>> round(float(found.moved(torch.tensor([[3.0, 4.0]]), 0, 1.0).norm()), 9)
        5.0
        """
        points = validation.real(x, "x").double()
        d, count = len(self.names), len(self.generators)
        validation.expect(points.ndim == 2 and points.shape[1] == d, "x", f"shape {tuple(points.shape)}", f"(N, {d})")
        validation.expect(count, "index", f"{index!r}", "no call, since there is no generator")
        index = validation.integer(index, "index", -count, count - 1)
        return moved(points, validation.number(t, "t") * self.generators[index])

    def summary(self) -> str:
        """Return a page of text: the symmetries, the evidence for them, and the implied bound on the rank."""
        return "\n".join([*self._infinitesimal(), *self._finite()])

    def _infinitesimal(self) -> Iterator[str]:
        low, high = self.interval
        span = f", {low} to {high} over resamples" if low != high else ""
        what = "symmetry" if self.dimension == 1 else "symmetries"
        yield f"{self.dimension} infinitesimal {what} ({self.status}{span})"
        yield f"  {self.reason}"
        yield from (f"  {piece.text} (residual {piece.residual:.2g})" for piece in self.pieces)
        k = self.fields.gap.candidate
        if 0 < k < len(self.values):
            shown = [f"{float(value):.3g}" for value in self.values[: k + 2]]
            yield f"  singular values around index {k}: {', '.join(shown[:k][-2:])} | {', '.join(shown[k:])}"
        if missing := self.left_out.shape[1]:
            dimensions = f"{self.domain_dimension} of {len(self.names)} dimensions"
            yield f"  the data span {dimensions}: the result does not cover the other {missing}"
        if self.quotient_dimension is None:
            yield f"  rank of the Jacobian {self.rank}; the dimension of orbits is not settled"
        else:
            quotient = f"dim Omega / G = {self.quotient_dimension}, rank of the Jacobian {self.rank}"
            yield f"  orbits have dimension {self.orbit_dimension}: {quotient}"

    def _finite(self) -> Iterator[str]:
        if not self.finite:
            return
        held = sorted(self.held, key=lambda test: test.change)
        away, unknown = (sum(test.verdict == v for test in self.finite) for v in ("off the data", "undetermined"))
        off = f"; {away} lead off the data" if away else ""
        within = f"; {unknown} change f by more than {SMALL}, but within its error: undetermined" if unknown else ""
        yield f"{len(held)} of {len(self.finite)} finite symmetries tested hold{off}{within}"
        yield from (f"  {test.text} ({test.verdict}, change {test.change:.2g})" for test in held[:MAX_SHOWN])
        if len(held) > MAX_SHOWN:
            yield f"  and {len(held) - MAX_SHOWN} more, in .held"

    def plot(self, axes: Any = None) -> NDArray[np.object_]:
        """Draw the singular values with the gap, and the change of f under the finite maps; return the two axes.

        Parameters
        ----------
        axes : two matplotlib axes, optional
            Axes to draw on; new ones by default.

        Examples
        --------
        >>> from bnrank.discovery import symmetries
        >>> found = symmetries(torch.nn.Tanh(), torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))
        >>> [ax.get_title() for ax in found.plot()]
        ['0 infinitesimal symmetries (none)', '0 of 7 finite symmetries hold']
        """
        drawn: NDArray[np.object_] = axes_for(axes, (1, 2), (10.0, 4.0))
        self._draw_values(drawn[0])
        self._draw_maps(drawn[1])
        return drawn

    def _draw_values(self, ax: Axes) -> None:
        what = "symmetry" if self.dimension == 1 else "symmetries"
        dress(ax, "index", "relative singular value s", f"{self.dimension} infinitesimal {what} ({self.status})")
        ax.set_yscale("log")
        for part, marker, label in ((self.translations, "s", "constant fields"), (self.fields, "o", "other fields")):
            values = part.values.clamp(min=FLOOR).numpy()
            if not len(values):
                continue
            kept, place = len(part.vectors), np.arange(1, len(values) + 1)
            ax.plot(place[:kept], values[:kept], marker, color=BELOW, label=f"{label}: symmetries" if kept else None)
            ax.plot(place[kept:], values[kept:], marker, color=ABOVE, mfc="none", label=f"{label}: others")
        ax.legend(fontsize=8)

    def _draw_maps(self, ax: Axes) -> None:
        dress(ax, "change of f", "", f"{len(self.held)} of {len(self.finite)} finite symmetries hold")
        shown = sorted(self.finite, key=lambda test: test.change)[:MAX_BARS]
        colors = {"exact": BELOW, "approximate": BELOW, "off the data": AWAY, "undetermined": AWAY, "no": ABOVE}
        ax.barh(range(len(shown)), [test.change for test in shown], color=[colors[test.verdict] for test in shown])
        ax.set_yticks(range(len(shown)), [f"{test.text} ({test.verdict})" for test in shown], fontsize=7)
        ax.invert_yaxis()

    def __str__(self) -> str:
        return self.summary()


def candidates(coordinates: Coordinates, pieces: Sequence[Piece], names: Sequence[str]) -> list[Map]:
    """Return maps to test, (kind, text, [A b]).

    Flips of single columns and of all columns, about 0 and, where the data do not have mean 0, about the mean; flips of
    pairs; swaps of two columns; the cyclic shift and the reversal of all columns; for every detected
    rotation that preserves Euclidean length, a reflection within its space, and one of its axis if it has one.
    """
    found = [*_of_columns(coordinates, names), *_reflections(pieces, coordinates, names)]
    return [
        (kind, text, torch.cat([matrix, (point - matrix @ point)[:, None]], 1)) for kind, text, matrix, point in found
    ]


def _of_columns(coordinates: Coordinates, names: Sequence[str]) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield flips, swaps and shifts, (kind, text, A, fixed point)."""
    d, mean = len(names), coordinates.mean
    eye, zero = torch.eye(d, dtype=torch.float64), torch.zeros_like(mean)
    moving = [i for i in range(d) if bool(coordinates.out[i].any())]
    points = [(zero, "")]
    if bool((mean.abs() > 0.1 * coordinates.spread)[moving].any()):
        points.append((mean, " about the mean"))
    for point, words in points:
        for i in moving:
            yield "sign flip", f"{names[i]} -> -{names[i]}{words}", eye - 2 * torch.diag(eye[i]), point
        if d > 1:
            yield "sign flip", f"x -> -x{words}", -eye, point
    pairs = list(itertools.combinations(moving, 2))
    for i, j in pairs if 2 < d <= MAX_FLIPPED else []:
        text = f"{names[i]}, {names[j]} -> -{names[i]}, -{names[j]}"
        yield "sign flip", text, eye - 2 * torch.diag(eye[i] + eye[j]), zero
    for i, j in pairs if d <= MAX_SWAPPED else []:
        order = list(range(d))
        order[i], order[j] = j, i
        yield "swap", f"{names[i]} <-> {names[j]}", eye[order], zero
    if d > 2:
        yield "shift", "cyclic shift of all columns", eye.roll(1, 0), zero
        yield "shift", "reversal of all columns", eye.flip(0), zero


def _reflections(
    pieces: Sequence[Piece], coordinates: Coordinates, names: Sequence[str]
) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield the reflections of one rotated direction, and of the axis where there is one."""
    eye = torch.eye(len(names), dtype=torch.float64)
    hull = torch.linalg.qr(coordinates.out)[0]
    for piece in pieces:
        if piece.kind != "rotation" or piece.metric != "Euclidean" or piece.center is None:
            continue
        direction = combination(algebra.upright(piece.space[:, 0]), names)
        unit = piece.space / piece.space.norm(dim=0)
        matrix = eye - 2 * torch.outer(unit[:, 0], unit[:, 0])
        yield "reflection", f"reflection of {direction}", matrix, piece.center
        if unit.shape[1] == hull.shape[1] - 1:
            axis = hull @ torch.linalg.svd(hull.T @ unit)[0][:, -1]
            text = f"reflection of the axis {combination(algebra.upright(axis), names)}"
            yield "reflection", text, eye - 2 * torch.outer(axis, axis), piece.center


def given_maps(given: Sequence[Any], d: int) -> list[Map]:
    """Return given maps, matrices A (d, d) or pairs (A, b), as (kind, text, [A b]).

    Raises
    ------
    TypeError, ValueError
        If one is no such map.
    """
    if isinstance(given, str | Tensor) or not isinstance(given, Sequence):
        raise TypeError(f"maps: got {validation.describe(given)}, expected a sequence of matrices A or pairs (A, b)")
    return [("given", f"maps[{i}]", read_affine(one, f"maps[{i}]", d)) for i, one in enumerate(given)]


def tested(
    net: nn.Module, x: Tensor, coordinates: Coordinates, maps: Sequence[Map], rtol: float | None
) -> tuple[FiniteTest, ...]:
    """Return the tests of maps on samples (N, d), without pairs of flips of which each is a symmetry by itself."""
    before = outputs_of(net, x)
    size = math.sqrt(2 * float((before - before.mean(0)).square().sum()) / len(x))
    scaled = x / coordinates.spread
    own = torch.cdist(scaled[:MAX_PROBES], scaled)
    usual = float(own.fill_diagonal_(math.inf).min(1).values.median())
    results: list[FiniteTest] = []
    single: set[str] = set()
    for kind, text, both in maps:
        parts = text.split(" -> ")[0].split(", ")
        if kind == "sign flip" and len(parts) == 2 and single.issuperset(parts):
            continue
        images = transformed(both, x)
        change = math.sqrt(float((outputs_of(net, images) - before).square().sum()) / len(x)) / size
        near = torch.cdist(images[:MAX_PROBES] / coordinates.spread, scaled).min(1).values
        distance = float(near.median()) / max(usual, 1e-300)
        verdict = "off the data" if distance > NEAR else _verdict(change, rtol)
        if kind == "sign flip" and len(parts) == 1 and verdict in ("exact", "approximate"):
            single.add(parts[0])
        results.append(FiniteTest(kind, text, both, change, distance, verdict))
    return tuple(results)


def _verdict(change: float, rtol: float | None) -> str:
    if change <= EXACT:
        return "exact"
    if change > (SMALL if rtol is None else WITHIN * rtol):
        return "no"
    return "approximate" if change <= SMALL else "undetermined"
