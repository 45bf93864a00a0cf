"""The result of `symmetries`: what it says in words, and its picture."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.discovery.symmetry_search.evidence import NOT_SHOWN, moved
from bnrank.discovery.symmetry_search.maps import SMALL, FiniteTest
from bnrank.discovery.symmetry_search.pieces import Piece
from bnrank.discovery.symmetry_search.spectrum import Found

MAX_SHOWN = 12  # finite symmetries in the summary
BELOW, ABOVE, AWAY = OKABE_ITO[0], OKABE_ITO[1], "0.6"
FLOOR = 1e-17  # values of 0 are drawn here
MAX_BARS = 30


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
        Smallest and largest number that resamples and the evidence leave open.
    status : str
        "exact": up to rounding; "approximate": below a gap, changes of f up to ``residual``, or f is learned from data;
        "none": all fields are excluded; "undetermined": the evidence is inconclusive (see ``reason``), and
        ``dimension`` counts the established generators.
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
    scalings : Found or None
        The evidence for scalings of positive columns, translations of their logarithms; None where not searched.
    beyond : tuple of Piece
        Symmetries of f whose images are not in the range or on the values of every column, such as shifts of a column
        of 0 and 1 by a half. They are not counted.
    domain_dimension : int
        Dimension of the affine span of the data, Omega.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - domain_dimension); not covered by the result.
    orbit_dimension : int or None
        Largest dimension of the orbit of a sample; None where the generators are not known accurately enough.
    quotient_dimension : int or None
        dim Omega / G, domain_dimension - orbit_dimension: the number of quantities that f can depend on, an upper bound
        on its rank (T17).
    rank : int
        Largest rank of Jf on the span of the data, at the samples: singular values above 1e-3 of the largest. Where
        symmetries are approximate it can exceed ``quotient_dimension``; the error of f explains the excess.
    finite : tuple of FiniteTest
        The tests of flips, swaps and reflections.
    rtol : float or None
        The relative error of f, where known.
    error_source : str
        Where the error comes from, such as "held-out error", or an empty string.
    learned : bool
        Whether f is fitted to data, as far as known: an estimator, several networks, or a function with an error.
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
    scalings: Found | None
    beyond: tuple[Piece, ...]
    domain_dimension: int
    left_out: Tensor
    orbit_dimension: int | None
    quotient_dimension: int | None
    rank: int
    finite: tuple[FiniteTest, ...]
    rtol: float | None
    error_source: str
    learned: bool
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
        >>> import torch
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
        return moved(points, validation.number(t, "t") * self.generators[index].to(points.device))

    def summary(self) -> str:
        """Return a page of text: the symmetries, the evidence for them, and the implied bound on the rank."""
        return "\n".join([*self._infinitesimal(), *self._finite()])

    @property
    def headline(self) -> str:
        """The number of infinitesimal symmetries with the status, in one line."""
        low, high = self.interval
        if self.status == "undetermined":
            count = f"{self.dimension}" if self.dimension == high else f"{self.dimension} to {high}"
            return f"{count} infinitesimal {_symmetries(high)} (undetermined)"
        span = f", {low} to {high} over resamples" if low != high else ""
        return f"{self.dimension} infinitesimal {_symmetries(self.dimension)} ({self.status}{span})"

    @property
    def error_text(self) -> str:
        """What is known of f in the data, in one line."""
        if self.rtol is None:
            said = "its held-out error is unknown; give held_out=(x, y)" if self.learned else "no data to compare with"
            return f"in the data: {NOT_SHOWN} ({said})"
        return f"the error of f is {self.rtol:.2g} of the spread of the targets ({self.error_source})"

    def _infinitesimal(self) -> Iterator[str]:
        yield f"{self.headline}: gradual changes of x that leave f(x) unchanged"
        for piece in self.pieces:
            yield f"  {piece.text}"
            yield from (f"    {line}" for line in piece_lines(piece, known=self.rtol is not None))
        yield from (f"  only beyond the data, not counted: {piece.text}" for piece in self.beyond)
        yield f"  because {self.reason}"
        if self.rtol is not None or self.pieces:
            yield f"  {self.error_text}"
        if missing := self.left_out.shape[1]:
            dimensions = f"{self.domain_dimension} of {len(self.names)} dimensions"
            yield f"  the data span {dimensions}: the result does not cover the other {missing}"
        yield f"  {self.quotient_text}"

    @property
    def quotient_text(self) -> str:
        """The number of quantities that f can depend on, in one line."""
        across = f"x varies in {self.domain_dimension} dimension{'s' * (self.domain_dimension != 1)}"
        rank = f"at single samples f changes in {self.rank}"
        if self.quotient_dimension is None:
            return f"{across}, {rank}; how many the symmetries remove is not settled"
        if not self.orbit_dimension:
            return f"{across}, {rank}"
        left = f"f depends on {'at most ' if self.status == 'undetermined' else ''}{self.quotient_dimension}"
        return f"{across}, the symmetries remove {self.orbit_dimension}: {left} (dim Omega / G); {rank}"

    def _finite(self) -> Iterator[str]:
        if not self.finite:
            return
        held = sorted(self.held, key=lambda test: test.change)
        away, unknown = (sum(test.verdict == v for test in self.finite) for v in ("off the data", "undetermined"))
        off = f"; {away} lead off the data" if away else ""
        within = f"; {unknown} change f by more than {SMALL}, but within its error: undetermined" if unknown else ""
        yield f"{len(held)} of {len(self.finite)} finite symmetries (flips, swaps) tested hold{off}{within}"
        for test in held[:MAX_SHOWN]:
            data = "" if self.rtol is None else f"; in the data: {test.in_data}"
            yield f"  {test.text} ({test.verdict}, change {test.change:.2g}{data})"
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
        >>> import torch
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
        dress(ax, "index", "relative singular value s", self.headline)
        ax.set_yscale("log")
        kinds = [(self.translations, "s", "constant fields"), (self.fields, "o", "other fields")]
        kinds += [] if self.scalings is None else [(self.scalings, "^", "scalings of positive columns")]
        for part, marker, label in kinds:
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

    def _content(self) -> list[Part]:
        rows = [
            {"map": test.text, "verdict": test.verdict, "change": f"{test.change:.2g}", "in the data": test.in_data}
            for test in sorted(self.finite, key=lambda test: test.change)
        ]
        return [*self.summary().split("\n"), Table("Finite symmetries that were tested", rows, printed=False)]


def piece_lines(piece: Piece, *, known: bool) -> Iterator[str]:
    """Yield what is known of a piece in the model and, where the error of f is known, in the data."""
    yield f"in the model f: {piece.in_model} (residual {piece.residual:.2g}; 0 is exact, 1 unrelated to f)"
    if known:
        moving = "" if math.isnan(piece.change) else f" (moving samples changes f by {piece.change:.2g})"
        yield f"in the data: {piece.in_data}{moving}"


def _symmetries(count: int) -> str:
    return "symmetry" if count == 1 else "symmetries"
