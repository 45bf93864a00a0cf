"""Affine coordinates of the data, and the families of vector fields in which symmetries are searched."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bnrank._core import validation

SPAN = 1e-6  # of the largest standard deviation of standardized columns; smaller ones are outside the data's span
ROUNDING = 1e-10  # relative to a column's mean; with a smaller standard deviation the column is constant
RTOL = 1e-8  # relative to the largest singular value; smaller combinations of given fields vanish on the data
MAX_PAIRS = 2000  # largest number of pairs of fields whose brackets are computed


@dataclass(frozen=True)
class Coordinates:
    """Affine coordinates z = into (x - mean) on the affine span of the data, x = mean + out z.

    Attributes
    ----------
    mean : Tensor
        (d,).
    out, into : Tensor
        (d, q) and (q, d), with into out = 1.
    left_out : Tensor
        Orthonormal directions in which the data do not vary, (d, d - r).
    spread : Tensor
        Standard deviation of every column of x, 1 for constant ones, (d,).
    divided_out : Tensor
        Directions of x along which points are identified in a quotient, (d, m).
    """

    mean: Tensor
    out: Tensor
    into: Tensor
    left_out: Tensor
    spread: Tensor
    divided_out: Tensor

    @property
    def dimension(self) -> int:
        """The number of coordinates, q."""
        return self.out.shape[1]

    def of(self, x: Tensor) -> Tensor:
        """Return z, (N, q), of points (N, d)."""
        return (x - self.mean) @ self.into.T

    def to_x(self, fields: Tensor) -> Tensor:
        """Return fields z -> A z + b, (k, q, q + 1), as fields of x, (k, d, d + 1)."""
        matrix = self.out @ fields[..., :-1] @ self.into
        shift = fields[..., -1] @ self.out.T - matrix @ self.mean
        return torch.cat([matrix, shift[..., None]], -1)

    def from_x(self, fields: Tensor) -> Tensor:
        """Return the part along the span of fields of x, (k, d, d + 1), as fields of z, (k, q, q + 1)."""
        shift = fields[..., :-1] @ self.mean + fields[..., -1]
        return torch.cat([self.into @ fields[..., :-1] @ self.out, (shift @ self.into.T)[..., None]], -1)

    def without(self, ignored: Tensor) -> "Coordinates":
        """Return coordinates of the quotient by the directions z = ignored, (q, m) orthonormal.

        Fields of the quotient, written in x, have no component along these directions, in the metric of standardized
        columns.
        """
        rest = torch.linalg.qr(ignored, mode="complete")[0][:, ignored.shape[1] :]
        gone = torch.cat([self.divided_out, self.out @ ignored], 1)
        out = _across(self.out @ rest, gone, self.spread) * self.spread[:, None]
        return Coordinates(self.mean, out, rest.T @ self.into, self.left_out, self.spread, gone)

    def lifted(self, units: Tensor) -> Tensor:
        """Return the shortest vectors of x that represent the axes of z, (d, q), in units of the columns, (d,).

        Units of 1 give Euclidean length, ``spread`` the length in standardized columns.
        """
        return _across(self.out, self.divided_out, units)

    def metric(self, units: Tensor) -> Tensor:
        """Return the metric, (q, q), of the lengths of :meth:`lifted` vectors."""
        out = self.lifted(units)
        return out.T @ out


def in_units(fields: Tensor, units: Tensor) -> Tensor:
    """Return fields of x, (..., d, d + 1), with columns expressed in the given units, (d,)."""
    return fields * torch.cat([units, units.new_ones(1)]) / units[:, None]


def _across(vectors: Tensor, directions: Tensor, units: Tensor) -> Tensor:
    """Return the columns of (d, n), in units (d,), without their component along directions (d, m)."""
    scaled = vectors / units[:, None]
    along = torch.linalg.qr(directions / units[:, None])[0]
    return scaled - along @ (along.T @ scaled)


def whitened(x: Tensor) -> Coordinates:
    """Return coordinates in which x, (N, d) of float64, has mean 0 and covariance 1 on its affine span.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    >>> z = whitened(x).of(x)
    >>> z.shape, round(float(z.square().mean()), 12)            # the data lie on a line
    (torch.Size([3, 1]), 1.0)
    """
    mean = x.mean(0)
    spread = (x - mean).square().mean(0).sqrt()
    varying = spread > ROUNDING * mean.abs()
    spread = torch.where(varying, spread, 1.0)
    standardized = torch.where(varying, (x - mean) / spread, 0.0)
    _, s, v = torch.linalg.svd(standardized / len(x) ** 0.5, full_matrices=False)
    kept = s > SPAN * s[0]
    basis, s = v[kept].T, s[kept]
    out = spread[:, None] * basis * s
    left_out = torch.linalg.qr(out, mode="complete")[0][:, out.shape[1] :]
    return Coordinates(mean, out, (basis / s).T / spread, left_out, spread, out[:, :0])


class AffineFields:
    """Fields z -> A z + b, orthonormal over data of mean 0 and covariance 1: mean_i <v(z_i), w(z_i)> = <v, w>.

    Attributes
    ----------
    basis : Tensor
        (p, q, q + 1), orthonormal, each [A b].
    constant : bool
        Whether all fields are constant: translations.
    """

    def __init__(self, basis: Tensor) -> None:
        self.basis = basis
        self.constant = not bool(basis[..., :-1].any())
        flat = basis.flatten(1)
        self._all = flat.shape[0] == flat.shape[1] and bool((flat == torch.eye(len(flat), dtype=flat.dtype)).all())

    def __len__(self) -> int:
        return len(self.basis)

    def rows(self, jacobian: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Return J(x_i) v_a(x_i), (n, m, p), for Jacobians in z, (n, m, q), at points x (n, d), with coordinates z."""
        extended = torch.cat([z, z.new_ones(len(z), 1)], 1)
        products = (jacobian[..., None] * extended[:, None, None, :]).flatten(2)
        return products if self._all else products @ self.basis.flatten(1).T

    def combined(self, vectors: Tensor) -> Tensor:
        """Return the fields with coefficients ``vectors``, (k, p), as (k, q, q + 1)."""
        return torch.einsum("kp,pij->kij", vectors, self.basis)


