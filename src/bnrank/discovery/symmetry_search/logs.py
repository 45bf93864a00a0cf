"""Scalings of positive columns, which are translations of their logarithms: few fields, and a clear gap."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bnrank.discovery.symmetry_search import algebra
from bnrank.discovery.symmetry_search.domain import MOVED, read_domain
from bnrank.discovery.symmetry_search.evidence import along_flows
from bnrank.discovery.symmetry_search.fields import AffineFields, Coordinates, affine, whitened
from bnrank.discovery.symmetry_search.pieces import Piece, scalings, translations
from bnrank.discovery.symmetry_search.problem import Problem, Sample, shortened
from bnrank.discovery.symmetry_search.spectrum import Found, find_fields, residual

WIDE = 1.5  # smallest ratio of the largest to the smallest value of a column; else its logarithm is nearly linear
DENOMINATORS = (1, 2, 3, 4)  # of exponents that are rounded
NEAR = 0.1  # exponents are rounded by no more


class Exponentials(nn.Module):
    """The function of the logarithms of some columns."""

    def __init__(self, net: nn.Module, columns: list[int]) -> None:
        super().__init__()
        self.net, self.columns = net, columns

    def forward(self, u: Tensor) -> Tensor:
        """Return f(x), where x has the exponentials of these columns of u."""
        x = u.clone()
        x[:, self.columns] = u[:, self.columns].exp()
        return self.net(x)


@dataclass(frozen=True)
class Scalings:
    """The scalings of positive columns that leave a function unchanged.

    Attributes
    ----------
    columns : list of int
        The columns of which logarithms are taken.
    found : Found
        The evidence for them, translations of logarithms.
    rest : Found or None
        The evidence for further fields that are affine in the logarithms, across the scalings; None if not searched.
    pieces : list of Piece
        The scalings, and the columns that f ignores.
    instead : bool
        Whether they replace the fields found without logarithms, since their gap is larger.
    all : bool
        Whether they also replace the directions that f ignores.
    """

    columns: list[int]
    found: Found
    rest: Found | None
    pieces: list[Piece]
    instead: bool = False
    all: bool = False


def positive_columns(given: Problem, ignored: Tensor) -> list[int]:
    """Return the columns that are positive and continuous, vary by a factor, and that f does not ignore, if two do.

    ``ignored`` has the directions of x that f ignores, (d, k).
    """
    domain, spread = given.domain, given.where.spread[:, None]
    wide = (domain.low > 0) & (domain.high >= WIDE * domain.low)
    free = torch.ones_like(wide)
    for directions in (ignored / spread, given.where.left_out / spread):
        sizes = directions.abs() / directions.abs().max(0, keepdim=True).values if directions.numel() else directions
        free &= (sizes <= MOVED).all(1)
    columns = [i for i in range(len(wide)) if bool(wide[i] & free[i]) and domain.levels[i] is None]
    return columns if len(columns) > 1 else []


def in_logarithms(given: Problem, ignored: Tensor, constants: Found, fields: Found, max_fields: int) -> Scalings | None:
    """Return the scalings of positive columns that leave f unchanged; None if there is nothing to search.

    They are searched if no field was found beside the directions that f ignores, ``ignored`` (d, k). They are also
    searched if fields or ignored directions are approximate, and replace them if their gap is larger, whether or not it
    counts: the function is then simpler in logarithms.
    """
    raw = [found for found in (constants, fields) if len(found.vectors)]
    if any(found.status == "exact" for found in raw):
        return None
    if raw:
        columns = positive_columns(given, ignored[:, :0])
        outside = torch.ones(len(ignored), dtype=torch.bool)
        outside[columns] = False
        sizes = (ignored / given.where.spread[:, None]).abs()
        parts = [sizes[rows] for rows in (~outside, outside)]
        inner, outer = (bool((part > MOVED * sizes.max()).any()) if part.numel() else False for part in parts)
        scaled = searched(given, columns, max_fields) if columns and not (inner and outer) else None
        if scaled and scaled.found.gap.ratio > max(found.gap.ratio for found in raw):
            return replace(scaled, instead=True, all=inner)
    columns = positive_columns(given, ignored) if not len(fields.vectors) else []
    return searched(given, columns, max_fields) if columns else None


def searched(given: Problem, columns: list[int], max_fields: int) -> Scalings:
    """Return the scalings of some positive columns that leave f unchanged."""
    u = _logarithms(given.sample.x, columns)
    where = whitened(u)
    positive = given.held_out.x[:, columns].gt(0).all(1)  # held-out rows may have other signs
    tested = given.held_out.at(positive) if bool(positive.any()) else given.sample
    parts = [_sample(part, given, where, columns) for part in (given.sample, tested)]
    net = Exponentials(given.net, columns)
    logs = replace(given, net=net, where=where, sample=parts[0], held_out=parts[1], domain=read_domain(u))
    basis = torch.linalg.qr(where.into[:, columns])[0]
    family = AffineFields(torch.cat([basis.new_zeros(len(columns), *[len(basis)] * 2), basis.T[..., None]], 2))
    found = along_flows(find_fields(logs.sample, family, logs), family, where, logs.held_out, logs)
    if not len(found.vectors):
        return Scalings(columns, found, None, [])
    directions = basis @ found.vectors.T
    inner = where.without(directions)
    rest = None
    if 0 < inner.dimension * (inner.dimension + 1) <= max_fields:
        everything = affine(inner.dimension)
        sample, held = (part.within(where, inner) for part in (logs.sample, logs.held_out))
        rest = along_flows(find_fields(sample, everything, logs), everything, inner, held, logs)
    above = float(found.values[len(found.vectors)]) if len(found.vectors) < len(found.values) else 1.0
    limit = (float(found.values[len(found.vectors) - 1]) * above) ** 0.5

    def of(weights: Tensor) -> float:
        vectors = (weights @ where.into.T) @ basis
        return residual(logs.held_out, family, torch.linalg.qr(vectors.T)[0].T)

    weights = algebra.echelon((where.out @ directions).T)
    weights = torch.where(torch.isin(torch.arange(weights.shape[1]), torch.tensor(columns)), weights, 0.0)
    if found.status != "exact":
        weights = next((algebra.echelon(near) for near in _rounded(weights) if of(near) <= limit), weights)
    alone = (weights != 0).sum(1) == 1  # scalings of one column: f ignores it
    pieces = scalings(weights[~alone], of(weights[~alone]), given.names) if bool((~alone).any()) else []
    if bool(alone.any()):
        exact, spread = found.status == "exact", given.where.spread
        pieces = (
            translations(weights[alone].T * spread[:, None], of(weights[alone]), given.names, spread, exact) + pieces
        )
    return Scalings(columns, found, rest, pieces)


def _rounded(weights: Tensor) -> list[Tensor]:
    """Return exponents rounded to whole numbers, halves, thirds and quarters, where that is near."""
    tries = [(weights * by).round() / by for by in DENOMINATORS]  # each row keeps its pivot 1
    return [near for near in tries if float((near - weights).abs().max()) <= NEAR]


def _logarithms(x: Tensor, columns: list[int]) -> Tensor:
    u = x.clone()
    u[:, columns] = x[:, columns].log()
    return u


def _sample(part: Sample, given: Problem, where: Coordinates, columns: list[int]) -> Sample:
    """Return samples in logarithms, with the Jacobians of f in them."""
    u, factors = _logarithms(part.x, columns), torch.ones_like(part.x)
    factors[:, columns] = part.x[:, columns]
    jacobian = (part.jacobian @ given.where.into) * factors[:, None, :] @ where.out
    return Sample(u, where.of(u), shortened(jacobian))
