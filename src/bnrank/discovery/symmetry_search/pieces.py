"""Pieces of an algebra of affine fields, with their description in words: rotations, scalings, shears, and formulas."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank.discovery.symmetry_search import algebra
from bnrank.discovery.symmetry_search.fields import Coordinates, in_units, planes
from bnrank.discovery.symmetry_search.words import SMALL, combination, field_text, point_text

Point = tuple[Tensor, Tensor]  # in z and in x

LENGTHS = {
    "Euclidean": "",
    "standardized": " (of standardized columns)",
    "covariance": " (in the metric of the covariance)",
    "ellipsoid": " (of an ellipsoid)",
}
ROUGH = 0.03  # the same threshold for directions that are not exact
ROUNDED, IGNORED = 1e-8, 0.1  # smallest size of the scaling of a column, relative to the largest, by accuracy
MAX_COLUMNS = 32  # with more columns, units for rotations of pairs of columns are not searched
MAX_MULTIPLE = 12  # largest factor that makes the exponents of a scaling integers


@dataclass(frozen=True)
class Piece:
    """Generators with a common action.

    Attributes
    ----------
    kind : str
        "translation", "rotation", "scaling", "shear", "affine" (none of these) or "field" (of the user's functions).
    text : str
        Description in names of columns.
    generators : Tensor
        x -> A x + b, each [A b], (k, d, d + 1); k = 0 for fields that are not affine.
    residual : float
        Largest relative singular value of their span on held-out data, or on the data where there are none.
    space : Tensor
        For rotations: basis of the rotated directions, (d, n); for translations: the directions, (d, k). Else (d, 0).
    center : Tensor or None
        A fixed point of rotations and scalings, (d,).
    metric : str
        For rotations: the preserved length, "Euclidean", "standardized", "covariance" or "ellipsoid". Else "".
    in_model : str
        "exact": f is unchanged up to rounding; "approximate": up to the residual. f may be a fitted model.
    change : float
        Largest change of f, rms ||f(x') - f(x)|| / rms_ij ||f(x_i) - f(x_j)||, where samples move by one standard
        deviation along a generator (on held-out samples where given), of those along which they can move within the
        data; NaN where unknown.
    in_data : str
        What the held-out error of f says of the data that f was fitted to: "within the held-out error" (or the error
        that is known): ``change`` is at most 1.5 times the error, which is at most 0.33; "violated": it is more; "not
        shown": the error is unknown or larger, or samples cannot move along each generator within the data.
    """

    kind: str
    text: str
    generators: Tensor
    residual: float
    space: Tensor
    center: Tensor | None = None
    metric: str = ""
    in_model: str = "approximate"
    change: float = math.nan
    in_data: str = "not shown"

    def __len__(self) -> int:
        return len(self.generators)


@dataclass(frozen=True)
class Search:
    """The context in which fields are named.

    Attributes
    ----------
    coordinates : Coordinates
        Coordinates of the fields.
    names : sequence of str
        Names of the columns.
    holds : callable
        Returns whether fields leave f unchanged to the same accuracy as the detected ones.
    residual : callable
        Returns the largest relative singular value of fields.
    exact : bool
        Whether the detected fields are exact.
    """

    coordinates: Coordinates
    names: Sequence[str]
    holds: Callable[[Tensor], bool]
    residual: Callable[[Tensor], float]
    exact: bool

    @property
    def bar(self) -> float:
        """The smallest cosine between a detected field and an ideal one."""
        return 1 - 1e-9 if self.exact else 0.9


def translations(directions: Tensor, residual: float, names: Sequence[str], units: Tensor, exact: bool) -> list[Piece]:
    """Return one piece for the directions of x, the columns of (d, m), that a function ignores.

    ``units`` (d,) are those of the columns. In texts the column that moves most in these units has the coefficient 1;
    columns that move by less than 3 percent of it are omitted where directions are not exact.
    """
    basis = algebra.echelon((directions / units[:, None]).T).T * units[:, None]
    basis = basis / basis.norm(dim=0)
    fields = torch.cat([basis.new_zeros(basis.shape[1], len(basis), len(basis)), basis.T[..., None]], 2)
    small = SMALL if exact else ROUGH
    written = basis / basis.gather(0, (basis / units[:, None]).abs().argmax(0)[None])
    text = "translation along " + ", ".join(combination(column, names, units, small) for column in written.T)
    return [Piece("translation", text, fields, residual, basis)]


def scalings(weights: Tensor, residual: float, names: Sequence[str]) -> list[Piece]:
    """Return one piece for scalings of columns by e^{w t} about 0, the rows of weights (k, d)."""
    weights = _whole(weights)
    fields = torch.cat([torch.diag_embed(weights), weights.new_zeros(*weights.shape, 1)], 2)
    text = "; ".join(_scaling_text(row, names) for row in weights) + " about 0"
    center = weights.new_zeros(weights.shape[1])
    return [Piece("scaling", text, fields, residual, center.new_zeros(len(center), 0), center)]


def named(fields: Tensor, search: Search) -> list[Piece]:
    """Return pieces that together span fields, (k, q, q + 1) orthonormal in the coordinates.

    Ideal fields replace the detected ones only where they leave f equally unchanged.
    """
    pieces: list[Piece] = []
    for part in (rotated, _scalings):
        if len(fields):
            found, ideal = part(fields, search)
            pieces += found
            fields = _rest(fields, ideal, search.coordinates)
    if len(fields):
        pieces += _formulas(fields, search)
    return pieces


def _centers(fields: Tensor, search: Search) -> list[Point]:
    """Return candidate fixed points of the fields, in z and in x: x = 0, the mean of the data, and the best point.

    The best is the point c where the fields are smallest (in least squares); of several, the nearest to the origin of
    z.
    """
    where = search.coordinates
    zero = torch.zeros_like(where.mean)
    matrices = fields[..., :-1].flatten(0, 1)
    best = -torch.linalg.pinv(matrices, rtol=1e-6 if search.exact else 0.3) @ fields[..., -1].flatten()
    origin, mean = where.of(zero[None])[0], best.new_zeros(where.dimension)
    return [(origin, zero), (mean, where.mean), (best, where.mean + where.out @ best)]


def _rest(fields: Tensor, ideal: Tensor, where: Coordinates) -> Tensor:
    """Return the part of the span of fields orthogonal to the span of ideal fields, in standardized columns."""
    if not len(ideal):
        return fields
    left = len(fields) - len(ideal)
    inside, whole = (in_units(where.to_x(part), where.spread).flatten(1) for part in (ideal, fields))
    turn = torch.linalg.svd(whole @ torch.linalg.qr(inside.T)[0])[0]
    flat = turn[:, len(fields) - left :].T @ fields.flatten(1)
    return torch.linalg.qr(flat.T)[0].T.reshape(left, *fields.shape[1:])


def _scalings(fields: Tensor, search: Search) -> tuple[list[Piece], Tensor]:
    """Return the fields that scale columns of x about a point."""
    where, d = search.coordinates, len(search.names)
    for _, center in _centers(fields, search):
        family = torch.zeros(d, d, d + 1, dtype=fields.dtype)
        index = torch.arange(d)
        family[index, index, index] = 1.0
        family[index, index, -1] = -center
        mapped = where.from_x(family)
        sizes = mapped.flatten(1).norm(dim=1)
        family = family[sizes > (ROUNDED if search.exact else IGNORED) * sizes.max()]  # without ignored columns
        mapped = where.from_x(family)
        ideal = algebra.common(fields, mapped, search.bar)
        if not len(ideal) or not search.holds(ideal):
            continue
        weights = torch.linalg.lstsq(mapped.flatten(1).T, ideal.flatten(1).T, driver="gelsd").solution.T
        weights = _whole(algebra.echelon(weights))
        ideal = torch.einsum("ad,dij->aij", weights, mapped)
        weights = weights @ family.diagonal(dim1=1, dim2=2)  # of all columns
        text = "; ".join(_scaling_text(row, search.names) for row in weights)
        text += f" about {point_text(center, search.names, where.spread)}"
        piece = Piece("scaling", text, where.to_x(ideal), search.residual(ideal), center.new_zeros(d, 0), center)
        return [piece], ideal
    return [], fields[:0]


def _formulas(fields: Tensor, search: Search) -> list[Piece]:
    """Return one piece per field of an echelon basis."""
    where = search.coordinates
    if search.exact:
        written = algebra.sparse(where.to_x(fields), where)
        inner = where.from_x(written)
    else:
        inner, written = fields, algebra.scaled(where.to_x(fields), where.spread)
    pieces = []
    for field, text in zip(inner, written, strict=True):
        kind = "shear" if algebra.nilpotent(field[:, :-1], 1e-6 if search.exact else 1e-2) else "affine"
        none = text.new_zeros(len(text), 0)
        words = field_text(text, search.names, where.spread, SMALL if search.exact else ROUGH)
        pieces.append(Piece(kind, words, text[None], search.residual(field[None]), none))
    return pieces


def _whole(weights: Tensor) -> Tensor:
    """Return rows (k, d), each times the smallest of 1, ..., 12 that makes its entries integers, if any."""
    rows = []
    for row in weights:
        times = [row * factor for factor in range(1, MAX_MULTIPLE + 1)]
        rows.append(next((new for new in times if float((new - new.round()).abs().max()) < 1e-6), row))
    return torch.stack(rows)


def _scaling_text(weights: Tensor, names: Sequence[str]) -> str:
    """Return the scaling of columns by e^{w t} in words."""
    parts = []
    for name, weight in zip(names, weights.tolist(), strict=True):
        if abs(weight) > 1e-6:
            size = "" if abs(abs(weight) - 1) < 5e-4 else f"{abs(weight):.3g} "
            parts.append(f"{name} by e^{{{'-' if weight < 0 else ''}{size}t}}")
    return "scaling of " + ", ".join(parts)


def rotated(fields: Tensor, search: Search) -> tuple[list[Piece], Tensor]:
    """Return the rotations in the span of fields, for the metric and fixed point that give the most rotations."""
    best: tuple[list[Piece], Tensor] = ([], fields[:0])
    for name, metric, point in _metrics(fields, _centers(fields, search), search):
        pieces, ideal = _turning(fields, name, metric, point, search)
        if len(ideal) > len(best[1]):
            best = (pieces, ideal)
        if len(best[1]) == len(fields):
            break
    return best


def _metrics(fields: Tensor, points: list[Point], search: Search) -> Iterator[tuple[str, Tensor, Point]]:
    """Yield metrics and fixed points to try, by name."""
    where, euclidean = search.coordinates, _euclidean(search)
    standardized = where.metric(where.spread)
    covariance = torch.eye(where.dimension, dtype=fields.dtype)
    metrics = {"Euclidean": euclidean.T @ euclidean, "standardized": standardized, "covariance": covariance}
    if search.exact:
        found = algebra.invariant_metric(fields[..., :-1], standardized, 1e-5)
        if found is not None:
            metrics["ellipsoid"] = found
    yield from ((name, metric, point) for name, metric in metrics.items() for point in points)
    for point in points if search.exact else []:
        lengths = _lengths(fields, point[1], search)
        if lengths is not None:
            yield "ellipsoid", where.metric(lengths), point


def _euclidean(search: Search) -> Tensor:
    """Return the vectors of x that represent the axes of z, (d, q), for Euclidean lengths.

    For a quotient by exact directions, these are the shortest vectors; else the shortest in standardized columns, since
    small errors of a direction have a large effect where columns have different units.
    """
    where = search.coordinates
    return where.lifted(torch.ones_like(where.spread)) if search.exact else where.out


def _lengths(fields: Tensor, center: Tensor, search: Search) -> Tensor | None:
    """Return units of the columns, (d,), in which the fields rotate pairs of columns; None without pairs.

    A field dx_i = a x_j, dx_j = -b x_i with a b > 0 preserves (x_i / l_i)^2 + (x_j / l_j)^2, l_i / l_j = (a / b)^(1/2).
    """
    where, d = search.coordinates, len(search.names)
    lengths = where.spread.clone()
    reached: set[int] = set()
    for i, j in itertools.combinations(range(d), 2) if d <= MAX_COLUMNS else ():
        if j in reached:
            continue
        pair = fields.new_zeros(2, d, d + 1)
        pair[0, i, j], pair[0, i, -1] = 1.0, -center[j]
        pair[1, j, i], pair[1, j, -1] = 1.0, -center[i]
        scale = where.spread[[i, j]] / where.spread[[j, i]]
        mapped = where.from_x(pair * scale[:, None, None])
        ideal = algebra.common(fields, mapped, search.bar)
        if len(ideal) != 1:
            continue
        a, b = (torch.linalg.lstsq(mapped.flatten(1).T, ideal.flatten(1).T).solution[:, 0] * scale).tolist()
        if a * b < 0:
            lengths[j] = lengths[i] / math.sqrt(-a / b)
            reached.update((i, j))
    return lengths if reached else None


def _turning(fields: Tensor, name: str, metric: Tensor, fixed: Point, search: Search) -> tuple[list[Piece], Tensor]:
    """Return the rotations about a point, in a metric (q, q), in the span of the fields."""
    values, vectors = torch.linalg.eigh(metric)
    sizes = values.clamp(min=1e-300).sqrt()
    root, inverse = (vectors * sizes) @ vectors.T, (vectors / sizes) @ vectors.T
    (point, center), where = fixed, search.coordinates
    turns = inverse @ planes(torch.eye(len(root), dtype=root.dtype)) @ root
    ideal = algebra.common(fields, algebra.about(turns, point), search.bar)
    if not len(ideal):
        return [], ideal
    lift = (_euclidean(search) if name == "Euclidean" else where.out) @ inverse
    units = torch.ones_like(where.spread) if name == "Euclidean" else where.spread
    matrices = root @ ideal[..., :-1] @ inverse
    pieces, kept = [], []
    for block in algebra.rotation_blocks(matrices, search.exact):
        basis = block @ algebra.readable(lift @ block / units[:, None])
        group = algebra.about(inverse @ planes(basis) @ root, point)
        if search.holds(group):
            kept.append(group)
            space = lift @ basis
            text = _text(space, center, name, where, search.names)
            pieces.append(Piece("rotation", text, where.to_x(group), search.residual(group), space, center, name))
    if kept and sum(len(group) for group in kept) >= len(ideal):
        return pieces, torch.cat(kept)
    if not search.holds(ideal):
        return [], fields[:0]
    written = algebra.sparse(where.to_x(ideal), where)
    words = "; ".join(field_text(field, search.names, where.spread) for field in written)
    text = f"rotations, {name} lengths kept, about {point_text(center, search.names, where.spread)}: {words}"
    left, sizes, _ = torch.linalg.svd(lift @ algebra.casimir(matrices) / units[:, None], full_matrices=False)
    turned = left[:, sizes > 1e-3 * sizes[0]] * units[:, None]
    return [Piece("rotation", text, written, search.residual(ideal), turned, center, name)], ideal


def _ellipsoid(space: Tensor, names: Sequence[str], units: Tensor) -> str:
    """Return the ellipsoid {space u: |u| = 1}, (n, n), in words: semi-axes along columns, or its squared length.

    The squared length of x is x^T (space space^T)^-1 x, scaled so that the first square has coefficient 1.
    """
    inverse = torch.linalg.inv(space / units[:, None])
    form = inverse.T @ inverse
    diagonal = form.diagonal().sqrt()
    if float((form / torch.outer(diagonal, diagonal)).triu(1).abs().max()) <= SMALL:
        sizes = units / diagonal
        return "semi-axes " + " : ".join(f"{size:.3g}" for size in (sizes / sizes[0]).tolist())
    first, second = torch.triu_indices(len(names), len(names))
    scales = units[first] * units[second]
    terms = form[first, second] * torch.where(first == second, 1.0, 2.0) / scales
    pairs = [(names[i], names[j]) for i, j in zip(first.tolist(), second.tolist(), strict=True)]
    products = [f"{a}^2" if a == b else f"{a} {b}" for a, b in pairs]
    return f"squared length {combination(terms / terms[0], products, 1 / scales)}"


def _text(space: Tensor, center: Tensor, metric: str, where: Coordinates, names: Sequence[str]) -> str:
    """Return a rotation in words: its directions, lengths and fixed point."""
    n, q = space.shape[1], where.dimension
    units = torch.ones_like(where.spread) if metric == "Euclidean" else where.spread
    axes = algebra.axes_of(space / units[:, None])
    lengths = LENGTHS[metric]
    if axes is not None:
        shown = ", ".join(names[i] for i in axes)
        words = f"rotation in the plane ({shown})" if n == 2 else f"all rotations of ({shown})"
        if metric == "ellipsoid":
            lengths = f" (of an ellipsoid, {_ellipsoid(space[axes], [names[i] for i in axes], where.spread[axes])})"
    elif n == q == len(names):
        words = "all rotations"
    elif n == q - 1 and q == len(names):
        axis = where.out @ torch.linalg.svd(where.into @ space)[0][:, -1]
        if metric == "Euclidean":  # the direction orthogonal to the rotated space
            axis = torch.linalg.svd(space)[0][:, -1]
        words = f"all rotations about the axis {combination(algebra.upright(axis), names, where.spread)}"
    else:
        shown = ", ".join(combination(column / column.norm(), names, units) for column in space.T)
        words = f"rotation in the plane of {shown}" if n == 2 else f"all rotations of the space of {shown}"
    point = point_text(center, names, where.spread, axes)
    return f"{words}{lengths}, through {point}: {math.comb(n, 2)} generator{'s'[: n != 2]}"