class SampledFields:
    """Fields given by functions, made orthonormal over the data.

    Parameters
    ----------
    functions : sequence of callable
        x (n, d) -> (n, d), float64.
    coordinates : Coordinates
        Coordinates of the data.
    x : Tensor
        The data, (N, d).

    Attributes
    ----------
    labels : tuple of str
        One name per function.
    weights : Tensor
        Orthonormal fields as combinations of the functions, (p, functions).
    """

    constant = False

    def __init__(self, functions: Sequence[Callable[[Tensor], Tensor]], coordinates: Coordinates, x: Tensor) -> None:
        self.functions, self.coordinates = tuple(functions), coordinates
        self.labels = tuple(f"fields[{i}]" for i in range(len(self.functions)))
        values = self._values(x)  # (N, functions, d)
        leaving = values @ coordinates.left_out / float(coordinates.spread.mean())
        self.weights = _orthonormal(values @ coordinates.into.T, leaving)

    def __len__(self) -> int:
        return len(self.weights)

    def rows(self, jacobian: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Return J(x_i) v_a(x_i), (n, m, p)."""
        tangent = self._values(x) @ self.coordinates.into.T
        return torch.einsum("nmq,nfq,pf->nmp", jacobian, tangent, self.weights)

    def combined(self, vectors: Tensor) -> Tensor:
        """Return combinations of the functions, (k, functions)."""
        return vectors @ self.weights

    def _values(self, x: Tensor) -> Tensor:
        values = []
        for function, label in zip(self.functions, self.labels, strict=True):
            value = torch.as_tensor(function(x.clone())).detach().double()
            if value.shape != x.shape or not bool(torch.isfinite(value).all()):
                returned = f"returned {validation.describe(value)} for x of shape {tuple(x.shape)}"
                raise ValueError(f"{label}: {returned}, expected one finite vector per sample, of the same shape")
            values.append(value)
        return torch.stack(values, 1)


Family = AffineFields | SampledFields


def bracket_defect(family: Family, vectors: Tensor) -> float:
    """Return ||part of the brackets outside the span|| / ||brackets||, root mean square over all pairs of fields.

    With [A b] extended by a row of zeros the bracket of two fields z -> A z + b is the commutator of their matrices. At
    most 2000 random pairs are used. 0 for a Lie algebra; sqrt(1 - k / p) on average for k random fields of p. The
    denominator is at least that of random fields, sqrt(2 / q) per pair of unit fields. NaN for fewer than two fields,
    for translations, whose brackets vanish, and for fields that are not affine.

    Examples
    --------
    >>> bracket_defect(affine(2), torch.eye(6, dtype=torch.float64)[[1, 3]])         # dx = y and dy = x: no algebra
    1.0
    """
    if not isinstance(family, AffineFields) or len(vectors) < 2 or family.constant:
        return math.nan
    fields = family.combined(vectors)
    square = torch.nn.functional.pad(fields, (0, 0, 0, 1))
    first, second = torch.triu_indices(len(fields), len(fields), 1)
    if len(first) > MAX_PAIRS:
        drawn = torch.randperm(len(first), generator=torch.Generator().manual_seed(0))[:MAX_PAIRS]
        first, second = first[drawn], second[drawn]
    found = (square[first] @ square[second] - square[second] @ square[first])[:, :-1].flatten(1)
    span = torch.linalg.qr(fields.flatten(1).T)[0]
    size = max(float(found.norm()), math.sqrt(2 * len(found) / fields.shape[1]))
    return float((found - (found @ span) @ span.T).norm()) / size


def affine(dimension: int) -> AffineFields:
    """Return all affine fields of q coordinates, q (q + 1) of them.

    Examples
    --------
    >>> len(affine(3))
    12
    """
    count = dimension * (dimension + 1)
    return AffineFields(torch.eye(count, dtype=torch.float64).reshape(count, dimension, dimension + 1))


def constant(dimension: int) -> AffineFields:
    """Return the constant fields of q coordinates, which generate translations.

    Examples
    --------
    >>> len(constant(3))
    3
    """
    eye = torch.eye(dimension, dtype=torch.float64)
    return AffineFields(torch.cat([eye.new_zeros(dimension, dimension, dimension), eye[..., None]], 2))


def keeping(columns: Sequence[int], where: Coordinates) -> AffineFields:
    """Return the affine fields that leave columns of x unchanged.

    Examples
    --------
    >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> len(keeping([], whitened(x))), len(keeping([1], whitened(x)))
    (12, 8)
    """
    if not columns:
        return affine(where.dimension)
    q = where.dimension
    rows = where.out[list(columns)] / where.spread[list(columns), None]
    _, s, v = torch.linalg.svd(rows, full_matrices=True)
    free = v[torch.nn.functional.pad(s, (0, q - len(s))) <= SPAN]
    basis = torch.einsum("ai,bj->abij", free, torch.eye(q + 1, dtype=free.dtype))
    return AffineFields(basis.reshape(-1, q, q + 1))


def rotations(dimension: int) -> list[Tensor]:
    """Return E_ij - E_ji for i < j: all rotations about the origin, for the argument ``fields`` of `symmetries`.

    Examples
    --------
    >>> rotations(2)[0].tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    validation.integer(dimension, "dimension", 2)
    return list(planes(torch.eye(dimension, dtype=torch.float64)))


def planes(basis: Tensor) -> Tensor:
    """Return u v^T - v u^T for pairs of columns u, v of a basis, (q, n), as (n (n - 1) / 2, q, q)."""
    first, second = torch.triu_indices(basis.shape[1], basis.shape[1], 1)
    found = basis.T[first][:, :, None] * basis.T[second][:, None, :]
    return found - found.transpose(1, 2)


def read_family(fields: object, coordinates: Coordinates, x: Tensor) -> Family:
    """Return all affine fields, or the combinations of the given ones that are tangent to the affine span of the data.

    Raises
    ------
    TypeError, ValueError
        If they are not fields on x, or no combination remains on the data.
    """
    if isinstance(fields, str):
        validation.choice(fields, "fields", ("affine",))
        return affine(coordinates.dimension)
    if not isinstance(fields, Sequence) or not len(fields):
        raise TypeError(
            f"fields: got {validation.describe(fields)}, expected 'affine' or a sequence of fields, each a matrix A, a "
            "pair (A, b) or a function from x (N, d) to (N, d)"
        )
    d = x.shape[1]
    given: list[Any] = [
        f if callable(f) else read_affine(f, f"fields[{i}]", d, "or a function") for i, f in enumerate(fields)
    ]
    if not any(map(callable, given)):
        stacked = torch.stack(given)
        tangent = coordinates.from_x(stacked)
        # values on the data, A (mean + out z) + b, must have no component off the span
        start = stacked[..., :-1] @ coordinates.mean + stacked[..., -1]
        off = torch.cat([stacked[..., :-1] @ coordinates.out, start[..., None]], -1)
        off = torch.einsum("de,kdj->kej", coordinates.left_out / float(coordinates.spread.mean()), off)
        weights = _orthonormal(tangent.flatten(1).T[:, :, None], off.flatten(1).T[:, :, None], mean=False)
        result: Family = AffineFields(torch.einsum("pk,kij->pij", weights, tangent))
    else:
        result = SampledFields([f if callable(f) else partial(transformed, f) for f in given], coordinates, x)
    validation.expect(len(result), "fields", "only fields that vanish on x or leave its affine span", "others")
    return result


def transformed(field: Tensor, x: Tensor) -> Tensor:
    """Return A x + b for [A b], (d, d + 1), and points, (N, d)."""
    return x @ field[:, :-1].T + field[:, -1]


def read_affine(given: Any, name: str, d: int, alternative: str = "") -> Tensor:
    """Return a matrix A (d, d), or a pair (A, b), as [A b], (d, d + 1).

    Raises
    ------
    TypeError, ValueError
        If it is neither; the message contains the name and ``alternative``, the other allowed forms.
    """
    matrix, shift = given if isinstance(given, tuple | list) and len(given) == 2 else (given, torch.zeros(d))
    expected = f"a matrix A {(d, d)}, a pair (A, b) {alternative}".strip()
    parts = [validation.real(part, name, expected).double().cpu() for part in (matrix, shift)]
    shapes = [tuple(part.shape) for part in parts]
    got = f"shapes {shapes[0]} and {shapes[1]}"
    validation.expect(shapes == [(d, d), (d,)], name, got, f"A {(d, d)} and b {(d,)}")
    return torch.cat([parts[0], parts[1][:, None]], 1)


def _orthonormal(tangent: Tensor, leaving: Tensor, *, mean: bool = True) -> Tensor:
    """Return weights (p, f) of combinations that are orthonormal over samples and tangent to the span.

    ``tangent`` and ``leaving`` are values, (N, f, q) and (N, f, d - q).
    """
    samples = len(tangent) if mean else 1
    inside, outside = (part.transpose(1, 2).flatten(0, 1) / samples**0.5 for part in (tangent, leaving))
    keep = torch.eye(inside.shape[1], dtype=inside.dtype)
    size = float(torch.linalg.matrix_norm(torch.cat([inside, outside]), 2))
    if len(outside):
        _, s, v = torch.linalg.svd(outside, full_matrices=True)
        keep = v[torch.nn.functional.pad(s, (0, len(v) - len(s))) <= RTOL * size].T
    if keep.shape[1] == 0 or size == 0:
        return keep.T[:0]
    _, s, v = torch.linalg.svd(inside @ keep, full_matrices=False)
    large = s > RTOL * size
    return (keep @ (v[large].T / s[large])).T
