"""The result of `symmetries`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.discovery.symmetry_search import picture
from bnrank.discovery.symmetry_search.finite import SMALL, FiniteTest
from bnrank.discovery.symmetry_search.pieces import Piece
from bnrank.discovery.symmetry_search.spectrum import Found

__all__ = ["Symmetries", "draw"]

SHOWN = 12  # finite symmetries in the summary


@dataclass(frozen=True)
class Symmetries:
    """Transformations of x that leave a function alone.

    Attributes
    ----------
    dimension : int
        Number of infinitesimal generators: translations along directions that f ignores, and affine fields of the
        coordinates that are left. (Along an ignored direction any multiple of a translation is a symmetry too, with
        the same orbits; these are not counted.)
    interval : (int, int)
        Least and largest count over resamples of the data.
    status : str
        "exact": up to rounding; "approximate": below a gap, changes of f up to ``residual``; "none"; "undetermined":
        the evidence does not settle it (see ``reason``), ``dimension`` counts what is settled.
    reason : str
        What the status rests on.
    pieces : tuple of Piece
        The generators, put together by what they do.
    generators : Tensor
        All of them, x -> A x + b, each [A b], (dimension, d, d + 1), float64; none for fields that are functions of
        the user's.
    residual : float
        Largest relative singular value of a piece, on held-out data where given; 0 if there is none.
    values : Tensor
        Relative singular values of all fields looked at, ascending.
    translations, fields : Found
        How the directions that f ignores, and the other fields, were found.
    domain_dimension : int
        Dimension of the affine span of the data, Omega.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - domain_dimension). What f does along them the
        data do not say; fields live in the span.
    orbit_dimension : int or None
        Largest dimension of the orbit of a sample; None where generators are not known well enough to say.
    quotient_dimension : int or None
        dim Omega / G, domain_dimension - orbit_dimension: an upper bound on the rank of f (T17).
    rank : int
        Largest rank of Jf on the span of the data, at the samples: singular values above 1e-3 of the largest. Where
        symmetries are approximate it can be more than ``quotient_dimension``, by values that the error of f explains.
    finite : tuple of FiniteTest
        Flips, swaps and reflections, tested one by one.
    error : float or None
        Relative error of f that was known.
    samples : int
        Number of rows of x that were used.
    names : tuple of str
        Of the columns of x.

    Examples
    --------
    See :func:`bnrank.discovery.symmetries.symmetries`.
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
    error: float | None
    samples: int
    names: tuple[str, ...]

    @property
    def held(self) -> tuple[FiniteTest, ...]:
        """The finite symmetries that f has, exactly or approximately."""
        return tuple(test for test in self.finite if test.verdict in ("exact", "approximate"))

    def moved(self, x: Tensor | NDArray[np.float64], index: int, t: float) -> Tensor:
        """Return x moved along generator ``index`` for time t, exp(t v) x, (N, d): f is (nearly) the same there.

        Raises
        ------
        IndexError, ValueError
            If there is no such generator or x does not fit.

        Examples
        --------
        >>> import torch
        >>> from bnrank.discovery.symmetry_search import symmetries
        >>> norm = torch.nn.Sequential(torch.nn.Identity())
        >>> norm.forward = lambda x: x.square().sum(1, keepdim=True)
        >>> found = symmetries(norm, torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))
        >>> round(float(found.moved(torch.tensor([[3.0, 4.0]]), 0, 1.0).norm()), 9)
        5.0
        """
        points = torch.as_tensor(x).double()
        d = len(self.names)
        if points.ndim != 2 or points.shape[1] != d:
            raise ValueError(f"x: got shape {tuple(points.shape)}, expected (N, {d})")
        if not -len(self.generators) <= index < len(self.generators):
            raise IndexError(f"index: got {index}, expected that of one of {len(self.generators)} generators")
        flow = torch.linalg.matrix_exp(t * torch.nn.functional.pad(self.generators[index], (0, 0, 0, 1)))
        return points @ flow[:d, :d].T + flow[:d, d]

    def summary(self) -> str:
        """Return a page of text: what was found, how sure it is, and what it says about the rank."""
        low, high = self.interval
        span = f", {low} to {high} over resamples" if low != high else ""
        what = "symmetry" if self.dimension == 1 else "symmetries"
        lines = [f"{self.dimension} infinitesimal {what} ({self.status}{span})", f"  {self.reason}"]
        lines += [f"  {piece.text} (residual {piece.residual:.2g})" for piece in self.pieces]
        k = self.fields.gap.candidate
        if 0 < k < len(self.values):
            lines.append(
                f"  singular values around place {k}: "
                + ", ".join(f"{float(v):.3g}" for v in self.values[max(0, k - 2) : k])
                + " | "
                + ", ".join(f"{float(v):.3g}" for v in self.values[k : k + 2])
            )
        if self.left_out.shape[1]:
            lines.append(
                f"  the data span {self.domain_dimension} of {len(self.names)} dimensions: nothing is said of "
                f"the other {self.left_out.shape[1]}"
            )
        if self.quotient_dimension is not None:
            lines.append(
                f"  orbits have dimension {self.orbit_dimension}: dim Omega / G = {self.quotient_dimension}, rank of "
                f"the Jacobian {self.rank}"
            )
        else:
            lines.append(f"  rank of the Jacobian {self.rank}; the dimension of orbits is not settled")
        exact = [test.text for test in self.held]
        away, unknown = (sum(test.verdict == v for test in self.finite) for v in ("off the data", "undetermined"))
        if self.finite:
            lines.append(
                f"{len(exact)} of {len(self.finite)} finite symmetries tested hold"
                + (f"; {away} lead off the data" if away else "")
                + (f"; {unknown} change f by more than {SMALL}, but within its error: undetermined" if unknown else "")
            )
            lines += [
                f"  {test.text} ({test.verdict}, change {test.change:.2g})"
                for test in sorted(self.held, key=lambda test: test.change)[:SHOWN]
            ]
            if len(exact) > SHOWN:
                lines.append(f"  and {len(exact) - SHOWN} more, in .held")
        return "\n".join(lines)

    def plot(self, axes: Any = None) -> NDArray[np.object_]:
        """Draw the singular values with the gap, and how much f changes under the finite maps that were tested.

        Parameters
        ----------
        axes : two matplotlib axes, optional
            To draw on; new ones by default.

        Returns
        -------
        ndarray
            The two axes.

        Examples
        --------
        >>> import torch
        >>> from bnrank.discovery.symmetry_search import symmetries
        >>> found = symmetries(torch.nn.Tanh(), torch.randn(40, 2, generator=torch.Generator().manual_seed(0)))
        >>> [ax.get_title() for ax in found.plot()]
        ['0 infinitesimal symmetries (none)', '0 of 7 finite symmetries hold']
        """
        return picture.draw(self, axes)

    def __str__(self) -> str:
        return self.summary()


