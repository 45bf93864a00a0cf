"""A readable basis of an algebra of affine fields: rotations, scalings, shears, and the rest as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank.discovery.symmetries import algebra
from bnrank.discovery.symmetries.blocks import rotation_blocks
from bnrank.discovery.symmetries.coordinates import Coordinates
from bnrank.discovery.symmetries.wording import axes_of, combination, echelon, field_text, point_text, readable, upright

__all__ = ["Piece", "named", "translations"]


@dataclass(frozen=True)
class Piece:
    """Generators that belong together.

    Attributes
    ----------
    kind : str
        "translation", "rotation", "scaling", "shear", "affine" (none of these) or "field" (of the user's functions).
    text : str
        What they do, in names of columns.
    generators : Tensor
        x -> A x + b, each [A b], (k, d, d + 1); k = 0 for fields that are not affine.
    residual : float
        Largest relative singular value of their span on held-out data, or on the data where there are none.
    space : Tensor
        Of rotations: basis of the directions that are turned, (d, n); of translations: the directions, (d, k). Else
        (d, 0).
    centre : Tensor or None
        A point of x that rotations and scalings leave where it is, (d,).
    metric : str
        Of rotations: the lengths they keep, "Euclidean", "standardised", "covariance" or "ellipsoid". Else "".
    """

    kind: str
    text: str
    generators: Tensor
    residual: float
    space: Tensor
    centre: Tensor | None = None
    metric: str = ""

    def __len__(self) -> int:
        return len(self.generators)


@dataclass(frozen=True)
class _Search:
    """What the parts of naming share."""

    coordinates: Coordinates
    names: Sequence[str]
    holds: Callable[[Tensor], bool]
    residual: Callable[[Tensor], float]
    exact: bool

    @property
    def bar(self) -> float:
        """The least cosine between a field found and an ideal one."""
        return 1 - 1e-9 if self.exact else 0.9


def translations(directions: Tensor, residual: float, names: Sequence[str]) -> list[Piece]:
    """Return one piece for the directions of x, the columns of (d, m), that a function ignores."""
    if not directions.shape[1]:
        return []
    basis = echelon(directions.T).T
    basis = basis / basis.norm(dim=0)
    fields = torch.cat([basis.new_zeros(basis.shape[1], len(basis), len(basis)), basis.T[..., None]], 2)
    text = "translation along " + ", ".join(combination(column, names) for column in basis.T)
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
    search = _Search(coordinates, names, holds, residual, exact)
    pieces: list[Piece] = []
    for part in (_rotations, _scalings):
        if len(fields):
            found, ideal = part(fields, search)
            pieces += found
            fields = _rest(fields, ideal, coordinates)
    if len(fields):
        pieces += _formulas(fields, search)
    return pieces


def common(fields: Tensor, family: Tensor, bar: float) -> Tensor:
    """Return orthonormal members of the span of a family that have at least a cosine ``bar`` to the span of fields."""
    if not len(family):
        return fields[:0]
    flat = family.flatten(1)
    _, s, v = torch.linalg.svd(flat, full_matrices=False)
    basis = v[s > 1e-8 * s[0].clamp(min=1e-300)]
    left, cosines, _ = torch.linalg.svd(basis @ fields.flatten(1).T, full_matrices=False)
    return (left[:, cosines >= bar].T @ basis).reshape(-1, *fields.shape[1:])


def _rest(fields: Tensor, ideal: Tensor, where: Coordinates) -> Tensor:
    """Return the part of the span of fields that is orthogonal, in x, to that of the ideal ones."""
    if not len(ideal):
        return fields
    left = len(fields) - len(ideal)
    basis = torch.linalg.qr(where.to_x(ideal).flatten(1).T)[0]
    turn = torch.linalg.svd(where.to_x(fields).flatten(1) @ basis)[0]
    flat = turn[:, len(fields) - left :].T @ fields.flatten(1)
    return torch.linalg.qr(flat.T)[0].T.reshape(left, *fields.shape[1:])


def _centres(fields: Tensor, search: _Search) -> list[tuple[Tensor, Tensor]]:
    """Return points that the fields may leave where they are, in z and in x: x = 0, the mean of the data, the best."""
    where = search.coordinates
    zero = torch.zeros_like(where.mean)
    best = algebra.centre(fields, 1e-6 if search.exact else 0.3)
    return [
        (where.of(zero[None])[0], zero),
        (best.new_zeros(where.dimension), where.mean),
        (best, where.mean + where.out @ best),
    ]


def _rotations(fields: Tensor, search: _Search) -> tuple[list[Piece], Tensor]:
    where = search.coordinates
    q = where.dimension
    metrics: list[tuple[str, Tensor]] = [
        ("Euclidean", where.metric()),
        ("standardised", where.metric(where.spread)),
        ("covariance", torch.eye(q, dtype=fields.dtype)),
    ]
    if search.exact:
        found = algebra.invariant_metric(fields[..., :-1], where.metric(where.spread), 1e-5)
        metrics += [] if found is None else [("ellipsoid", found)]
    best: tuple[int, list[Piece], Tensor] = (0, [], fields[:0])
    for name, metric in metrics:
        root, inverse = _roots(metric)
        for centre in _centres(fields, search):
            pieces, ideal = _turning(fields, name, root, inverse, centre, search)
            if len(ideal) > best[0]:
                best = (len(ideal), pieces, ideal)
            if best[0] == len(fields):
                return best[1], best[2]
    return best[1], best[2]


def _turning(
    fields: Tensor, metric: str, root: Tensor, inverse: Tensor, about: tuple[Tensor, Tensor], search: _Search
) -> tuple[list[Piece], Tensor]:
    """Return the rotations about a point, in a metric with root R, that the fields have in common with all of them."""
    q, (point, centre) = len(root), about
    rows, columns = torch.triu_indices(q, q, 1)
    turns = fields.new_zeros(len(rows), q, q)
    turns[torch.arange(len(rows)), rows, columns] = 1.0
    turns[torch.arange(len(rows)), columns, rows] = -1.0
    ideal = common(fields, algebra.about(inverse @ turns @ root, point), search.bar)
    if not len(ideal):
        return [], ideal
    matrices = root @ ideal[..., :-1] @ inverse
    pieces, kept = [], []
    where = search.coordinates
    blocks = rotation_blocks(matrices, search.exact)
    for block in blocks:
        vectors = readable(where.out @ inverse @ block)  # turns the basis of the block
        basis = block @ vectors
        first, second = torch.triu_indices(basis.shape[1], basis.shape[1], 1)
        planes = basis.T[first][:, :, None] * basis.T[second][:, None, :]
        group = algebra.about(inverse @ (planes - planes.transpose(1, 2)) @ root, point)
        if search.holds(group):
            kept.append(group)
            space = where.out @ inverse @ basis
            text = _rotation_text(space, centre, metric, where, search.names)
            pieces.append(Piece("rotation", text, where.to_x(group), search.residual(group), space, centre, metric))
    if kept and sum(len(group) for group in kept) >= len(ideal):
        return pieces, torch.cat(kept)
    if search.holds(ideal):
        text = f"rotations, {metric} lengths kept, about {point_text(centre, search.names)}: " + "; ".join(
            field_text(field, search.names, where.spread) for field in _scaled(where.to_x(ideal), where.spread)
        )
        space = torch.linalg.svd(where.out @ inverse @ algebra.casimir(matrices), full_matrices=False)
        turned = space[0][:, space[1] > 1e-3 * space[1][0]]
        return [Piece("rotation", text, where.to_x(ideal), search.residual(ideal), turned, centre, metric)], ideal
    return [], fields[:0]


def _scalings(fields: Tensor, search: _Search) -> tuple[list[Piece], Tensor]:
    """Return the fields that stretch columns of x about a point."""
    where, d = search.coordinates, len(search.names)
    for _, centre in _centres(fields, search):
        family = torch.zeros(d, d, d + 1, dtype=fields.dtype)
        index = torch.arange(d)
        family[index, index, index] = 1.0
        family[index, index, -1] = -centre
        mapped = where.from_x(family)
        ideal = common(fields, mapped, search.bar)
        if not len(ideal) or not search.holds(ideal):
            continue
        weights = torch.linalg.lstsq(mapped.flatten(1).T, ideal.flatten(1).T, driver="gelsd").solution.T
        weights = echelon(weights)
        ideal = torch.einsum("ad,dij->aij", weights, mapped)
        text = "; ".join(_scaling_text(row, search.names) for row in weights)
        text += f" about {point_text(centre, search.names)}"
        piece = Piece("scaling", text, where.to_x(ideal), search.residual(ideal), centre.new_zeros(d, 0), centre)
        return [piece], ideal
    return [], fields[:0]


def _formulas(fields: Tensor, search: _Search) -> list[Piece]:
    """Return one piece per field of an echelon basis."""
    where = search.coordinates
    if search.exact:
        flat = echelon(where.to_x(fields).flatten(1))
        written = flat.reshape(-1, len(search.names), len(search.names) + 1)
        inner = where.from_x(written)
    else:
        inner, written = fields, where.to_x(fields)
    pieces = []
    for field, text in zip(inner, _scaled(written, where.spread), strict=True):
        kind = "shear" if algebra.nilpotent(field[:, :-1], 1e-6 if search.exact else 1e-2) else "affine"
        none = text.new_zeros(len(text), 0)
        words = field_text(text, search.names, where.spread)
        pieces.append(Piece(kind, words, text[None], search.residual(field[None]), none))
    return pieces


def _scaled(fields: Tensor, units: Tensor) -> Tensor:
    """Return fields with their largest entry, in the units of the columns, 1."""
    flat = fields.flatten(1)
    place = (fields * torch.cat([units, units.new_ones(1)]) / units[:, None]).flatten(1).abs().argmax(1, keepdim=True)
    return fields / flat.gather(1, place)[..., None]


def _roots(metric: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(metric)
    root = values.clamp(min=1e-300).sqrt()
    return (vectors * root) @ vectors.T, (vectors / root) @ vectors.T


def _rotation_text(space: Tensor, centre: Tensor, metric: str, where: Coordinates, names: Sequence[str]) -> str:
    n, q = space.shape[1], where.dimension
    axes = axes_of(space)
    if axes is not None:
        shown = ", ".join(names[i] for i in axes)
        words = f"rotation in the plane ({shown})" if n == 2 else f"all rotations of ({shown})"
    elif n == q:
        words = "all rotations"
    elif n == q - 1:
        axis = where.out @ torch.linalg.svd(where.into @ space)[0][:, -1]
        if metric == "Euclidean":  # the direction across the space turned
            hull = torch.linalg.qr(where.out)[0]
            axis = hull @ torch.linalg.svd(hull.T @ space)[0][:, -1]
        words = f"all rotations about the axis {combination(upright(axis), names)}"
    else:
        shown = ", ".join(combination(column / column.norm(), names) for column in space.T)
        words = f"rotation in the plane of {shown}" if n == 2 else f"all rotations of the space of {shown}"
    lengths = {
        "Euclidean": "",
        "standardised": " (of standardised columns)",
        "covariance": " (in the metric of the covariance)",
        "ellipsoid": " (of an ellipsoid)",
    }[metric]
    return f"{words}{lengths}, through {point_text(centre, names)}: {math.comb(n, 2)} generator{'s'[: n != 2]}"


def _scaling_text(weights: Tensor, names: Sequence[str]) -> str:
    parts = [f"{names[i]} by e^{{{weights[i]:.3g} t}}" for i in range(len(names)) if abs(float(weights[i])) > 1e-6]
    return "scaling of " + ", ".join(parts)
