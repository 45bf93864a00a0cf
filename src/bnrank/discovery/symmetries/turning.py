"""Rotations among the fields found: in which lengths, about which point, of which directions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bnrank.discovery.symmetries import algebra
from bnrank.discovery.symmetries.blocks import rotation_blocks
from bnrank.discovery.symmetries.coordinates import Coordinates
from bnrank.discovery.symmetries.pieces import Piece, Search, centers, common, sparse
from bnrank.discovery.symmetries.wording import SMALL, axes_of, combination, field_text, point_text, readable, upright

__all__ = ["rotated"]

PAIRS_UP_TO = 32  # columns: above, no units are looked for in which pairs of columns turn


def rotated(fields: Tensor, search: Search) -> tuple[list[Piece], Tensor]:
    """Return the rotations in the span of fields, in the lengths and about the point where they are most."""
    where = search.coordinates
    metrics: list[tuple[str, Tensor]] = [
        ("Euclidean", _euclidean(search).T @ _euclidean(search)),
        ("standardized", where.metric(where.spread)),
        ("covariance", torch.eye(where.dimension, dtype=fields.dtype)),
    ]
    if search.exact:
        found = algebra.invariant_metric(fields[..., :-1], where.metric(where.spread), 1e-5)
        metrics += [] if found is None else [("ellipsoid", found)]
    points = centers(fields, search)
    best: tuple[list[Piece], Tensor] = ([], fields[:0])
    for name, metric in metrics:
        for point in points:
            pieces, ideal = _turning(fields, name, metric, point, search)
            if len(ideal) > len(best[1]):
                best = (pieces, ideal)
            if len(best[1]) == len(fields):
                return best
    for point in points if search.exact else []:
        lengths = _lengths(fields, point[1], search)
        if lengths is not None:
            pieces, ideal = _turning(fields, "ellipsoid", where.metric(lengths), point, search)
            if len(ideal) > len(best[1]):
                best = (pieces, ideal)
    return best


def _euclidean(search: Search) -> Tensor:
    """Return the vectors of x that the axes of z stand for, (d, q), to measure Euclidean lengths by.

    Of a quotient by directions known exactly, the shortest ones; else the shortest in standardized columns, since a
    small error of a direction matters much where columns have different units.
    """
    return search.coordinates.lifted() if search.exact else search.coordinates.out


def _lengths(fields: Tensor, center: Tensor, search: Search) -> Tensor | None:
    """Return units of the columns, (d,), in which the fields turn pairs of columns into each other; None without pairs.

    A field dx_i = a x_j, dx_j = -b x_i with a b > 0 keeps (x_i / l_i)^2 + (x_j / l_j)^2, l_i / l_j = (a / b)^(1/2).
    """
    where, d = search.coordinates, len(search.names)
    lengths = where.spread.clone()
    reached: set[int] = set()
    for i, j in itertools.combinations(range(d), 2) if d <= PAIRS_UP_TO else ():
        if j in reached:
            continue
        pair = fields.new_zeros(2, d, d + 1)
        pair[0, i, j], pair[0, i, -1] = 1.0, -center[j]
        pair[1, j, i], pair[1, j, -1] = 1.0, -center[i]
        scale = where.spread[[i, j]] / where.spread[[j, i]]
        mapped = where.from_x(pair * scale[:, None, None])
        ideal = common(fields, mapped, search.bar)
        if len(ideal) != 1:
            continue
        a, b = (torch.linalg.lstsq(mapped.flatten(1).T, ideal.flatten(1).T).solution[:, 0] * scale).tolist()
        if a * b < 0:
            lengths[j] = lengths[i] / math.sqrt(-a / b)
            reached.update((i, j))
    return lengths if reached else None


def _turning(
    fields: Tensor, name: str, metric: Tensor, about: tuple[Tensor, Tensor], search: Search
) -> tuple[list[Piece], Tensor]:
    """Return the rotations about a point, in a metric (q, q), that the fields have in common with all of them."""
    root, inverse = _roots(metric)
    (point, center), where = about, search.coordinates
    turns = inverse @ _planes(torch.eye(len(root), dtype=root.dtype)) @ root
    ideal = common(fields, algebra.about(turns, point), search.bar)
    if not len(ideal):
        return [], ideal
    lift = (_euclidean(search) if name == "Euclidean" else where.out) @ inverse
    units = torch.ones_like(where.spread) if name == "Euclidean" else where.spread
    matrices = root @ ideal[..., :-1] @ inverse
    pieces, kept = [], []
    for block in rotation_blocks(matrices, search.exact):
        basis = block @ readable(lift @ block / units[:, None])
        group = algebra.about(inverse @ _planes(basis) @ root, point)
        if search.holds(group):
            kept.append(group)
            space = lift @ basis
            text = _text(space, center, name, where, search.names)
            pieces.append(Piece("rotation", text, where.to_x(group), search.residual(group), space, center, name))
    if kept and sum(len(group) for group in kept) >= len(ideal):
        return pieces, torch.cat(kept)
    if not search.holds(ideal):
        return [], fields[:0]
    written = sparse(where.to_x(ideal), where)
    text = f"rotations, {name} lengths kept, about {point_text(center, search.names, where.spread)}: " + "; ".join(
        field_text(field, search.names, where.spread) for field in written
    )
    left, sizes, _ = torch.linalg.svd(lift @ algebra.casimir(matrices) / units[:, None], full_matrices=False)
    turned = left[:, sizes > 1e-3 * sizes[0]] * units[:, None]
    return [Piece("rotation", text, written, search.residual(ideal), turned, center, name)], ideal


def _planes(basis: Tensor) -> Tensor:
    """Return u v^T - v u^T for pairs of columns u, v of a basis, (q, n), as (n (n - 1) / 2, q, q)."""
    first, second = torch.triu_indices(basis.shape[1], basis.shape[1], 1)
    planes = basis.T[first][:, :, None] * basis.T[second][:, None, :]
    return planes - planes.transpose(1, 2)


def _roots(metric: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(metric)
    root = values.clamp(min=1e-300).sqrt()
    return (vectors * root) @ vectors.T, (vectors / root) @ vectors.T


def _ellipsoid(space: Tensor, names: Sequence[str], units: Tensor) -> str:
    """Describe the ellipsoid {space u: |u| = 1}, (n, n): semi-axes if they lie along columns, else its squared length.

    That of x is x^T (space space^T)^-1 x, written with coefficient 1 of the first square.
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
    products = [
        f"{names[i]}^2" if i == j else f"{names[i]} {names[j]}"
        for i, j in zip(first.tolist(), second.tolist(), strict=True)
    ]
    return f"squared length {combination(terms / terms[0], products, 1 / scales)}"


