"""The result of `symmetries`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.results import Printed
from bnrank.discovery.symmetry_search.finite import SMALL, FiniteTest
from bnrank.discovery.symmetry_search.pieces import Piece
from bnrank.discovery.symmetry_search.spectrum import Found, moved

MAX_SHOWN = 12  # finite symmetries in the summary
BELOW, ABOVE, AWAY = OKABE_ITO[0], OKABE_ITO[1], "0.6"
FLOOR = 1e-17  # where values of 0 are drawn
MAX_BARS = 30


@dataclass(frozen=True)
class Symmetries(Printed):
    """Transformations of x that leave a function unchanged.

    Attributes
    ----------
    dimension : int
        Number of infinitesimal generators: translations along directions that f ignores, and affine fields of the
        remaining coordinates. (Multiples of a translation along an ignored direction by functions of x are symmetries
        too, with the same orbits; these are not counted.)
    interval : (int, int)
        Smallest and largest count over resamples of the data.
    status : str
        "exact": up to rounding; "approximate": below a gap, changes of f up to ``residual``; "none"; "undetermined":
        the evidence does not settle it (see ``reason``), ``dimension`` counts what is settled.
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
        The evidence for the directions that f ignores, and for the other fields.
    domain_dimension : int
        Dimension of the affine span of the data, Omega.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - domain_dimension); the result does not cover
        them.
    orbit_dimension : int or None
        Largest dimension of the orbit of a sample; None where the generators are not known well enough.
    quotient_dimension : int or None
        dim Omega / G, domain_dimension - orbit_dimension: an upper bound on the rank of f (T17).
    rank : int
        Largest rank of Jf on the span of the data, at the samples: singular values above 1e-3 of the largest. Where
        symmetries are approximate it can exceed ``quotient_dimension``, by values that the error of f explains.
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
        """Return x moved along generator ``index`` for time t, exp(t v) x, (N, d), where f has (nearly) the same value.

        Raises
        ------
        IndexError, ValueError
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
        points = torch.as_tensor(x).double()
        d, count = len(self.names), len(self.generators)
        validation.expect(points.ndim == 2 and points.shape[1] == d, "x", f"shape {tuple(points.shape)}", f"(N, {d})")
        if not -count <= index < count:
            raise IndexError(f"index: got {index}, expected that of one of {count} generators")
        return moved(points, t * self.generators[index])

    def summary(self) -> str:
        """Return a page of text: the symmetries, the evidence for them, and the consequence for the rank."""
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
        left, right = axes_for(axes, (1, 2), (10.0, 4.0))
        self._draw_values(left)
        self._draw_maps(right)
        result = np.empty(2, dtype=object)
        result[:] = [left, right]
        return result

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
