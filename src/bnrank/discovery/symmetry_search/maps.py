"""Finite symmetries: sign flips, exchanges of two values, swaps and reflections of x, and their tests."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.discovery.symmetry_search import algebra
from bnrank.discovery.symmetry_search.evidence import NOT_SHOWN, WITHIN, judged
from bnrank.discovery.symmetry_search.fields import Coordinates, read_affine, transformed
from bnrank.discovery.symmetry_search.pieces import Piece, combination
from bnrank.discovery.symmetry_search.problem import Problem, outputs_of
from bnrank.discovery.symmetry_search.spectrum import EXACT

MAX_FLIPPED = 32  # with more columns, pairs of flips are not tested
MAX_SWAPPED = 64  # with more columns, swaps are not tested
NEAR = 2.0  # in units of the typical distance between samples; images farther away are off the data
INSIDE = 0.75  # smallest share of the moved samples with images in the range of every column, or on its values
MAX_PROBES = 128  # images whose distance to the data is measured
SMALL = 0.1  # the largest change of a symmetry, for any error of f

Map = tuple[str, str, Tensor]  # kind, text, [A b]


@dataclass(frozen=True)
class FiniteTest:
    """The test of one transformation x -> A x + b.

    Attributes
    ----------
    kind : str
        "sign flip", "exchange" (of the two values of a column), "swap", "shift", "reflection" or "given".
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
        (noise of the targets counts as error); "no"; or "off the data", where f is unknown: ``distance`` exceeds 2, or
        more than a quarter of the samples that move leave the range of a column, or the values of one that takes few.
        "exact" and "approximate" are about f, which may be a fitted model.
    in_data : str
        What held-out error says of the symmetry in the data, as for :class:`Piece`.
    """

    kind: str
    text: str
    map: Tensor
    change: float
    distance: float
    verdict: str
    in_data: str = NOT_SHOWN


def candidates(given: Problem, pieces: Sequence[Piece]) -> list[Map]:
    """Return maps to test, (kind, text, [A b]).

    Flips of single columns and of all columns, about 0 and, where the data do not have mean 0, about the mean; flips of
    pairs; the exchange of the values of columns that take two; swaps of two columns; the cyclic shift and the reversal
    of all columns; for every detected rotation that preserves Euclidean length, a reflection within its space, and one
    of its axis if it has one.
    """
    found = [*_of_columns(given), *_reflections(pieces, given.where, given.names)]
    return [
        (kind, text, torch.cat([matrix, (point - matrix @ point)[:, None]], 1)) for kind, text, matrix, point in found
    ]


def _of_columns(given: Problem) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield flips, exchanges, swaps and shifts, (kind, text, A, fixed point)."""
    coordinates, names = given.where, given.names
    d, mean = len(names), coordinates.mean
    eye, zero = torch.eye(d, dtype=torch.float64), torch.zeros_like(mean)
    moving = [i for i in range(d) if bool(coordinates.out[i].any())]
    two = {i: levels for i in moving if (levels := given.domain.levels[i]) is not None and len(levels) == 2}
    for i, levels in two.items():
        if float(levels.sum()):
            low, high = levels.tolist()
            text = f"{names[i]}: {low:g} <-> {high:g}"
            yield "exchange", text, eye - 2 * torch.diag(eye[i]), zero + (low + high) / 2 * eye[i]
    points = [(zero, "")]
    if bool((mean.abs() > 0.1 * coordinates.spread)[moving].any()):
        points.append((mean, " about the mean"))
    for point, words in points:
        for i in moving if not words else [i for i in moving if i not in two]:
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


def tested(given: Problem, maps: Sequence[Map]) -> tuple[FiniteTest, ...]:
    """Return the tests of maps on the samples, without pairs of flips of which each is a symmetry by itself."""
    x, spread = given.sample.x, given.where.spread
    before = outputs_of(given.net, x)
    size = math.sqrt(2 * float((before - before.mean(0)).square().sum()) / len(x))
    scaled = x / spread
    own = torch.cdist(scaled[:MAX_PROBES], scaled)
    usual = float(own.fill_diagonal_(math.inf).min(1).values.median())
    results: list[FiniteTest] = []
    single: set[str] = set()
    for kind, text, both in maps:
        parts = text.split(" -> ")[0].split(", ")
        if kind == "sign flip" and len(parts) == 2 and single.issuperset(parts):
            continue
        images = transformed(both, x)
        change = math.sqrt(float((outputs_of(given.net, images) - before).square().sum()) / len(x)) / size
        near = torch.cdist(images[:MAX_PROBES] / spread, scaled).min(1).values
        distance = float(near.median()) / max(usual, 1e-300)
        away = distance > NEAR or given.domain.share(x, images) < INSIDE
        verdict = "off the data" if away else _verdict(change, given.rtol)
        if kind == "sign flip" and len(parts) == 1 and verdict in ("exact", "approximate"):
            single.add(parts[0])
        in_data = NOT_SHOWN if away else judged(change, given)
        results.append(FiniteTest(kind, text, both, change, distance, verdict, in_data))
    return tuple(results)


def _verdict(change: float, rtol: float | None) -> str:
    if change <= EXACT:
        return "exact"
    if change > (SMALL if rtol is None else WITHIN * rtol):
        return "no"
    return "approximate" if change <= SMALL else "undetermined"