def _text(space: Tensor, center: Tensor, metric: str, where: Coordinates, names: Sequence[str]) -> str:
    """Say which directions are turned, in which lengths, about which point."""
    n, q = space.shape[1], where.dimension
    units = torch.ones_like(where.spread) if metric == "Euclidean" else where.spread
    axes = axes_of(space / units[:, None])
    lengths = {
        "Euclidean": "",
        "standardized": " (of standardized columns)",
        "covariance": " (in the metric of the covariance)",
        "ellipsoid": " (of an ellipsoid)",
    }[metric]
    if axes is not None:
        shown = ", ".join(names[i] for i in axes)
        words = f"rotation in the plane ({shown})" if n == 2 else f"all rotations of ({shown})"
        if metric == "ellipsoid":
            lengths = f" (of an ellipsoid, {_ellipsoid(space[axes], [names[i] for i in axes], where.spread[axes])})"
    elif n == q == len(names):
        words = "all rotations"
    elif n == q - 1 and q == len(names):
        axis = where.out @ torch.linalg.svd(where.into @ space)[0][:, -1]
        if metric == "Euclidean":  # the direction across the space turned
            axis = torch.linalg.svd(space)[0][:, -1]
        words = f"all rotations about the axis {combination(upright(axis), names, where.spread)}"
    else:
        shown = ", ".join(combination(column / column.norm(), names, units) for column in space.T)
        words = f"rotation in the plane of {shown}" if n == 2 else f"all rotations of the space of {shown}"
    point = point_text(center, names, where.spread, axes)
    return f"{words}{lengths}, through {point}: {math.comb(n, 2)} generator{'s'[: n != 2]}"