def stacked(pieces: tuple[Piece, ...], d: int) -> Tensor:
    """Return the generators of all pieces, (k, d, d + 1)."""
    return torch.cat([torch.zeros(0, d, d + 1, dtype=torch.float64), *(piece.generators for piece in pieces)])


if TYPE_CHECKING:
    from bnrank.discovery.symmetry_search.result import Symmetries


BELOW, ABOVE, AWAY = OKABE_ITO[0], OKABE_ITO[1], "0.6"
LEAST = 1e-17  # where values of 0 are drawn
MOST_BARS = 30


def draw(found: Symmetries, axes: Any = None) -> NDArray[np.object_]:
    """Draw on two axes and return them."""
    left, right = axes_for(axes, (1, 2), (10.0, 4.0))
    _values(found, left)
    _maps(found, right)
    result = np.empty(2, dtype=object)
    result[:] = [left, right]
    return result


def _values(found: Symmetries, ax: Axes) -> None:
    many = f"{found.dimension} infinitesimal {'symmetry' if found.dimension == 1 else 'symmetries'} ({found.status})"
    dress(ax, "place", "relative singular value s", many)
    ax.set_yscale("log")
    groups = [(found.translations, "s", "constant fields"), (found.fields, "o", "fields of what is left")]
    for part, marker, label in groups:
        values = part.values.clamp(min=LEAST).numpy()
        if not len(values):
            continue
        kept = len(part.vectors)
        place = np.arange(1, len(values) + 1)
        ax.plot(place[:kept], values[:kept], marker, color=BELOW, label=f"{label}: symmetries" if kept else None)
        ax.plot(place[kept:], values[kept:], marker, color=ABOVE, mfc="none", label=f"{label}: others")
    ax.legend(fontsize=8)


def _maps(found: Symmetries, ax: Axes) -> None:
    dress(ax, "change of f", "", f"{len(found.held)} of {len(found.finite)} finite symmetries hold")
    shown = sorted(found.finite, key=lambda test: test.change)[:MOST_BARS]
    colors = {"exact": BELOW, "approximate": BELOW, "off the data": AWAY, "undetermined": AWAY, "no": ABOVE}
    ax.barh(range(len(shown)), [test.change for test in shown], color=[colors[test.verdict] for test in shown])
    ax.set_yticks(range(len(shown)), [f"{test.text} ({test.verdict})" for test in shown], fontsize=7)
    ax.invert_yaxis()
