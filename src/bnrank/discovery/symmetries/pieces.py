"""What generators are put together into, and what the parts of naming share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank.discovery.symmetries import algebra
from bnrank.discovery.symmetries.coordinates import Coordinates
from bnrank.discovery.symmetries.wording import echelon

__all__ = ["Piece", "Search", "centers", "common", "scaled", "sparse"]


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
    center : Tensor or None
        A point of x that rotations and scalings leave where it is, (d,).
    metric : str
        Of rotations: the lengths they keep, "Euclidean", "standardized", "covariance" or "ellipsoid". Else "".
    """

    kind: str
    text: str
    generators: Tensor
    residual: float
    space: Tensor
    center: Tensor | None = None
    metric: str = ""

    def __len__(self) -> int:
        return len(self.generators)


@dataclass(frozen=True)
class Search:
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


def common(fields: Tensor, family: Tensor, bar: float) -> Tensor:
    """Return orthonormal members of the span of a family that have at least a cosine ``bar`` to the span of fields."""
    if not len(family):
        return fields[:0]
    flat = family.flatten(1)
    _, s, v = torch.linalg.svd(flat, full_matrices=False)
    basis = v[s > 1e-8 * s[0].clamp(min=1e-300)]
    left, cosines, _ = torch.linalg.svd(basis @ fields.flatten(1).T, full_matrices=False)
    return (left[:, cosines >= bar].T @ basis).reshape(-1, *fields.shape[1:])


def centers(fields: Tensor, search: Search) -> list[tuple[Tensor, Tensor]]:
    """Return points that the fields may leave where they are, in z and in x: x = 0, the mean of the data, the best."""
    where = search.coordinates
    zero = torch.zeros_like(where.mean)
    best = algebra.center(fields, 1e-6 if search.exact else 0.3)
    return [
        (where.of(zero[None])[0], zero),
        (best.new_zeros(where.dimension), where.mean),
        (best, where.mean + where.out @ best),
    ]


def sparse(fields: Tensor, where: Coordinates) -> Tensor:
    """Return a basis of the span of fields of x, (k, d, d + 1), with many zeros, and a 1 in every field.

    It is the echelon basis in units of the columns, where entries of different columns can be compared.
    """
    within = where.standardized(fields)
    reduced = echelon(within.flatten(1)).reshape(within.shape)
    units = torch.cat([where.spread, where.spread.new_ones(1)])
    return scaled(reduced * where.spread[:, None] / units, where.spread)


def scaled(fields: Tensor, units: Tensor) -> Tensor:
    """Return fields with one entry 1: the last of those at least half as large as any, in units of the columns."""
    sizes = (fields * torch.cat([units, units.new_ones(1)]) / units[:, None]).flatten(1).abs()
    large = sizes >= sizes.max(1, keepdim=True).values / 2
    place = (large * torch.arange(sizes.shape[1])).argmax(1, keepdim=True)
    return fields / fields.flatten(1).gather(1, place)[..., None]
