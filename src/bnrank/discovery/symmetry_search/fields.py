"""Families of vector fields among which symmetries are searched."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.discovery.symmetry_search.problem import Coordinates

RTOL = 1e-8  # of the largest singular value: smaller combinations of the given fields vanish on the data
MAX_ENTRIES = 2**24  # of the largest intermediate tensor


class AffineFields:
    """Fields z -> A z + b, orthonormal over data of mean 0 and covariance 1: mean_i <v(z_i), w(z_i)> = <v, w>.

    Attributes
    ----------
    basis : Tensor
        (p, q, q + 1), orthonormal, each [A b].
    """

    def __init__(self, basis: Tensor) -> None:
        self.basis = basis
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


def rotations(dimension: int) -> list[Tensor]:
    """Return E_ij - E_ji for i < j: all rotations about the origin, for the argument ``fields`` of `symmetries`.

    Examples
    --------
    >>> rotations(2)[0].tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    found = []
    for i, j in itertools.combinations(range(validation.integer(dimension, "dimension", 2)), 2):
        matrix = torch.zeros(dimension, dimension, dtype=torch.float64)
        matrix[i, j], matrix[j, i] = 1.0, -1.0
        found.append(matrix)
    return found


def read_family(fields: object, coordinates: Coordinates, x: Tensor) -> Family:
    """Return all affine fields, or the combinations of the given ones that stay in the affine span of the data.

    Raises
    ------
    TypeError, ValueError
        If they are no fields on x, or none is left on the data.
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
    given = [f if callable(f) else read_affine(f, f"fields[{i}]", d, "or a function") for i, f in enumerate(fields)]
    matrices = [field for field in given if isinstance(field, Tensor)]
    if len(matrices) == len(given):
        stacked = torch.stack(matrices)
        tangent = coordinates.from_x(stacked)
        # values on the data: A (mean + out z) + b, of which the part off the span has to vanish
        start = stacked[..., :-1] @ coordinates.mean + stacked[..., -1]
        off = torch.cat([stacked[..., :-1] @ coordinates.out, start[..., None]], -1)
        off = torch.einsum("de,kdj->kej", coordinates.left_out / float(coordinates.spread.mean()), off)
        weights = _orthonormal(tangent.flatten(1).T[:, :, None], off.flatten(1).T[:, :, None], mean=False)
        result: Family = AffineFields(torch.einsum("pk,kij->pij", weights, tangent))
    else:
        result = SampledFields([f if callable(f) else _function(f) for f in given], coordinates, x)
    validation.expect(len(result), "fields", "only fields that vanish on x or leave its affine span", "others")
    return result


def _function(field: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ field[:, :-1].T + field[:, -1]


def read_affine(given: Any, name: str, d: int, alternative: str = "") -> Tensor:
    """Return a matrix A (d, d), or a pair (A, b), as [A b], (d, d + 1).

    Raises
    ------
    TypeError, ValueError
        If it is neither, naming it; ``alternative`` says what else is allowed.
    """
    matrix, shift = given if isinstance(given, tuple | list) and len(given) == 2 else (given, torch.zeros(d))
    expected = f"a matrix A {(d, d)}, a pair (A, b) {alternative}".strip()
    parts = [validation.real(part, name, expected).double().cpu() for part in (matrix, shift)]
    if tuple(parts[0].shape) != (d, d) or tuple(parts[1].shape) != (d,):
        found = f"{tuple(parts[0].shape)} and {tuple(parts[1].shape)}"
        raise ValueError(f"{name}: got shapes {found}, expected A {(d, d)} and b {(d,)}")
    return torch.cat([parts[0], parts[1][:, None]], 1)


def _orthonormal(tangent: Tensor, leaving: Tensor, *, mean: bool = True) -> Tensor:
    """Return weights (p, f) of combinations that are orthonormal over samples and do not leave the span.

    ``tangent`` and ``leaving`` are values, (N, f, q) and (N, f, d - q).
    """
    samples = len(tangent) if mean else 1
    inside, outside = (part.transpose(1, 2).flatten(0, 1) / samples**0.5 for part in (tangent, leaving))
    keep = torch.eye(inside.shape[1], dtype=inside.dtype)
    size = float(torch.linalg.matrix_norm(torch.cat([inside, outside]), 2))
    if len(outside):
        _, s, v = torch.linalg.svd(outside, full_matrices=True)
        s = np.pad(s.numpy(), (0, len(v) - len(s)))
        keep = v[torch.from_numpy(s <= RTOL * size)].T
    if keep.shape[1] == 0 or size == 0:
        return keep.T[:0]
    _, s, v = torch.linalg.svd(inside @ keep, full_matrices=False)
    large = s > RTOL * size
    return (keep @ (v[large].T / s[large])).T
