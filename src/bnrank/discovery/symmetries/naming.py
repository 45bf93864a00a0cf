"""A readable basis of an algebra of affine fields: rotations, scalings, shears, and the rest as formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bnrank.discovery.symmetries import algebra
from bnrank.discovery.symmetries.coordinates import Coordinates
from bnrank.discovery.symmetries.pieces import Piece, Search, centers, common, scaled, sparse
from bnrank.discovery.symmetries.turning import rotated
from bnrank.discovery.symmetries.wording import SMALL, combination, echelon, field_text, point_text

__all__ = ["named", "translations"]

ROUGH = 0.03  # of the largest: entries of directions that are not exact are left out of texts below it
MULTIPLES = 12  # of the exponents of a scaling that are tried to make them whole numbers


def translations(directions: Tensor, residual: float, names: Sequence[str], units: Tensor, exact: bool) -> list[Piece]:
    """Return one piece for the directions of x, the columns of (d, m), that a function ignores.

    ``units`` (d,) are those of the columns. Texts have 1 before the column that moves most in these units, and leave
    out what moves less than 3 percent of it where directions are not exact.
    """
    if not directions.shape[1]:
        return []
    basis = echelon((directions / units[:, None]).T).T * units[:, None]
    basis = basis / basis.norm(dim=0)
    fields = torch.cat([basis.new_zeros(basis.shape[1], len(basis), len(basis)), basis.T[..., None]], 2)
    small = SMALL if exact else ROUGH
    most = (basis / units[:, None]).abs().argmax(0)
    written = basis / basis.gather(0, most[None])
    text = "translation along " + ", ".join(combination(column, names, units, small) for column in written.T)
    return [Piece("translation", text, fields, residual, basis)]


def named(
    fields: Tensor,
    coordinates: Coordinates,
    names: Sequence[str],
    holds: Callable[[Tensor], bool],
    residual: Callable[[Tensor], float],
    exact: bool,
) -> list[Piece]:
    """Return pieces that together span fields, (k, q, q + 1) orthonormal in the coordinates.

    Ideal fields take the place of those found only where ``holds`` says that they leave f alone as well.
    """
    search = Search(coordinates, names, holds, residual, exact)
    pieces: list[Piece] = []
    for part in (rotated, _scalings):
        if len(fields):
            found, ideal = part(fields, search)
            pieces += found
            fields = _rest(fields, ideal, coordinates)
    if len(fields):
        pieces += _formulas(fields, search)
    return pieces


def _rest(fields: Tensor, ideal: Tensor, where: Coordinates) -> Tensor:
    """Return the part of the span of fields that is orthogonal, in standardized columns, to that of the ideal ones."""
    if not len(ideal):
        return fields
    left = len(fields) - len(ideal)
    basis = torch.linalg.qr(where.standardized(where.to_x(ideal)).flatten(1).T)[0]
    turn = torch.linalg.svd(where.standardized(where.to_x(fields)).flatten(1) @ basis)[0]
    flat = turn[:, len(fields) - left :].T @ fields.flatten(1)
    return torch.linalg.qr(flat.T)[0].T.reshape(left, *fields.shape[1:])


def _scalings(fields: Tensor, search: Search) -> tuple[list[Piece], Tensor]:
    """Return the fields that stretch columns of x about a point."""
    where, d = search.coordinates, len(search.names)
    for _, center in centers(fields, search):
        family = torch.zeros(d, d, d + 1, dtype=fields.dtype)
        index = torch.arange(d)
        family[index, index, index] = 1.0
        family[index, index, -1] = -center
        mapped = where.from_x(family)
        ideal = common(fields, mapped, search.bar)
        if not len(ideal) or not search.holds(ideal):
            continue
        weights = torch.linalg.lstsq(mapped.flatten(1).T, ideal.flatten(1).T, driver="gelsd").solution.T
        weights = _whole(echelon(weights))
        ideal = torch.einsum("ad,dij->aij", weights, mapped)
        text = "; ".join(_scaling_text(row, search.names) for row in weights)
        text += f" about {point_text(center, search.names, where.spread)}"
        piece = Piece("scaling", text, where.to_x(ideal), search.residual(ideal), center.new_zeros(d, 0), center)
        return [piece], ideal
    return [], fields[:0]


def _formulas(fields: Tensor, search: Search) -> list[Piece]:
    """Return one piece per field of an echelon basis."""
    where = search.coordinates
    if search.exact:
        written = sparse(where.to_x(fields), where)
        inner = where.from_x(written)
    else:
        inner, written = fields, scaled(where.to_x(fields), where.spread)
    pieces = []
    for field, text in zip(inner, written, strict=True):
        kind = "shear" if algebra.nilpotent(field[:, :-1], 1e-6 if search.exact else 1e-2) else "affine"
        none = text.new_zeros(len(text), 0)
        words = field_text(text, search.names, where.spread)
        pieces.append(Piece(kind, words, text[None], search.residual(field[None]), none))
    return pieces


def _whole(weights: Tensor) -> Tensor:
    """Return rows (k, d) times the least of 1, ..., 12 that makes all their entries whole numbers, where one does."""
    rows = []
    for row in weights:
        times = [row * factor for factor in range(1, MULTIPLES + 1)]
        rows.append(next((new for new in times if float((new - new.round()).abs().max()) < 1e-6), row))
    return torch.stack(rows)


def _scaling_text(weights: Tensor, names: Sequence[str]) -> str:
    """Write the scaling of columns by e^{w t}."""
    parts = []
    for name, weight in zip(names, weights.tolist(), strict=True):
        if abs(weight) > 1e-6:
            size = "" if abs(abs(weight) - 1) < 5e-4 else f"{abs(weight):.3g} "
            parts.append(f"{name} by e^{{{'-' if weight < 0 else ''}{size}t}}")
    return "scaling of " + ", ".join(parts)
